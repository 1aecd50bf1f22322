"""Published checkpoints, made small: converted, loaded, and compared with the authors' computation."""

import dataclasses
import json
import os
import pickle

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from solrl_tasks.config.extensions import UnknownExtensionError, find_extension
from solrl_tasks.config.recipe import RewardSpec
from solrl_tasks.rewards.architectures import CLIP, IMAGE_REWARD
from solrl_tasks.rewards.base import RewardError, reward_id
from solrl_tasks.rewards.checkpoints import CheckpointError, convert, find_checkpoint, read_tensors
from solrl_tasks.rewards.imagereward import DEVIATION, MEAN
from solrl_tasks.rewards.pixels import resize_and_crop, resize_and_pad
from solrl_tasks.rewards.scoring import make_reward, score
from tests.rewards.test_model_rewards import TOKENIZER, pictures, prompts
from tests.support import published


def small(name, config):
    """The reward's checkpoint with another size of the same model."""
    identity, checkpoint = find_checkpoint(name)
    return identity, dataclasses.replace(checkpoint, config=config)


def tokens(texts, length):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(TOKENIZER))
    encoded = tokenizer(texts, padding="max_length", truncation=True, max_length=length, return_tensors="pt")
    return encoded["input_ids"], encoded["attention_mask"]


def scores(name, folder, images, texts, **options):
    reward = make_reward(RewardSpec(name=name, options={"source": str(folder), **options}))
    found = score(reward, images, texts, [{}] * len(images))
    assert found.failures == ()
    return found.values


@pytest.fixture
def hps(tmp_path):
    """A small HPSv2 checkpoint as it is published: half precision, wrapped."""
    identity, checkpoint = small("hpsv2", CLIP["tiny-gelu"])
    tensors = {name: t.half() for name, t in published.open_clip_tensors(checkpoint.config).items()}
    source = tmp_path / "HPS.pt"
    torch.save({"epoch": 1, "state_dict": tensors}, source)
    return identity, checkpoint, source, tensors


def test_a_converted_hpsv2_gives_what_open_clip_gives(hps, tmp_path):
    identity, checkpoint, source, tensors = hps
    # The end token is that of the tokenizer, as in the real one.
    config = json.loads(json.dumps(checkpoint.config))
    config["text_config"]["eos_token_id"] = 1
    record = convert(identity, dataclasses.replace(checkpoint, config=config), source, tmp_path / "out", TOKENIZER)
    assert record.reward == "hpsv2@2.1" and not record.key_map_verified and record.published is False
    images, texts = pictures(5), prompts(5)
    ids, _ = tokens(texts, 77)
    expected = published.open_clip_cosines(tensors, config, resize_and_pad(images, 28), ids, end=1)
    found = scores("hpsv2", tmp_path / "out", images, texts)
    assert np.allclose(found, expected.numpy(), atol=2e-6)
    assert np.ptp(found) > 0.01


def test_a_converted_imagereward_gives_what_the_authors_layout_gives(tmp_path):
    identity, checkpoint = small("imagereward", IMAGE_REWARD["tiny"])
    tensors = published.image_reward_tensors(checkpoint.config)
    torch.save(tensors, tmp_path / "ImageReward.pt")
    record = convert(identity, checkpoint, tmp_path / "ImageReward.pt", tmp_path / "out", TOKENIZER)
    assert record.unused == (
        "blip.text_encoder.embeddings.position_ids", "blip.text_proj.bias", "blip.text_proj.weight",
        "blip.vision_proj.bias", "blip.vision_proj.weight",
    )  # fmt: skip
    images, texts = pictures(5), prompts(5)
    ids, mask = tokens(texts, 35)
    raw = published.image_reward_raw(tensors, checkpoint.config, resize_and_crop(images, 32), ids, mask, heads=(4, 4))
    found = scores("imagereward", tmp_path / "out", images, texts)
    assert np.allclose(found, (raw.numpy() - MEAN) / DEVIATION, atol=2e-5)
    assert np.ptp(found) > 0.01


