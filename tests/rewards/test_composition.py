import json
import shutil

import numpy as np
import pytest
import torch

from solrl_tasks.config.recipe import RewardSpec
from solrl_tasks.rewards import architectures
from solrl_tasks.rewards.asked import COLOURS
from solrl_tasks.rewards.base import RewardError
from solrl_tasks.rewards.clip_model import build_clip
from solrl_tasks.rewards.composing import Detection
from solrl_tasks.rewards.composition import Composition, CompositionOptions
from solrl_tasks.rewards.composition_strict import CompositionStrict
from solrl_tasks.rewards.hues import ClipColours, cut
from solrl_tasks.rewards.loading import random_module
from solrl_tasks.rewards.owl import ARCHITECTURES, QUERY, OwlDetector, build_owl, pad_and_stretch
from solrl_tasks.rewards.reading_reward import EMBEDDED_TOKENIZER
from solrl_tasks.rewards.scoring import make_reward, score
from solrl_tasks.rewards.weights import Folder, Random

CPU = torch.device("cpu")
TINY = {"source": "random:tiny", "colours": "random:tiny", "batch": 3}
RED_CAR = {"include": [{"class": "car", "color": "red"}]}
TWO_DOGS = {"include": [{"class": "dog", "count": 2}]}


def noise(count, side=64, height=None):
    rng = np.random.default_rng(side)
    return rng.integers(0, 256, (count, height or side, side, 3), dtype=np.uint8)


class FakeDetector:
    """Finds in an image what ``found`` has under its first pixel."""

    def __init__(self, found):
        self.found, self.calls, self.module = found, [], torch.nn.Identity()

    def detect(self, images, names, least):
        self.calls.append((len(images), tuple(names)))
        return [[d for d in self.found[int(i[0, 0, 0])] if d.name in names and d.score >= least] for i in images]


class FakeColours:
    """Every object has the colour of its box's first pixel, an index."""

    def __init__(self):
        self.calls, self.module = [], torch.nn.Identity()

    def read(self, image, boxes, name):
        self.calls.append(name)
        indices = [int(cut(image, box)[0, 0, 1]) for box in boxes]
        return [{c: 0.91 if i == index else 0.01 for i, c in enumerate(COLOURS)} for index in indices]


@pytest.fixture
def fakes():
    """A partial and a strict reward that share a fake detector and colour reader."""
    options = CompositionOptions(threshold=0.4)
    partial, strict = Composition(options, CPU), CompositionStrict(options, CPU)
    found = {
        1: [Detection("car", 0.9, (0, 0, 4, 4))],
        2: [Detection("dog", 0.9, (0, 0, 4, 4)), Detection("dog", 0.2, (8, 8, 12, 12))],
        3: [],
    }
    partial.perception.detector, partial.perception.colours = FakeDetector(found), FakeColours()
    return partial, strict


def pictures(*kinds, hue=0):
    images = np.zeros((len(kinds), 16, 16, 3), np.uint8)
    images[:, 0, 0, 0] = kinds
    images[..., 1] = hue
    return images


def test_boxes_and_colours_become_scores(fakes):
    partial, strict = fakes
    images, metadata = pictures(1, 2, 3), [RED_CAR, TWO_DOGS, RED_CAR]
    assert partial(images, [""] * 3, metadata) == pytest.approx([1.0, 0.75, 0.0])
    assert strict(images, [""] * 3, metadata) == [1.0, 0.0, 0.0]
    blue = pictures(1, hue=COLOURS.index("blue"))
    assert partial(blue, [""], [RED_CAR]) == pytest.approx([0.5 + 0.5 * 0.01 / 0.91])
    assert strict(blue, [""], [RED_CAR]) == [0.0]


def test_an_image_is_looked_at_once_for_both_scores(fakes):
    partial, strict = fakes
    assert partial.perception is strict.perception
    assert Composition(CompositionOptions(threshold=0.5), CPU).perception is not partial.perception
    images, metadata = pictures(2, 1, 2), [TWO_DOGS, RED_CAR, TWO_DOGS]
    partial(images, [""] * 3, metadata)
    strict(images, [""] * 3, metadata)
    assert sorted(partial.perception.detector.calls) == [(1, ("car",)), (2, ("dog",))]
    assert partial.perception.colours.calls == ["car"]
    # Other images, or the same with another question, are looked at.
    strict(pictures(3, 1, 2), [""] * 3, metadata)
    strict(pictures(3, 1, 2), [""] * 3, [TWO_DOGS] * 3)
    assert len(partial.perception.detector.calls) == 5


