import numpy as np
import pytest

from solrl_tasks.prompts.read import read_prompts
from solrl_tasks.rewards import scene, scene_strict
from solrl_tasks.rewards.pixels import enlarge
from solrl_tasks.scenes.renderer import draw_prompts

PROMPTS = ["a red circle", "two green stars and a blue ring on black", "a red circle"]


@pytest.mark.parametrize(("module", "name"), [(scene, "scene"), (scene_strict, "scene-strict")])
def test_a_reward_module_offers_its_reward(module, name):
    reward = module.REWARD()
    assert (reward.name, reward.version, reward.range) == (name, "1", (0.0, 1.0))
    images = draw_prompts(PROMPTS, 0).numpy()
    images[2] = images[1]
    scores = reward(images, PROMPTS, [{}] * 3)
    assert scores.shape == (3,)
    assert scores.dtype == np.float32
    assert scores[0] > 0.8
    assert scores[1] > 0.8
    assert scores[2] < 0.1


def test_the_strict_reward_is_all_or_nothing():
    images = draw_prompts(PROMPTS, 0).numpy()
    scores = scene_strict.REWARD()(images, ["a red circle", "two green stars", "a red star"], [{}] * 3)
    assert scores.tolist() == [1.0, 0.0, 0.0]


def test_true_pictures_of_half_the_side_are_read_right_once_they_are_enlarged():
    """Why images that are explored smaller are enlarged before they are scored."""
    prompts = [prompt.text for prompt in read_prompts("scenes:heldout").prompts]
    small = draw_prompts(prompts, 3, 32).numpy()
    strict = scene_strict.REWARD()
    assert strict(enlarge(small, 64), prompts, [{}] * len(prompts)).mean() == 1.0
    assert strict(small, prompts, [{}] * len(prompts)).mean() < 0.95


def test_a_prompt_outside_the_grammar_is_named():
    with pytest.raises(ValueError, match="'a portrait of a cat'"):
        scene.REWARD()(draw_prompts(PROMPTS[:1], 0).numpy(), ["a portrait of a cat"], [{}])
