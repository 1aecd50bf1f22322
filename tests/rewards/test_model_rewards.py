"""The five judges on tiny models of the real classes: values, batches, memory, failures."""

import json
import math
import shutil
import threading
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

import solrl_tasks
from solrl_tasks.config.extensions import find_extension
from solrl_tasks.config.recipe import RewardSpec
from solrl_tasks.rewards.architectures import CLIP, IMAGE_REWARD
from solrl_tasks.rewards.base import RewardError, reward_id
from solrl_tasks.rewards.loading import random_module
from solrl_tasks.rewards.pixels import resize_and_crop, resize_and_pad
from solrl_tasks.rewards.scoring import make_reward, score

JUDGES = ("pickscore", "clipscore", "hpsv2", "imagereward", "aesthetic")
TOKENIZER = Path(solrl_tasks.__file__).parent / "models" / "embedded" / "tokenizer"
each_judge = pytest.mark.parametrize("name", JUDGES)


def options(name, **changes):
    both = {"backbone": "random:tiny"} if name == "aesthetic" else {}
    return {"source": "random:tiny", **both, **changes}


def tiny(name, device=None, **changes):
    return make_reward(RewardSpec(name=name, options=options(name, **changes)), device)


def pictures(count, height=40, width=52, seed=0):
    """Blocks of colour, each image another."""
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 256, (count, 4, 4, 3), dtype=np.uint8)
    return small.repeat(height // 4, axis=1).repeat(width // 4, axis=2)


def prompts(count):
    words = ("a red square", "two blue circles", "", "a green dog on a chair " * 40)
    return [f"{words[i % 4]}{i}" if words[i % 4] else "" for i in range(count)]


def values(reward, images, texts):
    scores = score(reward, images, texts, [{}] * len(images))
    assert scores.failures == ()
    return scores.values


@pytest.fixture(scope="module")
def clip_folder(tmp_path_factory):
    """Saves a CLIPModel of transformers with a tokenizer as a user's folder; returns the model and the folder."""
    from transformers import CLIPConfig, CLIPModel

    def save(config, scale):
        sizes = {name: value for name, value in config.items() if name != "model_type"}
        torch.manual_seed(0)
        model = CLIPModel(CLIPConfig(**sizes)).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))
            model.logit_scale.fill_(scale)
        model.text_model.config.eos_token_id = model.text_model.eos_token_id = 1
        model.config.text_config.eos_token_id = 1
        folder = tmp_path_factory.mktemp("clip") / "weights"
        model.save_pretrained(folder)
        for path in TOKENIZER.iterdir():
            shutil.copyfile(path, folder / path.name)
        return model, folder

    return save


# Values


@pytest.mark.parametrize(("name", "divisor"), [("pickscore", 26.0), ("clipscore", 100.0)])
def test_scores_are_those_of_clip_itself_in_the_published_scale(clip_folder, name, divisor):
    from transformers import AutoTokenizer

    model, folder = clip_folder(CLIP["tiny"], 4.3)
    images, texts = pictures(5), prompts(5)
    tokens = AutoTokenizer.from_pretrained(str(TOKENIZER))(
        texts, padding="max_length", truncation=True, max_length=77, return_tensors="pt"
    )
    with torch.no_grad():
        logits = model(pixel_values=resize_and_crop(images, 28), **tokens).logits_per_image.diagonal()
    found = values(make_reward(RewardSpec(name=name, options={"source": str(folder)})), images, texts)
    assert np.allclose(found, logits.numpy() / divisor, atol=1e-5)
    assert np.ptp(found) > 1e-3


def test_hpsv2_is_the_cosine_of_padded_images(clip_folder):
    model, folder = clip_folder(CLIP["tiny-gelu"], 4.3)
    images, text = pictures(3), "a red square"
    reward = make_reward(RewardSpec(name="hpsv2", options={"source": str(folder)}))
    found = values(reward, images, [text] * 3)
    from transformers import AutoTokenizer

    ids = AutoTokenizer.from_pretrained(str(TOKENIZER))([text], return_tensors="pt")["input_ids"]
    with torch.no_grad():
        seen = model.get_image_features(pixel_values=resize_and_pad(images, 28)).pooler_output.double().numpy()
        read = model.get_text_features(input_ids=ids).pooler_output.double().numpy()[0]
    expected = seen @ read / np.linalg.norm(seen, axis=1) / np.linalg.norm(read)
    assert np.allclose(found, expected, atol=1e-5)