def test_colours_are_read_only_where_one_is_asked(fakes):
    partial, _ = fakes
    partial(pictures(1, 2), [""] * 2, [{"include": [{"class": "car"}]}, TWO_DOGS])
    assert partial.perception.colours.calls == []


def test_a_prompt_without_metadata_makes_its_candidates_invalid(fakes):
    partial, _ = fakes
    found = score(partial, pictures(1, 1), ["a", "b"], [{}, RED_CAR])
    assert np.isnan(found.values[0])
    assert found.values[1] == 1
    assert 'composition: image 0: UnaskedError: the prompt has no metadata "include"' in found.failures[1]


def test_a_colour_without_a_model_that_tells_it_stops():
    reward = make_reward(RewardSpec(name="composition", options={**TINY, "colours": None, "threshold": 0.01}))
    assert len(score(reward, noise(1), ["x"], [TWO_DOGS]).failures) == 0
    with pytest.raises(RewardError, match="asks for a colour, but the option colours names no model"):
        score(reward, noise(1), ["x"], [RED_CAR])


def test_random_models_go_all_the_way_and_give_their_memory_back():
    options = {**TINY, "threshold": 0.01}
    asked = {"include": [*RED_CAR["include"], {"class": "dog", "count": 2, "position": ["left of", 0]}]}
    partial, strict = (make_reward(RewardSpec(name=n, options=options)) for n in ("composition", "composition-strict"))
    assert partial.memory() == 0
    found = score(partial, noise(4), ["x"] * 4, [asked] * 4)
    assert found.failures == ()
    assert all(0 < value < 1 for value in found.values)
    assert set(score(strict, noise(4), ["x"] * 4, [asked] * 4).values.tolist()) <= {0.0, 1.0}
    assert partial.memory() == strict.memory() > 1e6
    partial.unload()
    assert strict.memory() == 0
    assert np.array_equal(score(partial, noise(4), ["x"] * 4, [asked] * 4).values, found.values)


def test_scores_do_not_depend_on_the_batch():
    reward = Composition(CompositionOptions(**TINY, threshold=0.01), CPU)
    images, metadata = noise(5), [RED_CAR, TWO_DOGS, RED_CAR, TWO_DOGS, RED_CAR]
    together = reward(images, [""] * 5, metadata)
    assert together == [reward(images[i : i + 1], [""], [metadata[i]])[0] for i in range(5)]
    assert together == reward(images[::-1], [""] * 5, metadata[::-1])[::-1]


# What is in the identity


def test_options_that_change_scores_change_the_version():
    versions = [
        make_reward(RewardSpec(name="composition", options=options)).version
        for options in (
            {},
            {"threshold": 0.3, "source": "google/owlv2-base-patch16-ensemble"},
            {"threshold": 0.2},
            {"batch": 4},
            {"source": "google/owlv2-large-patch14-ensemble"},
            {"revision": "abc"},
            {"colours": "laion/CLIP-ViT-H-14-laion2B-s32B-b79K"},
            {"colours": None},
            {"source": "random:tiny"},
        )
    ]
    assert versions[0] == versions[1] == "1"
    assert len(set(versions)) == len(versions) - 1


def test_what_cannot_be_loaded_is_refused_before_anything_is():
    with pytest.raises(RewardError, match="source 'no/such/folder': there is no folder"):
        make_reward(RewardSpec(name="composition", options={"source": "no/such/folder"}))
    with pytest.raises(RewardError, match="source random:huge: there is owlv2-base, tiny"):
        make_reward(RewardSpec(name="composition", options={"source": "random:huge"}))


# The detector against transformers


@pytest.fixture(scope="module")
def owl_folder(tmp_path_factory):
    """Weights as the hub has them, with a small vocabulary whose two last ids are begin and end, as in CLIP's."""
    folder = tmp_path_factory.mktemp("owl")
    module = random_module(build_owl, {**ARCHITECTURES["tiny"]}, CPU)
    torch.manual_seed(0)
    for parameter in module.parameters():
        parameter.data.add_(0.2 * torch.randn_like(parameter))
    from safetensors.torch import save_file

    save_file({name: tensor.contiguous() for name, tensor in module.state_dict().items()}, folder / "model.safetensors")
    module.config.save_pretrained(folder)
    for path in EMBEDDED_TOKENIZER.iterdir():
        shutil.copy(path, folder / path.name)
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text("utf-8"))
    size = len(tokenizer["model"]["vocab"])
    ids = {name: (number - 2) % size for name, number in tokenizer["model"]["vocab"].items()}
    tokenizer["model"]["vocab"] = ids
    for token in tokenizer["added_tokens"]:
        token["id"] = ids[token["content"]]
    for end in ("sep", "cls"):
        name = tokenizer["post_processor"][end][0]
        tokenizer["post_processor"][end] = [name, ids[name]]
    path.write_text(json.dumps(tokenizer), encoding="utf-8")
    return folder


