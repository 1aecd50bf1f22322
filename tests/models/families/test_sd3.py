"""The sd3 family without its T5."""

import json
import shutil

import torch

from tests.support.tiny import PROMPTS, load, save_tiny, tiny_spec


def test_sd3_without_t5_sees_zeros_as_diffusers_does(tmp_path):
    family = load(tiny_spec("sd3", t5=False))
    with_t5 = load(tiny_spec("sd3"))
    ours, full = (f.encode(PROMPTS).tensors["embeds"] for f in (family, with_t5))
    assert torch.equal(ours[:, :16], full[:, :16])
    assert not ours[:, 16:].any()
    assert full[:, 16:].any()
    assert ours.shape == full.shape
    assert family.memory()["text"] < with_t5.memory()["text"]


def test_sd3_may_be_saved_without_t5(tmp_path):
    folder = save_tiny("sd3", tmp_path / "sd3")
    index = json.loads((folder / "model_index.json").read_text())
    for part in ("text_encoder_3", "tokenizer_3"):
        index[part] = [None, None]
        shutil.rmtree(folder / part)
    (folder / "model_index.json").write_text(json.dumps(index))
    saved, drawn = load(tiny_spec("sd3", source=str(folder))), load(tiny_spec("sd3", t5=False))
    assert torch.equal(saved.encode(PROMPTS).tensors["embeds"], drawn.encode(PROMPTS).tensors["embeds"])
