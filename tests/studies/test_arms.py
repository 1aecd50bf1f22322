"""Arms: what each changes and leaves alone, what counts as its cost, and which runs they are."""

from pathlib import Path

import pytest

from solrl_tasks.config.load import RecipeError, load_recipe
from solrl_tasks.config.recipe import ExtensionSpec, WorkersSpec
from solrl_tasks.engines.base import Availability
from solrl_tasks.studies.ablation import FACTORS, Source, ablation, read_factor
from solrl_tasks.studies.arms import (
    COSTED,
    QUIET,
    Arm,
    ArmError,
    arm_name,
    arm_recipe,
    counted_stages,
    make_arm,
    plan_runs,
    study_recipe,
)
from solrl_tasks.studies.controls import controls

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
EMBEDDED = CONFIGS / "embedded.yaml"
NO_BLACKWELL = {"nvfp4": Availability(False, "no such units"), "ray": Availability(False, "")}
ALL = frozenset(COSTED)


def cpu(name):
    return NO_BLACKWELL.get(name, Availability(True, "runs on a test"))


def everything(name):
    return Availability(True, "runs on a test")


@pytest.fixture(scope="module")
def base():
    return study_recipe(load_recipe(EMBEDDED), {})


def recipes(family):
    return {arm.name: arm_recipe(family.base, arm.changes, arm.name) for arm in family.arms}


def factor(text, base, available=cpu):
    return read_factor(text, base, available, Source(EMBEDDED, lambda name: CONFIGS / name))


def one_at_a_time(base, *words, available=cpu, grid=False):
    return ablation(base, [factor(word, base, available) for word in words], available, grid)


# Controls


def test_controls_are_the_published_arms_and_the_missing_ones(base):
    family = controls(base, cpu)
    assert [arm.name for arm in family.arms] == [
        "bf16-24of24", "bf16-96full", "bf16-explore", "solrl-nvfp4", "solrl-fp8", "nvfp4-direct", "random-24of96",
    ]  # fmt: skip
    assert family.baseline == "bf16-24of24" and family.absent == {}
    found = {
        name: (
            one.explore.candidates, one.explore.engine.name, one.explore.steps,
            one.regenerate.engine.name, one.regenerate.steps, one.select.rule,
        )
        for name, one in recipes(family).items()
    }  # fmt: skip
    assert found == {
        "bf16-24of24": (24, "bf16", 10, "bf16", 10, "best_worst"),
        "bf16-96full": (96, "bf16", 10, "bf16", 10, "best_worst"),
        "bf16-explore": (96, "bf16", 6, "bf16", 10, "best_worst"),
        "solrl-nvfp4": (96, "nvfp4-emulated", 6, "bf16", 10, "best_worst"),
        "solrl-fp8": (96, "fp8", 6, "bf16", 10, "best_worst"),
        "nvfp4-direct": (96, "nvfp4-emulated", 10, "nvfp4-emulated", 10, "best_worst"),
        "random-24of96": (96, "nvfp4-emulated", 6, "bf16", 10, "random_keep"),
    }


def test_controls_share_everything_else(base):
    for one in recipes(controls(base, cpu)).values():
        assert (one.update, one.evaluate, one.prompts, one.model, one.rewards) == (
            base.update, base.evaluate, base.prompts, base.model, base.rewards,
        )  # fmt: skip
        assert one.evaluate.sampling.engine.name == "bf16" and one.select.keep == 24


def test_what_counts_as_cost(base):
    counted = {arm.name: arm.counted for arm in controls(base, cpu).arms}
    assert counted == {
        "bf16-24of24": {"regenerate", "update"},
        "random-24of96": {"regenerate", "update"},
        "bf16-96full": {"quantize", "explore", "update"},
        "nvfp4-direct": {"quantize", "explore", "update"},
        "bf16-explore": ALL,
        "solrl-nvfp4": ALL,
        "solrl-fp8": ALL,
    }


