import pytest

from solrl_tasks.config.recipe import RewardSpec
from solrl_tasks.rewards.base import RewardError
from solrl_tasks.rewards.fitness import require_dependable, require_fitting
from solrl_tasks.stages.session import prepare
from tests.support.micro import micro_recipe, write_prompts


def spec(url, **options):
    return RewardSpec(name="remote", options={"url": url, "reward": "pixel", "version": "7", **options})


def test_an_optional_reward_with_a_weight_is_refused():
    far = spec("http://127.0.0.1:1", required=False)
    with pytest.raises(RewardError, match=r"has the weight 1 but is not required: .* Set weight: 0 to watch it"):
        require_dependable(far)
    require_dependable(far.model_copy(update={"weight": 0.0}))
    require_dependable(spec("http://127.0.0.1:1"))
    require_dependable(RewardSpec(name="colourfulness"))


def test_such_a_recipe_is_refused_before_it_runs(micro_model, tmp_path):
    from solrl_tasks.stages.session import prepare
    from tests.support.micro import micro_recipe, write_prompts

    far = {**spec("http://127.0.0.1:1", required=False).model_dump(), "weight": 0.5}
    rewards = [{"name": "colourfulness"}, far]
    with pytest.raises(RewardError, match=r"'remote' has the weight 0\.5 but is not required"):
        prepare(micro_recipe(micro_model, write_prompts(tmp_path), rewards=rewards), tmp_path)
    far["weight"] = 0.0
    prepare(micro_recipe(micro_model, write_prompts(tmp_path), rewards=rewards), tmp_path)


@pytest.mark.parametrize(
    ("reward", "fits", "fails", "message"),
    [
        ({"name": "ocr"}, ('a sign "A"', {}), ("a sign", {}), "quotes no text"),
        (
            {"name": "ocr", "options": {"single_quotes": True}},
            ("a sign 'A'", {}),
            ('a 12" pizza', {}),
            "nothing closes",
        ),
        ({"name": "ocr", "options": {"punctuation": "ignore"}}, ('a "!A"', {}), ('a "!!"', {}), "no letter left"),
        (
            {"name": "composition"},
            ("a red dog", {"include": [{"class": "dog", "color": "red"}]}),
            ("a dog", {}),
            'no metadata "include"',
        ),
        (
            {"name": "composition-strict", "options": {"colours": None}},
            ("a dog", {"include": [{"class": "dog"}]}),
            ("a red dog", {"include": [{"class": "dog", "color": "red"}]}),
            "names no model that tells them",
        ),
        ({"name": "scene"}, ("a red circle", {}), ("a cat", {}), "a cat"),
        ({"name": "scene-strict"}, ("a red circle", {}), ("a cat", {}), "a cat"),
    ],
)
def test_prompts_that_a_reward_cannot_score_are_found_before_they_are_sampled(reward, fits, fails, message):
    weighted = RewardSpec.model_validate(reward)
    require_fitting(weighted, [fits], "here")
    with pytest.raises(RewardError, match="cannot score 2 of the 3 prompts of here, the first is prompt 2") as raised:
        require_fitting(weighted, [fits, fails, fails], "here")
    assert message in str(raised.value)
    require_fitting(weighted.model_copy(update={"weight": 0.0}), [fails], "here")


def test_rewards_that_cannot_know_are_not_asked():
    require_fitting(RewardSpec(name="colourfulness"), [("anything", {})], "here")


def test_a_recipe_with_unfit_prompts_is_refused(micro_model, tmp_path):
    prompts = write_prompts(tmp_path)
    with pytest.raises(RewardError, match=r"'ocr' cannot score 5 of the 5 prompts of prompts\.train"):
        prepare(micro_recipe(micro_model, prompts, rewards=[{"name": "ocr"}]), tmp_path)