def test_a_converted_aesthetic_head_is_that_of_the_published_size(tmp_path):
    """The head itself is small enough to be made in its real size."""
    identity, checkpoint = find_checkpoint("aesthetic")
    tensors = published.head_tensors(768)
    torch.save(tensors, tmp_path / "head.pth")
    record = convert(identity, checkpoint, tmp_path / "head.pth", tmp_path / "out", None)
    assert (record.tensors, record.parameters) == (10, 927_969)
    from solrl_tasks.rewards.linear_head import build_head
    from solrl_tasks.rewards.loading import load_module

    embeddings = torch.randn(4, 768, generator=torch.Generator().manual_seed(2))
    head = load_module(build_head, tmp_path / "out", torch.device("cpu"))
    assert torch.allclose(head(embeddings), published.head_scores(tensors, embeddings), atol=1e-5)


def test_prompts_are_read_as_bert_reads_them(tmp_path):
    """From a vocabulary alone, as the published tokenizer is: start, words, end, and 35 places."""
    bert = tmp_path / "bert"
    bert.mkdir()
    (bert / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "red", "square"]))
    (bert / "tokenizer_config.json").write_text('{"do_lower_case": true, "model_max_length": 512}')
    identity, checkpoint = small("imagereward", IMAGE_REWARD["tiny"])
    torch.save(published.image_reward_tensors(checkpoint.config), tmp_path / "ImageReward.pt")
    convert(identity, checkpoint, tmp_path / "ImageReward.pt", tmp_path / "out", bert)
    scorer = make_reward(RewardSpec(name="imagereward", options={"source": str(tmp_path / "out")})).prepare()
    for prompt, read in (("A red SQUARE", [2, 5, 6, 7, 3]), ("cube", [2, 1, 3]), ("a " * 99, [2, *[5] * 33, 3])):
        ids, mask = scorer.tokens(prompt)
        assert ids.tolist() == [read + [0] * (35 - len(read))]
        assert mask.tolist() == [[1] * len(read) + [0] * (35 - len(read))]


def test_what_was_converted_is_on_record(hps, tmp_path):
    import hashlib

    identity, checkpoint, source, tensors = hps
    convert(identity, checkpoint, source, tmp_path / "out", None)
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    record = json.loads((tmp_path / "out" / "conversion.json").read_text())
    assert record["source_sha256"] == digest and record["source"] == "HPS.pt"
    assert record["source_bytes"] == source.stat().st_size
    assert record["parameters"] == sum(tensor.numel() for tensor in tensors.values())
    with safe_open(tmp_path / "out" / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt", "reward": "hpsv2@2.1", "source_sha256": digest}
        assert {file.get_tensor(name).dtype for name in file.keys()}  # noqa: SIM118 == {torch.float16}
    assert json.loads((tmp_path / "out" / "config.json").read_text())["model_type"] == "clip"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["HPS.pt", "out"]


def test_the_same_source_gives_the_same_bytes_and_one_identity(hps, tmp_path):
    identity, checkpoint, source, _ = hps
    other = tmp_path / "renamed.pt"
    other.write_bytes(source.read_bytes())
    for name, path in (("one", source), ("two", other)):
        convert(identity, checkpoint, path, tmp_path / name, None)
    one, two = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "two"))
    assert one == two
    specs = [RewardSpec(name="hpsv2", options={"source": str(tmp_path / name)}) for name in ("one", "two")]
    assert reward_id(make_reward(specs[0])) == reward_id(make_reward(specs[1]))


def test_the_published_file_is_known_by_its_digest(hps, tmp_path):
    identity, checkpoint, source, _ = hps
    import hashlib

    same = dataclasses.replace(checkpoint, sha256=hashlib.sha256(source.read_bytes()).hexdigest())
    assert convert(identity, same, source, tmp_path / "a", None).published is True
    unknown = dataclasses.replace(checkpoint, sha256=None)
    assert convert(identity, unknown, source, tmp_path / "b", None).published is None