def test_aesthetic_is_five_linear_layers_on_a_unit_embedding(clip_folder, tmp_path):
    from safetensors.torch import save_file

    model, folder = clip_folder(CLIP["tiny"], 4.3)
    rng = np.random.default_rng(3)
    widths = (16, 1024, 128, 64, 16, 1)
    layers = [(rng.normal(0, a**-0.5, (b, a)), rng.normal(0, 0.1, b)) for a, b in pairwise(widths)]
    head = tmp_path / "head"
    head.mkdir()
    (head / "config.json").write_text(json.dumps({"model_type": "linear-head", "width": 16}))
    tensors = {}
    for place, (weight, bias) in zip((0, 2, 4, 6, 7), layers, strict=True):
        tensors[f"layers.{place}.weight"] = torch.from_numpy(weight).float()
        tensors[f"layers.{place}.bias"] = torch.from_numpy(bias).float()
    save_file(tensors, head / "model.safetensors")
    images = pictures(4)
    with torch.no_grad():
        x = model.get_image_features(pixel_values=resize_and_crop(images, 28)).pooler_output.double().numpy()
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    for weight, bias in layers:
        x = x @ weight.T + bias
    spec = RewardSpec(name="aesthetic", options={"source": str(head), "backbone": str(folder)})
    assert np.allclose(values(make_reward(spec), images, ["any"] * 4), x[:, 0], atol=1e-5)


@each_judge
def test_names_versions_and_ranges_are_declared(name):
    reward = find_extension("reward", name)
    assert (reward.name, reward.version) == (name, {"hpsv2": "2.1", "imagereward": "1.0"}.get(name, "1"))
    low, high = reward.range
    assert low < high
    found = values(tiny(name), pictures(6), prompts(6))
    assert (found >= low).all() and (found <= high).all()
    assert reward.__doc__ and "Preprocessing" in reward.__doc__


def test_only_the_prompt_blind_judge_is_blind_to_the_prompt():
    images = pictures(1)
    for name in JUDGES:
        reward = tiny(name)
        one, other = (values(reward, images, [text])[0] for text in ("a red square", "two blue circles"))
        assert (one == other) == (name == "aesthetic"), name


# Batches


@each_judge
def test_scores_in_a_batch_are_bit_for_bit_those_one_by_one(name):
    reward, images, texts = tiny(name), pictures(11), prompts(11)
    together = values(reward, images, texts)
    alone = [values(reward, images[i : i + 1], texts[i : i + 1])[0] for i in range(11)]
    assert together.tolist() == alone
    assert len(set(together.tolist())) > 8


@each_judge
def test_scores_do_not_depend_on_order_or_company(name):
    reward, images, texts = tiny(name), pictures(10), prompts(10)
    order = np.random.default_rng(1).permutation(10)
    plain = values(reward, images, texts)
    assert values(reward, images[order], [texts[i] for i in order]).tolist() == plain[order].tolist()
    assert values(reward, images[3:7], texts[3:7]).tolist() == plain[3:7].tolist()


@each_judge
def test_another_block_size_gives_the_same_to_rounding_and_another_identity(name):
    images, texts = pictures(7), prompts(7)
    plain, small = tiny(name), tiny(name, batch=3)
    assert np.allclose(values(plain, images, texts), values(small, images, texts), atol=1e-5)
    assert reward_id(plain) != reward_id(small)


@each_judge
def test_no_images_give_no_scores(name):
    assert values(tiny(name), pictures(1)[:0], []).tolist() == []


class Counted:
    """Counts how often a module is called, and with how many rows."""

    def __init__(self, module):
        self.rows = []
        module.register_forward_pre_hook(self._see, with_kwargs=True)

    def _see(self, module, positional, named):
        self.rows.append(len(next(iter([*positional, *named.values()]))))


def test_imagereward_makes_one_pass_a_pair():
    reward = tiny("imagereward", batch=4)
    module = reward.prepare()._module
    seeing, reading = Counted(module.vision), Counted(module.text)
    values(reward, pictures(8), prompts(8))
    assert seeing.rows == reading.rows == [4, 4]