def test_exploration_that_lends_its_statistics_counts_even_where_it_chooses_nothing(base):
    by_lot = {"select.rule": "random_keep"}
    assert counted_stages(arm_recipe(base, by_lot, "x")) == {"regenerate", "update"}
    assert counted_stages(arm_recipe(base, {**by_lot, "update.advantage": "pool"}, "x")) == ALL
    scaled = {**by_lot, "rewards": [{"name": "scene", "normalize": "pool"}]}
    assert counted_stages(arm_recipe(base, scaled, "x")) == ALL


def test_regeneration_counts_where_it_draws_other_images_than_exploration(base):
    full = {"explore.engine": {"name": "bf16"}, "explore.steps": 10}
    assert "regenerate" not in counted_stages(arm_recipe(base, full, "x"))
    for other in (
        {"explore.steps": 9},
        {"explore.sampler": "euler"},
        {"explore.resolution": 32},
        {"explore.engine": {"name": "fp8"}},
        {
            "update.objective": {"name": "grpo", "options": {}},
            "regenerate.sampler": "euler",
            "explore.sampler": "euler",
        },
    ):
        assert "regenerate" in counted_stages(arm_recipe(base, {**full, **other}, "x")), other


def test_nvfp4_is_real_where_the_hardware_has_it_and_the_arm_says_which(base):
    emulated = {arm.name: arm for arm in controls(base, cpu).arms}["solrl-nvfp4"]
    assert "emulated" in emulated.note and "no such units" in emulated.note
    family = controls(base, everything)
    assert recipes(family)["solrl-nvfp4"].explore.engine.name == "nvfp4"
    assert recipes(family)["nvfp4-direct"].regenerate.engine.name == "nvfp4"
    assert "in hardware" in {arm.name: arm for arm in family.arms}["solrl-nvfp4"].note


def test_an_engine_that_is_not_there_takes_its_arms_out_and_is_named(base):
    def without_fp8(name):
        return Availability(False, "no Triton") if name == "fp8" else cpu(name)

    family = controls(base, without_fp8)
    assert "solrl-fp8" not in {arm.name for arm in family.arms}
    assert family.absent == {"solrl-fp8": "fp8: no Triton"}
    with pytest.raises(ArmError, match=r"solrl-fp8: fp8: no Triton"):
        family.choose(["solrl-fp8"])
    with pytest.raises(ArmError, match="no arm nope; there is bf16-24of24"):
        family.choose(["nope"])
    assert [arm.name for arm in family.choose(["bf16-explore"]).arms] == ["bf16-24of24", "bf16-explore"]


def test_controls_of_ones_own_recipe_have_its_numbers_and_options(base):
    own = study_recipe(
        load_recipe(EMBEDDED),
        {
            "explore.candidates": 32,
            "select.keep": 8,
            "explore.resolution": 32,
            "explore.engine": {"name": "nvfp4-emulated", "options": {"activation_scale": "row", "execution": "eager"}},
        },
    )
    found = recipes(controls(own, cpu))
    assert {"bf16-8of8", "bf16-32full", "random-8of32"} <= set(found)
    assert found["bf16-8of8"].explore.chunk == 8 and found["bf16-32full"].explore.chunk == 48
    assert found["bf16-32full"].explore.resolution == 64 and found["solrl-fp8"].explore.resolution == 32
    assert found["solrl-nvfp4"].explore.engine.options == {"activation_scale": "row", "execution": "eager"}
    assert found["solrl-fp8"].explore.engine.options == {"execution": "eager"}
    with pytest.raises(ArmError, match="nothing is chosen"):
        controls(study_recipe(own, {"explore.candidates": 8}), cpu)


# Ablation


def test_one_factor_differs_at_a_time(base):
    family = one_at_a_time(base, "explore.steps=2,4,6,8", "select.keep=12,24")
    assert [arm.name for arm in family.arms] == [
        "base", "explore.steps-2", "explore.steps-4", "explore.steps-8", "select.keep-12",
    ]  # fmt: skip
    for name, one in recipes(family).items():
        differing = sum((one.explore.steps != base.explore.steps, one.select.keep != base.select.keep))
        assert differing == (name != "base")