@pytest.mark.parametrize("form", ["bare", "parallel", "safetensors"])
def test_other_wrappings_of_the_same_tensors_are_read(hps, tmp_path, form):
    identity, checkpoint, source, tensors = hps
    convert(identity, checkpoint, source, tmp_path / "out", None)
    other = tmp_path / ("other.safetensors" if form == "safetensors" else "other.pt")
    if form == "safetensors":
        save_file(tensors, other)
    else:
        prefix = "module." if form == "parallel" else ""
        torch.save({f"{prefix}{name}": tensor for name, tensor in tensors.items()}, other)
    convert(identity, checkpoint, other, tmp_path / "again", None)
    first, second = (load_file(tmp_path / folder / "model.safetensors") for folder in ("out", "again"))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


class Malicious:
    """Leaves a file behind if it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("modern", [True, False])
def test_a_malicious_pickle_is_refused_and_not_run(tmp_path, modern):
    trap, source = tmp_path / "trap", tmp_path / "evil.pt"
    content = {"layers.0.weight": torch.zeros(2), "payload": Malicious(str(trap))}
    if modern:
        torch.save(content, source)
    else:
        source.write_bytes(pickle.dumps({"payload": Malicious(str(trap))}, protocol=2))
    with pytest.raises(CheckpointError, match=r"is refused, and nothing of it was run: it asks for "):
        read_tensors(source)
    assert not trap.exists()
    identity, checkpoint = find_checkpoint("aesthetic")
    with pytest.raises(CheckpointError):
        convert(identity, checkpoint, source, tmp_path / "out", None)
    assert not (tmp_path / "out").exists()


def test_missing_and_unexpected_tensors_are_listed(hps, tmp_path):
    identity, checkpoint, source, tensors = hps
    shape = {**tensors, "visual.proj": torch.zeros(2, 2)}
    lacking = {name: tensor for name, tensor in tensors.items() if name != "visual.class_embedding"}
    strange = {**tensors, "visual.head.weight": torch.zeros(1)}
    deeper = {**tensors, "transformer.resblocks.7.ln_1.bias": torch.zeros(24)}
    for content, message in (
        (lacking, r"1 missing \(vision_model.embeddings.class_embedding\)"),
        (strange, r"1 tensor that the key map does not know \(visual.head.weight\)"),
        (deeper, r"1 unexpected \(text_model.encoder.layers.7.layer_norm1.bias\)"),
        (shape, r"1 of another shape \(visual_projection.weight is \[2, 2\], expected \[16, 32\]\)"),
    ):
        torch.save(content, source)
        with pytest.raises(CheckpointError, match=message):
            convert(identity, checkpoint, source, tmp_path / "out", None)
        assert not (tmp_path / "out").exists()


def test_the_checkpoint_of_another_judge_is_refused(tmp_path):
    torch.save(published.head_tensors(768), tmp_path / "head.pth")
    identity, checkpoint = find_checkpoint("hpsv2")
    with pytest.raises(CheckpointError, match=r"10 tensors that the key map does not know \(layers.0.bias, "):
        convert(identity, checkpoint, tmp_path / "head.pth", tmp_path / "out", None)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1, 2], "holds a list, expected tensors by name"),
        ({}, "holds a dict, expected tensors by name"),
        ({"a": torch.zeros(1), "lr": 0.1}, r"holds something else than tensors: lr"),
        ({"state_dict": {"a": 3}}, "holds something else than tensors: a"),
    ],
)
def test_what_is_no_checkpoint_is_told(tmp_path, content, message):
    torch.save(content, tmp_path / "odd.pt")
    with pytest.raises(CheckpointError, match=message):
        read_tensors(tmp_path / "odd.pt")


def test_unreadable_files_are_told(tmp_path):
    with pytest.raises(CheckpointError, match="there is no file"):
        read_tensors(tmp_path / "none.pt")
    for name in ("cut.pt", "cut.safetensors"):
        (tmp_path / name).write_bytes(b"PK\x03\x04 cut off")
        with pytest.raises(CheckpointError, match="cannot be read"):
            read_tensors(tmp_path / name)
    (tmp_path / "empty.pt").touch()
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_tensors(tmp_path / "empty.pt")


def test_nothing_is_overwritten(hps, tmp_path):
    identity, checkpoint, source, _ = hps
    (tmp_path / "out").mkdir()
    with pytest.raises(CheckpointError, match="exists: name a folder that does not"):
        convert(identity, checkpoint, source, tmp_path / "out", None)


def test_a_tokenizer_makes_the_folder_complete(hps, tmp_path):
    identity, checkpoint, source, _ = hps
    convert(identity, checkpoint, source, tmp_path / "bare", None)
    convert(identity, checkpoint, source, tmp_path / "whole", TOKENIZER)
    assert (tmp_path / "whole" / "tokenizer.json").read_bytes() == (TOKENIZER / "tokenizer.json").read_bytes()
    reward = make_reward(RewardSpec(name="hpsv2", options={"source": str(tmp_path / "bare")}))
    with pytest.raises(RewardError, match="the tokenizer of openai/clip-vit-large-patch14 are not in the local cache"):
        reward.prepare()
    make_reward(RewardSpec(name="hpsv2", options={"source": str(tmp_path / "whole")})).prepare()
    with pytest.raises(CheckpointError, match="holds no tokenizer"):
        convert(identity, checkpoint, source, tmp_path / "more", tmp_path)


def test_rewards_without_such_weights_name_those_with():
    with pytest.raises(CheckpointError, match=r"'pickscore' has no .*; those that have: aesthetic, hpsv2, imagereward"):
        find_checkpoint("pickscore")
    with pytest.raises(UnknownExtensionError):
        find_checkpoint("beauty")


@pytest.mark.parametrize("name", ["hpsv2", "imagereward", "aesthetic"])
def test_the_key_map_makes_every_tensor_of_the_real_model_once(name):
    """On the real sizes, without their memory: names and shapes as the published structure has them."""
    from solrl_tasks.rewards.checkpoints import rename
    from solrl_tasks.rewards.loading import differences, skeleton

    checkpoint = find_extension("reward", name).checkpoint
    make = {
        "hpsv2": published.open_clip_tensors,
        "imagereward": published.image_reward_tensors,
        "aesthetic": lambda config: published.head_tensors(config["width"]),
    }[name]
    shallow = json.loads(json.dumps(checkpoint.config))
    for tower in ("vision_config", "text_config"):
        if tower in shallow:
            # Two layers say all: the others differ by a number. Narrow towers keep the test quick.
            shallow[tower] |= {"num_hidden_layers": 2, "hidden_size": 48, "intermediate_size": 96, "vocab_size": 100}
            shallow[tower] |= {"num_attention_heads": 4, "encoder_hidden_size": 48}
    tensors, _ = rename(make(shallow), checkpoint.rules)
    assert differences(skeleton(checkpoint.build, shallow), tensors) == []
    assert not checkpoint.verified


def _spoilt(change):
    tensors = published.head_tensors(768)
    return {**tensors, "layers.0.weight": change(tensors["layers.0.weight"])}


@pytest.mark.parametrize("change", [torch.Tensor.to_sparse, torch.Tensor.long, lambda t: t.to(torch.complex64)])
def test_tensors_that_are_no_plain_numbers_are_refused(tmp_path, change):
    torch.save(_spoilt(change), tmp_path / "head.pth")
    with pytest.raises(CheckpointError, match=r"1 tensor is not dense and floating-point \(layers\.0\.weight\)"):
        convert(*find_checkpoint("aesthetic"), tmp_path / "head.pth", tmp_path / "out", None)


def test_no_message_advises_to_run_what_is_in_the_file(tmp_path):
    for number, content in enumerate((b"a" * 600, b"\x80\x02" + b"a" * 99, pickle.dumps(os.system), b"PK\x03\x04aaaa")):
        source = tmp_path / f"{number}.pt"
        source.write_bytes(content)
        with pytest.raises(CheckpointError) as raised:
            read_tensors(source)
        assert "to `False`" not in str(raised.value)


@pytest.mark.parametrize("name", ["file/under", "link"])
def test_a_folder_that_cannot_be_written_is_told(tmp_path, name):
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    torch.save(published.head_tensors(768), tmp_path / "head.pth")
    with pytest.raises(CheckpointError, match=r"cannot be written|exists"):
        convert(*find_checkpoint("aesthetic"), tmp_path / "head.pth", tmp_path / name, None)
