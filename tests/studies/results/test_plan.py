from pathlib import Path

import pytest

from solrl_tasks.config.load import load_recipe
from solrl_tasks.engines.base import Availability
from solrl_tasks.studies.arms import ArmError, arm_recipe
from solrl_tasks.studies.results.plan import METHOD, Settings, plan_results

RECIPE = load_recipe(Path(__file__).resolve().parents[3] / "configs" / "embedded.yaml")
CONTROLS = (
    "bf16-24of24", "bf16-96full", "bf16-explore", "solrl-nvfp4", "solrl-fp8", "nvfp4-direct", "random-24of96",
)  # fmt: skip
ABLATED = ("steps-2", "steps-4", "steps-8", "candidates-48", "candidates-72")


def available(*missing):
    return lambda name: Availability(name not in ("nvfp4", *missing), f"about {name}")


@pytest.fixture(scope="module")
def plan():
    return plan_results(RECIPE, Settings(micro_batch=32), available())


def test_what_is_the_same_run_is_run_once(plan):
    assert tuple(arm.name for arm in plan.controls) == CONTROLS
    assert tuple(arm.name for arm in plan.ablated) == ABLATED
    assert plan.roles.steps == {6: METHOD, 2: "steps-2", 4: "steps-4", 8: "steps-8"}
    assert plan.roles.candidates == {24: "bf16-24of24", 96: METHOD, 48: "candidates-48", 72: "candidates-72"}
    assert {plan.roles.baseline, plan.roles.precise, plan.roles.method, plan.roles.direct} <= set(CONTROLS)


def test_arms_differ_from_the_method_in_their_knob_alone(plan):
    trees = {arm.name: arm_recipe(plan.base, arm.changes, arm.name) for arm in (*plan.controls, *plan.ablated)}
    method = trees[METHOD]
    for steps in (2, 4, 8):
        explore = method.explore.model_copy(update={"steps": steps})
        assert trees[f"steps-{steps}"] == method.model_copy(update={"explore": explore})
    for count in (48, 72):
        explore = method.explore.model_copy(update={"candidates": count, "chunk": count})
        assert trees[f"candidates-{count}"] == method.model_copy(update={"explore": explore})


def test_all_runs_are_alike_but_for_the_arm(plan):
    for arm in (*plan.controls, *plan.ablated):
        recipe = arm_recipe(plan.base, arm.changes, arm.name)
        samplings = (recipe.explore, recipe.regenerate, recipe.evaluate.sampling)
        assert {sampling.engine.options["execution"] for sampling in samplings} == {"eager"}
        assert (recipe.evaluate.every, recipe.audit.every, recipe.update.micro_batch) == (3, 0, 32)
        assert recipe.evaluate.sampling.engine.name == "bf16" and recipe.select.keep == 24
        assert recipe.explore.chunk == recipe.explore.candidates and recipe.iterations == 30


def test_runs_come_seed_by_seed_and_the_ablations_end_first(plan):
    runs = plan.runs(3, 2)
    assert len(runs) == 3 * len(CONTROLS) + 2 * len(ABLATED) == len({run.run_id for run in runs})
    assert [run.seed for run in runs] == [1] * 12 + [2] * 12 + [3] * 7
    assert tuple(run.arm.name for run in runs[:12]) == (*CONTROLS, *ABLATED)
    assert {run.seed for run in plan.runs(1, 2) if run.arm.name in CONTROLS} == {1}


def test_more_iterations_are_the_same_runs(plan):
    longer = plan_results(RECIPE, Settings(micro_batch=32, iterations=60), available())
    assert [run.run_id for run in longer.runs(1, 1)] == [run.run_id for run in plan.runs(1, 1)]
    other = plan_results(RECIPE, Settings(micro_batch=48), available())
    assert not {run.run_id for run in other.runs(1, 1)} & {run.run_id for run in plan.runs(1, 1)}


def test_arms_can_be_chosen(plan):
    few = plan.choose(["steps-2", METHOD])
    assert [arm.name for arm in (*few.controls, *few.ablated)] == [METHOD, "steps-2"]
    assert plan.choose(None) is plan
    with pytest.raises(ArmError, match="there is no arm steps-3; there is bf16-24of24"):
        plan.choose(["steps-3"])


def test_engines_that_are_not_here_take_their_arms_along():
    plan = plan_results(RECIPE, Settings(), available("fp8"))
    assert "about fp8" in plan.absent["solrl-fp8"] and "solrl-fp8" not in plan.roles.races
    assert plan.engine("solrl-fp8") is None and plan.engine(METHOD) == "nvfp4-emulated"
    with pytest.raises(ArmError, match=r"solrl-fp8 .*about fp8"):
        plan.choose(["solrl-fp8"])
    real = plan_results(RECIPE, Settings(), lambda name: Availability(True, name))
    assert real.engine(METHOD) == "nvfp4"


def test_changes_of_all_recipes_stand_below_those_of_arms():
    plan = plan_results(RECIPE, Settings(changes={"explore.steps": 4, "evaluate.seeds": 2}), available())
    assert plan.roles.steps[4] == METHOD and "steps-6" in plan.roles.steps.values()
    assert all(run.recipe.evaluate.seeds == 2 for run in plan.runs(1, 1))