def test_a_grid_is_every_combination_once(base):
    family = one_at_a_time(base, "explore.steps=2,6", "select.keep=12,24", grid=True)
    pairs = {(one.explore.steps, one.select.keep) for one in recipes(family).values()}
    assert pairs == {(2, 12), (2, 24), (6, 12), (6, 24)} and len(family.arms) == 4


@pytest.mark.parametrize("name", FACTORS)
def test_every_named_factor_has_usual_values_that_make_arms(name, base):
    family = one_at_a_time(base, name)
    assert len(family.arms) > 1 and family.arms[0].name == "base"
    assert len({arm.name for arm in family.arms}) == len(family.arms)


def test_the_usual_values_are_those_of_the_published_tables(base):
    assert [one.explore.steps for one in recipes(one_at_a_time(base, "steps")).values()] == [6, 2, 4, 8]
    assert [one.explore.candidates for one in recipes(one_at_a_time(base, "candidates")).values()] == [96, 24, 48, 72]
    assert {one.select.rule for one in recipes(one_at_a_time(base, "selector")).values()} == {
        "best_worst", "mean_deviation", "extremes_random", "random_keep",
    }  # fmt: skip
    precise = recipes(one_at_a_time(base, "precision"))
    assert [one.explore.engine.name for one in precise.values()] == ["nvfp4-emulated", "bf16", "fp8"]
    objectives = {one.update.objective.name for one in recipes(one_at_a_time(base, "objective")).values()}
    assert {"nft", "ram", "awm", "grpo"} <= objectives and "adjoint-matching" not in objectives


def test_arms_that_differ_in_candidates_have_one_chunk_that_divides_them_all(base):
    assert {one.explore.chunk for one in recipes(one_at_a_time(base, "candidates")).values()} == {24}
    assert {one.explore.chunk for one in recipes(one_at_a_time(base, "candidates=48,192")).values()} == {48}
    # One of 2 would be 24 times as many blocks.
    assert {one.explore.chunk for one in recipes(one_at_a_time(base, "candidates=50,96")).values()} == {48}
    assert {one.explore.chunk for one in recipes(one_at_a_time(base, "steps")).values()} == {48}
    assert {one.regenerate.chunk for one in recipes(one_at_a_time(base, "keep=12,48")).values()} == {12}
    assert {one.regenerate.chunk for one in recipes(one_at_a_time(base, "candidates")).values()} == {24}


def test_objectives_come_by_name_by_options_or_from_a_recipe_file(base):
    words = "objective=ram,{name: nft, options: {beta: 0.1}},embedded-flow-grpo.yaml"
    found = recipes(one_at_a_time(base, words))
    assert found["objective-ram"].update.objective.name == "ram"
    assert found["objective-ram"].update.optimizer == base.update.optimizer
    (nft,) = [one for name, one in found.items() if "beta" in name]
    assert nft.update.objective.options == {"beta": 0.1}
    grpo = found["objective-embedded-flow-grpo"]
    assert (grpo.update.objective.name, grpo.regenerate.sampler, grpo.update.optimizer_steps) == ("grpo", "euler", 2)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["explore.steps"], "has no values"),
        (["explore.steps="], "no values after"),
        (["explore.steps=2", "steps=4"], "explore.steps is varied twice"),
        ([], "nothing is varied"),
        (["explore.stpes=2"], "stpes is not a known field"),
        (["explore.steps=0"], "explore.steps"),
        (["select.keep=97"], "keep fewer seeds"),
        (["precision=nvfp4"], "no such units"),
        (["explore.steps=[2"], "no list"),
        (["seed=1,2"], "seed 1: seed cannot be changed in a study of arms: .*--seeds"),
        (["iterations=2"], "--iterations"),
        (["workers.kind=ray"], "write it into the recipe file"),
        (["explore.resolution=32,null"], "explore.resolution has no value"),
    ],
)
def test_what_cannot_be_varied_is_refused_in_words(words, told, base):
    with pytest.raises((ArmError, RecipeError), match=told.replace("(", r"\(")):
        one_at_a_time(base, *words)


def test_the_usual_precisions_leave_out_what_is_not_there(base):
    def bare(name):
        return Availability(name in ("bf16", "nvfp4-emulated"), "not here")

    family = one_at_a_time(base, "precision", available=bare)
    assert [arm.name for arm in family.arms] == ["base", "precision-bf16"] and "precision-fp8" in family.absent


