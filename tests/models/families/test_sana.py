"""The sana family: padding, and its instruction."""

import inspect

import diffusers
import torch

from solrl_tasks.models.families.base import Conditioning
from solrl_tasks.sampling.identity import initial_noise
from tests.support.tiny import (
    CPU,
    GUIDED,
    load,
    tiny_spec,
)


def test_sana_masks_padding_and_takes_its_instruction_when_asked():
    plain, instructed = (load(tiny_spec("sana", complex_human_instruction=c, **GUIDED)) for c in (False, True))
    one, two = plain.encode(["red"]), instructed.encode(["red"])
    # <bos> and a byte a letter.
    assert one.tensors["mask"][0].tolist() == [1.0] * int(one.tensors["mask"].sum()) + [0.0] * (
        16 - int(one.tensors["mask"].sum())
    )
    assert 3 <= one.tensors["mask"].sum() <= 5
    assert not torch.equal(one.tensors["embeds"], two.tensors["embeds"])
    assert torch.equal(one.tensors["negative_embeds"], two.tensors["negative_embeds"])
    x = initial_noise([1], plain.latent_shape)
    changed = {**one.tensors, "embeds": one.tensors["embeds"].clone()}
    changed["embeds"][:, -1] += 5.0
    with torch.no_grad():
        same, other = (plain.velocity(plain.transformer, x, 0.5, c) for c in (one, Conditioning(changed)))
    torch.testing.assert_close(same, other, rtol=0, atol=1e-6)


def test_sana_instruction_equals_the_pipeline(tmp_path):
    family = load(tiny_spec("sana", complex_human_instruction=True))
    default = inspect.signature(diffusers.SanaPipeline.__call__).parameters["complex_human_instruction"].default
    ours = family.encode(["red"])
    theirs, mask, _, _ = family._pipeline.encode_prompt(
        "red", False, device=CPU, max_sequence_length=16, complex_human_instruction=default
    )
    assert torch.equal(ours.tensors["embeds"], theirs)
    assert torch.equal(ours.tensors["mask"], mask.float())