def test_a_prompt_is_read_once_and_alone():
    reward = tiny("pickscore", batch=4)
    module = reward.prepare()._module
    seeing, reading = Counted(module.vision_model), Counted(module.text_model)
    values(reward, pictures(8), ["a red square"] * 4 + ["a cat"] * 4)
    values(reward, pictures(4), ["a cat"] * 4)
    assert seeing.rows == [4, 4, 4] and reading.rows == [1, 1]


# Memory


@each_judge
def test_weights_come_with_the_first_batch_and_go_when_asked(name):
    reward = tiny(name)
    assert reward.memory() == 0
    before = values(reward, pictures(2), prompts(2))
    held = reward.memory()
    module = reward.prepare()._module
    counted = sum(tensor.nbytes for tensor in [*module.parameters(), *module.buffers()])
    assert held == counted > 4096
    reward.unload()
    assert reward.memory() == 0
    assert values(reward, pictures(2), prompts(2)).tolist() == before.tolist()
    assert reward.memory() == held


def test_nothing_is_left_of_unloaded_weights():
    import gc
    import weakref

    reward = tiny("pickscore")
    values(reward, pictures(2), prompts(2))
    gone = weakref.ref(reward.prepare()._module.vision_model)
    reward.unload()
    gc.collect()
    assert gone() is None


def test_weights_of_any_precision_compute_in_float32(clip_folder, tmp_path):
    from safetensors.torch import load_file, save_file

    _, folder = clip_folder(CLIP["tiny"], 4.3)
    half = tmp_path / "half"
    shutil.copytree(folder, half)
    tensors = {name: tensor.half() for name, tensor in load_file(half / "model.safetensors").items()}
    save_file(tensors, half / "model.safetensors", {"format": "pt"})
    reward = make_reward(RewardSpec(name="clipscore", options={"source": str(half)}))
    whole = make_reward(RewardSpec(name="clipscore", options={"source": str(folder)}))
    images, texts = pictures(3), prompts(3)
    assert np.allclose(values(reward, images, texts), values(whole, images, texts), atol=5e-3)
    assert {p.dtype for p in reward.prepare()._module.parameters()} == {torch.float32}
    assert reward_id(reward) != reward_id(whole)


def test_random_weights_have_the_published_sizes():
    """Counted on modules without memory: the published files have 3.94, 1.71 and 1.79 GB."""
    from solrl_tasks.rewards.clip_model import build_clip
    from solrl_tasks.rewards.imagereward import ImageRewardModel
    from solrl_tasks.rewards.loading import skeleton

    def count(build, config):
        return sum(parameter.numel() for parameter in skeleton(build, config).parameters())

    assert count(build_clip, CLIP["vit-h-14"]) == 986_109_441
    assert count(build_clip, CLIP["vit-l-14"]) == 427_616_513
    assert count(ImageRewardModel, IMAGE_REWARD["blip-l"]) == 446_206_689
    assert next(iter(find_extension("reward", "pickscore").architectures)) == "vit-h-14"
    assert next(iter(find_extension("reward", "hpsv2").architectures)) == "vit-h-14"
    assert next(iter(find_extension("reward", "clipscore").architectures)) == "vit-l-14"