def test_a_cluster_elsewhere_is_trusted_with_what_was_named(base, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    away = base.model_copy(update={"workers": WorkersSpec(kind="ray", address="head:6379")})

    def bare(name):
        return Availability(name in ("bf16", "nvfp4-emulated"), f"no {name} units")

    family = controls(away, bare)
    assert [arm.name for arm in family.arms] == [arm.name for arm in controls(base, bare).arms], "nobody named fp8"
    assert "no fp8 units" in family.absent["solrl-fp8"] and "head:6379 may have it" in family.absent["solrl-fp8"]
    assert [arm.name for arm in family.choose(["solrl-fp8"]).arms] == ["bf16-24of24", "solrl-fp8"]
    named = one_at_a_time(away, "precision=fp8", available=bare)
    assert [arm.name for arm in named.arms] == ["base", "precision-fp8"] and not named.absent
    of_recipe = away.model_copy(
        update={"explore": away.explore.model_copy(update={"engine": ExtensionSpec(name="fp8")})}
    )
    assert "base" in {arm.name for arm in one_at_a_time(of_recipe, "steps", available=bare).arms}
    own = base.model_copy(update={"workers": WorkersSpec(kind="ray")})
    with pytest.raises(ArmError, match="no fp8 units"):
        one_at_a_time(own, "precision=fp8", available=bare)
    with pytest.raises(ArmError, match="no fp8 units"):
        controls(own, bare).choose(["solrl-fp8"])


# Runs


def test_runs_come_seed_by_seed_and_are_named_by_what_decides_them(base):
    arms = [make_arm("a", "", base, {}), make_arm("b", "", base, {"explore.steps": 4})]
    runs = plan_runs("study", base, arms, [1, 2])
    assert [(run.arm.name, run.seed) for run in runs] == [("a", 1), ("b", 1), ("a", 2), ("b", 2)]
    assert len({run.run_id for run in runs}) == 4
    assert all(run.recipe.seed == run.seed for run in runs)
    longer = plan_runs("study", base.model_copy(update={"iterations": 99}), arms, [1, 2])
    assert [run.run_id for run in longer] == [run.run_id for run in runs]
    other = plan_runs("study", study_recipe(base, {"update.optimizer.lr": 0.1}), arms, [1])
    assert {run.run_id for run in other}.isdisjoint(run.run_id for run in runs)


def test_names_and_seeds_stand_once(base):
    arm = Arm("a", "", {}, ALL)
    with pytest.raises(ArmError, match="arm a stands twice"):
        plan_runs("study", base, [arm, arm], [1])
    with pytest.raises(ArmError, match="seed 3 stands twice"):
        plan_runs("study", base, [arm], [3, 3])


def test_names_are_fit_for_runs():
    assert arm_name("update.objective {name: ram, options: {a: 1}}") == "update.objective-name-ram-options-a-1"
    one, other = arm_name("x" * 90 + "1"), arm_name("x" * 90 + "2")
    assert len(one) <= 48 and one != other


@pytest.mark.parametrize("changes", [{"seed": 2}, {"iterations": 2}, {"workers.kind": "ray"}, {"explore.steps": None}])
def test_what_would_change_nothing_is_no_change_of_all_arms(changes):
    with pytest.raises(ArmError, match=next(iter(changes))):
        study_recipe(load_recipe(EMBEDDED), changes)


def test_a_study_is_quiet_unless_it_is_told_otherwise():
    recipe = load_recipe(EMBEDDED)
    quiet = study_recipe(recipe, {}, 3)
    assert (quiet.audit.every, quiet.tracking.grid_prompts, quiet.explore.store_images) == (0, 0, "none")
    assert quiet.iterations == 3 and study_recipe(recipe, {}).iterations == recipe.iterations
    assert study_recipe(recipe, {"audit.every": 2}).audit.every == 2
    assert set(QUIET) <= {"audit.every", "tracking.grid_prompts", "explore.store_images", "evaluate.store_images"}