def reference(folder):
    """The real class with the folder's weights, its convolution as it is."""
    from safetensors.torch import load_file
    from transformers import Owlv2Config, Owlv2ForObjectDetection

    module = Owlv2ForObjectDetection(Owlv2Config.from_pretrained(folder)).eval()
    module.load_state_dict(load_file(folder / "model.safetensors"))
    return module


def test_boxes_are_those_of_transformers(owl_folder):
    from transformers import AutoTokenizer
    from transformers.models.owlv2.image_processing_pil_owlv2 import Owlv2ImageProcessorPil

    names, images = ("cat", "red car", "dog"), noise(4, 96)
    found = OwlDetector(Folder(owl_folder), Folder(owl_folder), CPU, 3).detect(images, names, 0.3)

    processor = Owlv2ImageProcessorPil(size={"height": 64, "width": 64})
    tokens = AutoTokenizer.from_pretrained(str(owl_folder))(
        [QUERY.format(name) for name in names], padding="max_length", max_length=16, return_tensors="pt"
    )
    pixels = processor(list(images), return_tensors="pt")["pixel_values"].float()
    with torch.no_grad():
        output = reference(owl_folder)(
            input_ids=tokens["input_ids"].repeat(4, 1),
            attention_mask=tokens["attention_mask"].repeat(4, 1),
            pixel_values=pixels,
        )
    scores = output.logits.sigmoid()
    wanted = [
        [(names[c], float(scores[i, r, c])) for c in range(3) for r in range(scores.shape[1]) if scores[i, r, c] >= 0.3]
        for i in range(4)
    ]
    assert 0 < sum(map(len, wanted)) < 4 * 3 * 16
    for i in range(4):
        assert [d.name for d in found[i]] == [name for name, _ in wanted[i]]
        assert [d.score for d in found[i]] == pytest.approx([s for _, s in wanted[i]], abs=1e-5)
    # Of the class that is surest in a patch, transformers gives the box in pixels.
    results = processor.post_process_object_detection(output, threshold=0.3, target_sizes=[(96, 96)] * 4)
    boxes = [{(round(d.score, 4), *(round(side, 2) for side in d.box)) for d in each} for each in found]
    for i, result in enumerate(results):
        clipped = result["boxes"].clamp(0, 96)
        for value, box in zip(result["scores"].tolist(), clipped.tolist(), strict=True):
            near = [b for b in boxes[i] if np.allclose(b, (value, *box), atol=0.02)]
            assert near, (i, value, box)


def test_a_class_does_not_depend_on_the_others_asked_for(owl_folder):
    detector = OwlDetector(Folder(owl_folder), Folder(owl_folder), CPU, 2)
    alone = detector.detect(noise(1), ["cat"], 0.0)[0]
    among = [d for d in detector.detect(noise(1), ["dog", "cat", "car"], 0.0)[0] if d.name == "cat"]
    assert [d.score for d in alone] == pytest.approx([d.score for d in among], abs=1e-6)
    assert len({d.score for d in alone}) > 1


@pytest.mark.parametrize(("width", "height"), [(64, 64), (40, 40), (200, 200), (70, 70), (96, 48), (48, 96)])
def test_pixels_are_those_of_transformers(width, height):
    from transformers.models.owlv2.image_processing_pil_owlv2 import Owlv2ImageProcessorPil

    images = noise(2, width, height)
    processor = Owlv2ImageProcessorPil(size={"height": 64, "width": 64})
    wanted = processor(list(images), return_tensors="pt")["pixel_values"]
    assert torch.allclose(pad_and_stretch(images, 64, CPU), wanted.float(), atol=2e-5)


def test_boxes_of_a_picture_that_is_not_square_end_at_its_edges():
    detector = OwlDetector(Random("tiny"), Folder(EMBEDDED_TOKENIZER), CPU, 1)
    boxes = [d.box for d in detector.detect(noise(1, 96, 48), ["cat"], 0.0)[0]]
    assert boxes
    assert max(box[3] for box in boxes) <= 48
    assert max(box[2] for box in boxes) > 48


# Colours against CLIP