def test_random_weights_are_the_same_every_time_and_no_two_tensors_are():
    from solrl_tasks.rewards.clip_model import build_clip

    first, second = (random_module(build_clip, CLIP["tiny"], torch.device("cpu")).state_dict() for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    projections = [t for name, t in first.items() if name.endswith("q_proj.weight") and name.startswith("vision")]
    assert not torch.equal(projections[0], projections[1])
    assert first["logit_scale"].item() == pytest.approx(math.log(100))


def test_an_unknown_architecture_names_those_there_are():
    with pytest.raises(RewardError, match=r"random:huge: clipscore has the architectures vit-l-14, vit-h-14, tiny"):
        tiny("clipscore", source="random:huge").prepare()
    with pytest.raises(RewardError, match="random:huge: its backbone has the architectures"):
        tiny("aesthetic", backbone="random:huge").prepare()


# Identity


def test_the_published_weights_have_the_plain_version():
    assert reward_id(make_reward(RewardSpec(name="pickscore"))) == "pickscore@1"
    assert reward_id(make_reward(RewardSpec(name="clipscore"))) == "clipscore@1"
    pinned = {"source": "yuvalkirstain/PickScore_v1", "revision": "a4e4367c6dfa7288a00c550414478f865b875800"}
    assert reward_id(make_reward(RewardSpec(name="pickscore", options=pinned))) == "pickscore@1"


def test_what_decides_scores_is_in_the_version(clip_folder, tmp_path):
    _, folder = clip_folder(CLIP["tiny"], 4.3)
    bare = tmp_path / "bare"
    shutil.copytree(folder, bare)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (bare / name).unlink()
    changes = [
        {}, {"revision": "main"}, {"source": "a/b"}, {"source": "random"}, {"source": "random:tiny"},
        {"source": str(folder)}, {"source": str(bare)}, {"source": str(bare), "tokenizer": str(folder)},
        {"tokenizer": "a/b"}, {"batch": 4},
    ]  # fmt: skip
    identities = [reward_id(make_reward(RewardSpec(name="pickscore", options=change))) for change in changes]
    assert len(set(identities)) == len(changes)
    backbones = [tiny("aesthetic"), tiny("aesthetic", backbone="random:vit-l-14"), tiny("aesthetic", backbone="a/b")]
    assert len({reward_id(reward) for reward in backbones}) == 3


@pytest.mark.parametrize("name", ["hpsv2", "imagereward", "aesthetic"])
def test_weights_that_have_to_be_converted_say_how(name):
    with pytest.raises(RewardError, match=rf"needs option source.*`solrl convert {name} FILE FOLDER`"):
        make_reward(RewardSpec(name=name))


def test_options_are_checked():
    with pytest.raises(ValueError, match="allowed are source, revision, batch, precision, tokenizer"):
        make_reward(RewardSpec(name="clipscore", options={"sources": "a/b"}))
    with pytest.raises(ValueError, match="allowed are source, revision, batch, precision, backbone"):
        make_reward(RewardSpec(name="aesthetic", options={"tokenizer": "a/b"}))
    with pytest.raises(RewardError, match="tokenizer cannot be random"):
        tiny("clipscore", tokenizer="random")


@pytest.mark.parametrize("name", ["clipscore", "imagereward"])
def test_a_tokenizer_that_changes_between_version_and_loading_is_refused(tmp_path, name):
    folder = tmp_path / "words"
    shutil.copytree(TOKENIZER, folder)
    reward = tiny(name, tokenizer=str(folder))
    asked = pictures(1), prompts(1), [{}]
    assert len(reward(*asked)) == 1
    reward.unload()
    file = folder / "tokenizer.json"
    file.write_text(json.dumps(json.loads(file.read_text()), indent=1))
    for _ in range(2):
        with pytest.raises(RewardError, match=r"words have changed since .* put the old files back"):
            reward(*asked)


# Failures


def test_weights_that_do_not_fit_are_named(clip_folder, tmp_path):
    from safetensors.torch import load_file, save_file

    _, folder = clip_folder(CLIP["tiny"], 4.3)
    broken = tmp_path / "broken"
    shutil.copytree(folder, broken)
    tensors = load_file(broken / "model.safetensors")
    del tensors["logit_scale"]
    tensors["stranger"] = torch.zeros(1)
    tensors["text_projection.weight"] = torch.zeros(3, 3)
    save_file(tensors, broken / "model.safetensors", {"format": "pt"})
    with pytest.raises(RewardError) as caught:
        make_reward(RewardSpec(name="clipscore", options={"source": str(broken)})).prepare()
    for part in ("1 missing (logit_scale)", "1 unexpected (stranger)", "text_projection.weight is [3, 3], expected"):
        assert part in str(caught.value)


def test_damaged_files_are_named(clip_folder, tmp_path):
    _, folder = clip_folder(CLIP["tiny"], 4.3)
    for name in ("model.safetensors", "config.json"):
        broken = tmp_path / name
        shutil.copytree(folder, broken)
        (broken / name).write_bytes(b"{ no")
        with pytest.raises(RewardError, match=f"{name} cannot be read"):
            make_reward(RewardSpec(name="clipscore", options={"source": str(broken)})).prepare()
    (tmp_path / "config.json" / "config.json").write_text('{"vision_config": {"hidden_size": 7}}')
    with pytest.raises(RewardError, match=r"(?s)its configuration cannot be used: .*not a multiple"):
        make_reward(RewardSpec(name="clipscore", options={"source": str(tmp_path / "config.json")})).prepare()


def test_no_memory_is_an_error_of_the_set_up_not_of_an_image():
    reward = tiny("clipscore")
    module = reward.prepare()._module

    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    module.vision_model.register_forward_pre_hook(full)
    with pytest.raises(RewardError, match=r"'clipscore' found no memory on cpu for 8 images at once: lower its option"):
        score(reward, pictures(3), prompts(3), [{}] * 3)


def test_what_breaks_a_judge_in_one_image_costs_that_image_alone():
    """A nan in the network is that image's; an exception is retried image by image."""
    reward = tiny("aesthetic", batch=1)
    module = reward.prepare()._module
    bad = resize_and_crop(pictures(3)[1:2], 28)

    def poison(_, positional, named):
        pixels = named["pixel_values"]
        if torch.equal(pixels, bad):
            return (), {"pixel_values": pixels * float("nan")}
        return None

    module.tower.register_forward_pre_hook(poison, with_kwargs=True)
    scores = score(reward, pictures(3), prompts(3), [{}] * 3)
    assert np.isnan(scores.values).tolist() == [False, True, False]
    assert scores.failures == ("aesthetic: image 1: score is nan",)

    def refuse(_, positional, named):
        if torch.equal(named["pixel_values"], bad):
            raise ValueError("not this one")

    module.tower._forward_pre_hooks.clear()
    module.tower.register_forward_pre_hook(refuse, with_kwargs=True)
    scores = score(reward, pictures(3), prompts(3), [{}] * 3)
    assert np.isnan(scores.values).tolist() == [False, True, False]
    assert scores.failures[1] == "aesthetic: image 1: ValueError: not this one"


def test_loading_does_not_count_against_the_time_limit(monkeypatch):
    import time

    from solrl_tasks.rewards import model_reward

    real = model_reward.random_module
    monkeypatch.setattr(model_reward, "random_module", lambda *given: time.sleep(0.5) or real(*given))
    reward = tiny("clipscore")
    values(reward, pictures(1), ["a"])
    reward.unload()
    scores = score(reward, pictures(1), ["a"], [{}], timeout=0.4)
    assert scores.failures == () and np.isfinite(scores.values).all()


def test_two_threads_load_once(monkeypatch):
    import time

    from solrl_tasks.rewards import model_reward

    loads = []
    real = model_reward.random_module
    monkeypatch.setattr(
        model_reward, "random_module", lambda *given: loads.append(1) or time.sleep(0.1) or real(*given)
    )
    scorer = find_extension("reward", "clipscore")(
        find_extension("reward", "clipscore").Options(source="random:tiny"), torch.device("cpu")
    )
    threads = [threading.Thread(target=scorer.load) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert loads == [1]


# Accelerators


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@each_judge
def test_scores_on_an_accelerator(name):
    """Close to those of the CPU, the same in any company, and the memory comes back.

    Weights are drawn anew on each kind of device: they are carried over to compare.
    """
    device = torch.device("cuda")
    reward, twin = tiny(name, device), tiny(name)
    images, texts = pictures(11), prompts(11)
    values(reward, images, texts)
    reward.unload()
    free = torch.cuda.memory_allocated()  # What libraries keep for themselves is there by now.
    reward.prepare()._module.load_state_dict(twin.prepare()._module.state_dict())
    together = values(reward, images, texts)
    assert np.allclose(together, values(twin, images, texts), atol=1e-4)
    alone = [values(reward, images[i : i + 1], texts[i : i + 1])[0] for i in range(11)]
    assert together.tolist() == alone
    assert torch.cuda.memory_allocated() - free >= reward.memory() > 0
    reward.unload()
    assert torch.cuda.memory_allocated() == free


@each_judge
def test_lower_precision_is_another_reward_that_scores_nearly_alike_in_any_company(name):
    precise, lower = tiny(name), tiny(name, precision="bfloat16")
    assert reward_id(lower) != reward_id(precise) and reward_id(tiny(name, precision="float32")) == reward_id(precise)
    images, texts = pictures(11), prompts(11)
    exact, rounded = values(precise, images, texts), values(lower, images, texts)
    assert rounded.dtype == exact.dtype
    assert not np.array_equal(rounded, exact)
    assert np.abs(rounded - exact).max() < 0.03 * max(1.0, np.abs(exact).max())
    alone = [values(lower, images[n : n + 1], texts[n : n + 1])[0] for n in range(len(images))]
    assert np.array_equal(rounded, alone)
