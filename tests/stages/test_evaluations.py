"""Stored policies measured for themselves: any role and iteration, beside any other, once."""

import math
import shutil

import pytest

from solrl_tasks.config.load import RecipeError
from solrl_tasks.config.recipe import Recipe
from solrl_tasks.prompts.errors import PromptsError
from solrl_tasks.prompts.read import read_sets
from solrl_tasks.stages.evaluations import (
    PolicyEvaluation,
    ask_rewards,
    evaluated,
    evaluation_recipe,
    measure_policy,
)
from solrl_tasks.stages.iteration import run_all
from solrl_tasks.stages.recorded import PolicyName, StudyError, find_policy, resolve_policy
from solrl_tasks.stages.session import open_session
from solrl_tasks.store.gc import plan_gc
from solrl_tasks.store.root import Store
from solrl_tasks.store.runs import view_run
from tests.support.micro import micro_recipe, write_prompts

DARKNESS = "tests.support.rewards:darkness"
BASE = PolicyName()


@pytest.fixture(scope="module")
def trained(micro_model, tmp_path_factory):
    """A store with a run of two iterations."""
    folder = tmp_path_factory.mktemp("trained")
    with open_session(folder / "store", "run", micro_recipe(micro_model, write_prompts(folder))) as session:
        list(run_all(session))
    return folder / "store"


@pytest.fixture
def measure(trained, tmp_path):
    """Evaluates in a copy of the store; returns the summary and the session that made it."""
    root = tmp_path / "store"
    shutil.copytree(trained, root)
    store = Store(root)

    def run(policy, against=BASE, rewards=None, asked=None):
        policy, against = resolve_policy(store, policy), resolve_policy(store, against)
        recipe = evaluation_recipe(view_run(store, "run").config, asked or {}, rewards)
        job = PolicyEvaluation(policy, against, ask_rewards(recipe, rewards))
        with open_session(root, job.run_id(recipe), recipe) as session:
            return measure_policy(session, job), session

    return run


def test_what_training_measured_is_used_again(measure, trained):
    summary, session = measure(PolicyName("run"))
    assert (session.worker.counters.loads, session.worker.counters.scored) == (0, 0)
    before = view_run(Store(trained), "run").summaries()[2]
    for name in ("eval/colourfulness", "eval/gain_colourfulness", "policy/distance", "policy/diversity"):
        assert summary.metrics[name] == before["metrics"][name]
    assert summary.step == 2
    assert summary.images == ["heldout.png"]
    assert session.run.iteration_dir(2).joinpath("heldout.png").read_bytes().startswith(b"\x89PNG")
    assert summary.notes == [
        "run, iteration 2, ema, against the untrained model",
        "the run trained on colourfulness",
        "2 images of each of 2 prompts, bf16, 2 steps, guidance 1, guidance scale 1",
    ]
    assert evaluated(session.run) == {"policy": "run, iteration 2, ema", "against": "the untrained model"}


def test_an_evaluation_is_made_once(measure):
    first, _ = measure(PolicyName("run"), rewards=[DARKNESS, "colourfulness"])
    again, session = measure(PolicyName("run"), rewards=[DARKNESS, "colourfulness"])
    assert again == first
    assert session.worker.counters.scored == 0


def test_a_result_that_was_lost_is_made_again_and_the_same(measure):
    first, session = measure(PolicyName("run"))
    shutil.rmtree(session.store.path(first.refs["evaluate"]))
    again, session = measure(PolicyName("run"))
    assert again == first
    assert session.store.path(first.refs["evaluate"]).is_dir()


def test_any_reward_is_scored_on_kept_images(measure):
    summary, session = measure(PolicyName("run"), rewards=[DARKNESS])
    assert session.worker.counters.loads == 0
    assert session.worker.counters.scored == 2 * 4
    assert f"eval/{DARKNESS}" in summary.metrics
    assert "eval/colourfulness" not in summary.metrics


def test_a_comparison_has_an_interval_about_its_difference(measure):
    summary, _ = measure(PolicyName("run"), asked={"evaluate.prompts": 4})
    metrics = summary.metrics
    gain, low, high = (metrics[f"{name}_colourfulness"] for name in ("eval/gain", "compare/low", "compare/high"))
    assert low < gain < high
    assert high - gain == pytest.approx(3.182446 * summary.stderr["eval/gain_colourfulness"], rel=1e-5)
    assert metrics["eval/colourfulness"] - metrics["compare/reference_colourfulness"] == pytest.approx(gain, abs=1e-6)
    assert 0 <= metrics["compare/better_colourfulness"] <= 1
    assert all(math.isfinite(value) for value in metrics.values())


def test_roles_and_iterations_are_different_policies(measure):
    found = {}
    for name in (
        PolicyName("run", 1),
        PolicyName("run", 2),
        PolicyName("run", 2, "current"),
        PolicyName("run", 2, "old"),
    ):
        summary, _ = measure(name)
        found[str(name)] = summary.metrics["policy/lora_norm"], summary.metrics["eval/colourfulness"]
    assert len(set(found.values())) == 4


