import time

import numpy as np
import pytest

from solrl_tasks.scenes.checker import find_objects, score_scenes
from solrl_tasks.scenes.grammar import SHAPES, all_prompts, parse
from solrl_tasks.scenes.renderer import draw_prompts

SOME = [prompt.text for prompt in all_prompts()[::29]]


@pytest.fixture(scope="module")
def truth():
    return draw_prompts(SOME, 7).numpy()


def test_true_pictures_are_right(truth):
    smooth, strict = score_scenes(truth, SOME)
    assert smooth.dtype == strict.dtype == np.float32
    assert strict.mean() > 0.995
    assert smooth.mean() > 0.85
    assert smooth.max() <= 1.0


def test_pictures_of_other_prompts_are_wrong(truth):
    smooth, strict = score_scenes(truth, SOME[137:] + SOME[:137])
    assert strict.mean() < 0.01
    assert smooth.mean() < 0.12


def test_scores_do_not_depend_on_company_or_order(truth):
    smooth, strict = score_scenes(truth[:70], SOME[:70])
    back_smooth, back_strict = score_scenes(truth[:70][::-1], SOME[:70][::-1])
    assert np.array_equal(smooth, back_smooth[::-1])
    assert np.array_equal(strict, back_strict[::-1])
    assert score_scenes(truth[9:10], SOME[9:10])[0][0] == smooth[9]


def test_objects_are_found_as_they_were_drawn():
    for text in ("a yellow star above a purple cross on black", "four green rings", "two red squares and a red circle"):
        found = find_objects(draw_prompts([text], 3).numpy()[0])
        things = parse(text).things
        assert sorted((blob.colour, blob.shape) for blob in found) == sorted((t.colour, t.shape) for t in things)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_nearer_shape_scores_higher(shape):
    picture = draw_prompts([f"a blue {shape}"], 0).numpy()
    right = score_scenes(picture, [f"a blue {shape}"])[0][0]
    others = [score_scenes(picture, [f"a blue {other}"])[0][0] for other in SHAPES if other != shape]
    assert right > max(others) + 0.15
    assert min(others) > 0.2
    assert score_scenes(picture, [f"a green {shape}"])[0][0] == 0.0


def score(drawn, asked):
    return tuple(float(part[0]) for part in score_scenes(draw_prompts([drawn], 0).numpy(), [asked]))


def test_each_mistake_costs():
    full, _ = score("two red circles", "two red circles")
    assert score("three red circles", "two red circles")[0] < 0.75 * full
    assert score("two red circles", "three red circles")[0] < 0.7 * full
    assert score("two red circles on black", "two red circles")[0] == pytest.approx(0.5 * full, rel=0.1)
    for drawn in ("three red circles", "two red circles on black", "two red stars"):
        assert score(drawn, "two red circles")[1] == 0.0


def test_a_relation_counts_smoothly():
    right, strict = score("a red circle left of a blue star", "a red circle left of a blue star")
    wrong, refused = score("a red circle left of a blue star", "a red circle right of a blue star")
    aside, _ = score("a red circle above a blue star", "a red circle right of a blue star")
    assert (strict, refused) == (1.0, 0.0)
    assert wrong < aside < right


def test_empty_pictures_score_nothing():
    white = np.full((1, 64, 64, 3), 255, np.uint8)
    noise = np.random.default_rng(0).integers(0, 256, (1, 64, 64, 3)).astype(np.uint8)
    assert score_scenes(white, ["a red circle"]) == (0.0, 0.0)
    assert score_scenes(noise, ["a red circle"])[1] == 0.0
    assert len(score_scenes(np.zeros((0, 64, 64, 3), np.uint8), [])[0]) == 0


def test_wrong_input_is_refused(truth):
    with pytest.raises(ValueError, match="uint8"):
        score_scenes(truth[:1].astype(np.float32), SOME[:1])
    with pytest.raises(ValueError, match="2 images but 1 prompts"):
        score_scenes(truth[:2], SOME[:1])
    with pytest.raises(ValueError, match="a cat"):
        score_scenes(truth[:1], ["a cat"])


def test_an_image_costs_about_a_millisecond(truth):
    start = time.process_time()
    score_scenes(truth, SOME)
    assert (time.process_time() - start) / len(SOME) < 0.004