def test_colour_probabilities_by_hand():
    reader = ClipColours(Random("tiny"), Folder(EMBEDDED_TOKENIZER), CPU, 2)
    image = noise(1)[0]
    boxes = [(0.0, 0.0, 20.0, 20.0), (10.5, 3.0, 50.0, 63.5), (5.0, 5.0, 5.0, 5.0)]
    found = reader.read(image, boxes, "car")
    assert [sum(row.values()) for row in found] == pytest.approx([1.0] * 3)
    assert found[1] == reader.read(image, boxes[1:2], "car")[0]

    module = random_module(build_clip, architectures.CLIP["tiny"], CPU)
    module.text_model.eos_token_id = 1
    from solrl_tasks.rewards.pixels import resize_and_crop

    def unit(x):
        return x / x.norm(dim=-1, keepdim=True)

    def text(colour):
        parts = [f"a photo of a {colour} car", f"a photo of a {colour}-colored car", f"a photo of a {colour} object"]
        ids = torch.cat([reader._tokens(part)[0] for part in parts])
        return unit(unit(module.get_text_features(input_ids=ids).pooler_output).mean(0))

    with torch.no_grad():
        pixels = resize_and_crop(image[None, 3:64, 10:50], 28)
        cosines = (
            unit(module.get_image_features(pixel_values=pixels).pooler_output)
            @ torch.stack([text(colour) for colour in COLOURS]).T
        )
        wanted = (100 * cosines[0]).softmax(-1)
    assert list(found[1].values()) == pytest.approx(wanted.tolist(), rel=1e-3)
    assert list(found[1]) == list(COLOURS)


def test_a_cut_holds_at_least_one_pixel_and_none_outside():
    image = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    assert cut(image, (0.0, 0.0, 2.0, 2.0)).shape == (2, 2, 3)
    assert cut(image, (1.2, 0.2, 1.3, 0.4)).tolist() == image[:1, 1:].tolist()
    assert cut(image, (2.0, 2.0, 2.0, 2.0)).tolist() == image[1:, 1:].tolist()


# Memory and accelerators


def test_too_little_memory_names_the_option(fakes):
    partial, _ = fakes

    def detect(*_):
        raise torch.OutOfMemoryError("out of memory")

    partial.perception.detector.detect = detect
    with pytest.raises(RewardError, match="found no memory on cpu for 8 images at once: lower its option batch"):
        score(partial, pictures(1, 2), [""] * 2, [RED_CAR] * 2)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_boxes_and_colours_on_an_accelerator(owl_folder):
    """Those of the CPU but for rounding, and the same in any company."""
    device, images, names = torch.device("cuda"), noise(5, 96), ("cat", "red car")
    near, far = (OwlDetector(Folder(owl_folder), Folder(owl_folder), where, 2) for where in (device, CPU))
    found, wanted = near.detect(images, names, 0.0), far.detect(images, names, 0.0)
    for each, other in zip(found, wanted, strict=True):
        assert [d.name for d in each] == [d.name for d in other]
        assert np.allclose([d.score for d in each], [d.score for d in other], atol=1e-4)
        assert np.allclose([d.box for d in each], [d.box for d in other], atol=0.05)
    assert found == [near.detect(images[i : i + 1], names, 0.0)[0] for i in range(5)]
    place, boxes = Random("tiny"), [(0.0, 0.0, 20.0, 20.0), (10.0, 3.0, 50.0, 63.0), (30.0, 0.0, 90.0, 40.0)]
    reader, twin = (ClipColours(place, Folder(EMBEDDED_TOKENIZER), where, 2) for where in (device, CPU))
    # Random weights are drawn anew on each kind of device.
    reader.module.load_state_dict(twin.module.state_dict())
    colours = reader.read(images[0], boxes, "car")
    for row, other in zip(colours, twin.read(images[0], boxes, "car"), strict=True):
        assert list(row.values()) == pytest.approx(list(other.values()), abs=1e-3)
    assert colours == [reader.read(images[0], [box], "car")[0] for box in boxes]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_the_published_sizes_fit_and_leave_an_accelerator():
    before = torch.cuda.memory_allocated()
    options = {"source": "random:owlv2-base", "colours": "random:vit-l-14", "threshold": 0.01}
    reward = make_reward(RewardSpec(name="composition", options=options), torch.device("cuda"))
    found = score(reward, noise(9, 512), [""] * 9, [RED_CAR] * 9)
    assert found.failures == ()
    assert 2.2e9 < reward.memory() < 2.5e9
    reward.unload()
    assert torch.cuda.memory_allocated() - before < 1e8