def test_two_policies_are_compared_with_each_other(measure):
    forth, _ = measure(PolicyName("run", 2), PolicyName("run", 1))
    back, _ = measure(PolicyName("run", 1), PolicyName("run", 2))
    assert forth.metrics["eval/gain_colourfulness"] == -back.metrics["eval/gain_colourfulness"]
    assert forth.metrics["compare/low_colourfulness"] == -back.metrics["compare/high_colourfulness"]
    assert forth.metrics["policy/distance"] == back.metrics["policy/distance"] > 0
    assert forth.metrics["policy/diversity_change"] == -back.metrics["policy/diversity_change"]


def test_the_untrained_model_beside_itself_has_gained_nothing(measure):
    summary, session = measure(PolicyName("run", 0))
    assert session.worker.counters.loads == 0
    assert summary.metrics["eval/gain_colourfulness"] == 0
    assert summary.metrics["policy/lora_norm"] == 0


def test_other_seeds_and_steps_are_sampled_and_recorded(measure):
    summary, session = measure(PolicyName("run"), asked={"evaluate.seeds": 3, "evaluate.sampling.steps": 1})
    assert session.recipe.evaluate.sampling.chunk == 1
    assert session.worker.counters.forwards == 2 * 2 * 3
    assert "eval/colourfulness" in summary.metrics


def test_what_an_evaluation_made_is_no_garbage(measure):
    summary, session = measure(PolicyName("run"), asked={"evaluate.sampling.steps": 1})
    garbage = {item.key for item in plan_gc(session.store, min_age_seconds=-1.0)}
    assert not garbage & {ref.key for ref in summary.refs.values()}


def test_an_evaluation_stopped_half_way_goes_on(measure, monkeypatch):
    from solrl_tasks.store.pool import Pool

    write, calls = Pool.write, []

    def stop(self, *arguments):
        calls.append(write(self, *arguments))
        if len(calls) == 3:
            raise KeyboardInterrupt

    steps = {"evaluate.sampling.steps": 1}
    whole, session = measure(PolicyName("run"), asked=steps)
    shutil.rmtree(session.run.path)
    for name in ("evaluate_pool", "reference_pool", "evaluate", "reference"):
        shutil.rmtree(session.store.path(whole.refs[name]))
    monkeypatch.setattr(Pool, "write", stop)
    with pytest.raises(KeyboardInterrupt):
        measure(PolicyName("run"), asked=steps)
    monkeypatch.setattr(Pool, "write", write)
    again, session = measure(PolicyName("run"), asked=steps)
    assert session.worker.counters.forwards == 2
    assert again.results() == whole.results()
    assert again.refs == whole.refs


def test_what_is_not_there_cannot_be_measured(measure, trained):
    store = Store(trained)
    with pytest.raises(StudyError, match=r"no committed iteration 7: it has \[0, 1, 2\]"):
        resolve_policy(store, PolicyName("run", 7))
    with pytest.raises(StudyError, match="of which run"):
        resolve_policy(store, PolicyName(None, 3))
    summary, session = measure(PolicyName("run"))
    with (
        open_session(session.store.root, "other", session.recipe) as other,
        pytest.raises(StudyError, match="trained no policy"),
    ):
        find_policy(other, PolicyName(summary.run_id))


def test_the_recipe_of_an_evaluation():
    config = Recipe().model_copy().model_dump(mode="json")
    config["evaluate"]["sampling"]["chunk"] = 24
    recipe = evaluation_recipe(config, {"evaluate.seeds": 10}, ["scene-strict", "scene", "colourfulness"])
    assert recipe.evaluate.sampling.chunk == 10
    assert [reward.name for reward in recipe.evaluate.rewards] == ["scene-strict", "colourfulness"]
    assert {recipe.explore.engine.name, recipe.regenerate.engine.name} == {"bf16"}
    assert [reward.name for reward in ask_rewards(recipe, None)] == ["scene", "scene-strict", "colourfulness"]
    assert [reward.name for reward in ask_rewards(recipe, ["colourfulness"])] == ["colourfulness"]
    with pytest.raises(RecipeError, match=r"evaluate\.seeds"):
        evaluation_recipe(config, {"evaluate.seeds": 0}, None)


def test_what_a_run_held_out_is_not_trained_on_where_other_prompts_are_asked_for(tmp_path):
    source = write_prompts(tmp_path, "all.txt", 20)
    config = Recipe().model_dump(mode="json")
    config["prompts"] |= {"train": str(source), "heldout": {"fraction": 0.3, "seed": 1}}
    train, heldout = read_sets(Recipe.model_validate(config).prompts)
    (tmp_path / "asked.txt").write_text("\n".join([*heldout.texts, "another"]), encoding="utf-8")
    recipe = evaluation_recipe(config, {"prompts.heldout": str(tmp_path / "asked.txt")}, None)
    again, asked = read_sets(recipe.prompts)
    assert again.texts == train.texts
    assert asked.texts == (*heldout.texts, "another")
    (tmp_path / "asked.txt").write_text(train.texts[0], encoding="utf-8")
    with pytest.raises(PromptsError, match="share 1"):
        read_sets(recipe.prompts)
    assert evaluation_recipe(config, {}, None).prompts.without is None
