"""Runs of arms: done once, shared where they agree, resumable, and read back with their cost."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from solrl_tasks.bench.comparison.work import model_work
from solrl_tasks.bench.peaks import nominal_rates
from solrl_tasks.config.recipe import WorkersSpec
from solrl_tasks.engines.base import Availability
from solrl_tasks.stages.iteration import run_all
from solrl_tasks.stages.session import open_session
from solrl_tasks.store.root import Store
from solrl_tasks.store.runs import RunView
from solrl_tasks.studies.arms import arm_recipe, counted_stages, make_arm, plan_runs, study_recipe
from solrl_tasks.studies.controls import controls
from solrl_tasks.studies.forecast import forecast, forecast_rows, forecast_summary
from solrl_tasks.studies.modelled import model_flops, model_iteration
from solrl_tasks.studies.runs import SilentWatcher, execute, read_runs
from solrl_tasks.studies.timing import TIMING_SEED, plan_timing
from solrl_tasks.tracking.summary import Summary

CPU = torch.device("cpu")
EVALUATION = 2 * 2 * 2
"""Forward passes of one evaluation of the micro recipe: prompts x seeds x steps."""
EXPLORE, REGENERATE = 2 * 8 * 2, 2 * 4 * 3
KEPT_SIX = 2 * 8 * 3
"""Blocks of 4 are computed whole."""


def here(name):
    return Availability(name != "nvfp4", "runs on a test" if name != "nvfp4" else "no such units")


@pytest.fixture
def base(recipe_of):
    return study_recipe(recipe_of(), {"explore.engine": {"name": "bf16"}}, 1)


@pytest.fixture
def root(tmp_path):
    return tmp_path / "store"


def runs_of(base, changes, seeds=(1,)):
    arms = [make_arm(name, name, base, fields) for name, fields in changes.items()]
    return plan_runs("study", base, arms, seeds)


def done(root, base, changes, **more):
    """Outcomes by arm, of one seed."""
    runs = runs_of(base, changes)
    found = execute(root, runs, **more)
    return {run.arm.name: outcome for run, outcome in zip(runs, found, strict=True)}


class Told(SilentWatcher):
    def __init__(self):
        self.steps, self.said = [], []

    def progress(self, done, total):
        self.steps.append((done, total))

    def ended(self, outcome):
        self.said.append(str(outcome))


def test_a_second_study_does_no_forward_pass_and_opens_nothing(root, base, monkeypatch):
    changes = {"base": {}, "keep": {"select.keep": 6}}
    first = done(root, base, changes)
    assert all(one.state == "done" and one.forwards > 0 and one.loads > 0 for one in first.values())

    def refuse(*_, **__):
        raise AssertionError("a study that is complete opened a session")

    monkeypatch.setattr("solrl_tasks.studies.runs.open_session", refuse)
    again = done(root, base, changes)
    assert {(one.state, one.step, one.forwards, one.loads) for one in again.values()} == {("there", 1, 0, 0)}


def test_another_study_of_the_same_arms_loads_no_weights(root, base):
    done(root, base, {"base": {}})
    # Another name, so other runs: every stage is found in the store.
    other = execute(root, plan_runs("other", base, [make_arm("base", "", base, {})], [1]))
    assert [(one.state, one.forwards, one.loads) for one in other] == [("done", 0, 0)]


def test_one_changed_value_touches_only_what_depends_on_it(root, base):
    first = done(root, base, {"base": {}})["base"]
    assert first.forwards == EXPLORE + REGENERATE + 2 * EVALUATION
    changed = done(
        root,
        base,
        {
            "selector": {"select.rule": "extremes_random"},
            "keep": {"select.keep": 6},
            "candidates": {"explore.candidates": 12},
            "advantage": {"update.advantage": "pool"},
            "steps": {"explore.steps": 3},
        },
    )
    spent = {name: one.forwards - EVALUATION for name, one in changed.items()}
    # None of them pays for the baseline again, and those below selection explore nothing.
    assert spent["advantage"] == 0
    assert 0 <= spent["selector"] <= REGENERATE
    assert 0 < spent["keep"] <= KEPT_SIX
    assert 2 * 4 * 2 <= spent["candidates"] <= 2 * 4 * 2 + REGENERATE
    assert 2 * 8 * 3 <= spent["steps"] <= 2 * 8 * 3 + REGENERATE


def test_arms_have_the_same_baseline_and_the_same_first_pool(root, base):
    changes = {
        "base": {},
        "keep": {"select.keep": 6},
        "more": {"explore.candidates": 12},
        "lot": {"select.rule": "random_keep"},
    }
    done(root, base, changes)
    store = Store.open(root)
    summaries = [
        [Summary.model_validate(one) for one in RunView(store, run.run_id).summaries().values()]
        for run in runs_of(base, changes)
    ]
    assert len({one[0].refs["evaluate_pool"].digest for one in summaries}) == 1
    assert len({one[1].refs["explore"].key for one in summaries}) == 1
    assert len({one[0].metrics["eval/colourfulness"] for one in summaries}) == 1


def test_a_run_that_fails_ends_no_other_and_is_named(root, base):
    changes = {"one": {}, "bad": {"update.optimizer.lr": 0.5, "rewards": [{"name": "tests.support.rewards:missing"}]}}
    told = Told()
    found = execute(root, [*runs_of(base, changes), *runs_of(base, {"two": {"select.keep": 6}})], watcher=told)
    assert [one.state for one in found] == ["done", "failed", "done"]
    assert "missing" in found[1].error and "failed" in told.said[1]
    assert told.steps[0] == (0, 6) and told.steps[-1] == (4, 6)


def test_time_ends_runs_between_iterations_and_the_same_call_goes_on(root, base, monkeypatch):
    longer = study_recipe(base, {}, 2)
    assert {one.state for one in execute(root, runs_of(longer, {"a": {}}), seconds=-1)} == {"not begun"}
    assert not (root / "runs").exists() or not list((root / "runs").glob("study-*"))
    clock = iter([0.0, 0.0, 0.0, 0.0] + [99.0] * 50)
    monkeypatch.setattr("solrl_tasks.studies.runs.time.time", lambda: next(clock))
    (stopped,) = execute(root, runs_of(longer, {"a": {}}), seconds=10)
    assert stopped.state == "stopped" and 0 <= stopped.step < 2
    monkeypatch.undo()
    (rest,) = execute(root, runs_of(longer, {"a": {}}))
    assert (rest.state, rest.step) == ("done", 2)
    with pytest.raises(ValueError, match="parallel is 0"):
        execute(root, [], parallel=0)


def test_runs_of_actors_are_not_run_beside_each_other(root, base):
    runs = [
        replace(run, recipe=run.recipe.model_copy(update={"workers": WorkersSpec(kind="ray")}))
        for run in runs_of(base, {"a": {}})
    ]
    with pytest.raises(ValueError, match=r"parallel is 2, but workers.kind of .* is ray.*Set parallel to 1"):
        execute(root, runs, parallel=2)
    assert not root.exists()


def test_more_iterations_go_on_with_the_same_runs(root, base):
    done(root, base, {"a": {}})
    (more,) = done(root, study_recipe(base, {}, 2), {"a": {}}).values()
    assert more.state == "done" and more.forwards <= EXPLORE + REGENERATE + EVALUATION


@pytest.mark.slow
def test_processes_end_in_the_same_bits_and_note_that_they_shared_the_device(tmp_path, base):
    changes = {"a": {}, "b": {"select.keep": 6}}
    runs = runs_of(base, changes, seeds=(1, 2))
    alone, beside = tmp_path / "alone", tmp_path / "beside"
    assert {one.state for one in execute(alone, runs)} == {"done"}
    assert {one.state for one in execute(beside, runs, parallel=2)} == {"done"}
    ours, theirs = (read_runs(Store.open(root), runs) for root in (alone, beside))
    for one, other in zip(ours, theirs, strict=True):
        assert [s.results() for s in one.summaries] == [s.results() for s in other.summaries]
        assert (one.processes, one.shared) == (1, False) and (other.processes, other.shared) == (2, True)


# What was committed


def test_records_have_measured_and_modelled_cost_of_counted_stages_alone(root, base):
    family = controls(base, here).choose(["bf16-4of4", "bf16-8full", "bf16-explore", "solrl-fp8"])
    runs = plan_runs(family.name, family.base, family.arms, [1])
    assert {one.state for one in execute(root, runs)} == {"done"}
    store = Store.open(root)
    records = {record.arm.name: record for record in read_runs(store, runs, "NVIDIA B200")}
    assert set(records) == {arm.name for arm in family.arms}
    assert all(record.last_step >= record.recipe.iterations for record in records.values())
    rates, flops = nominal_rates("NVIDIA B200"), model_flops(store, base.model)
    for name, record in records.items():
        steps, values = record.curve()
        assert steps == [0, 1] and len(values) == 2 and record.last_step == 1
        measured = record.device_seconds(1)
        counted = record.arm.counted
        assert record.measured_seconds(1) == pytest.approx(sum(s for n, s in measured.items() if n in counted))
        assert record.measured_seconds(1) <= sum(measured.values()) and record.measured_seconds(1) > 0
        work = model_work(record.recipe, flops, rates=rates).model_dump()
        assert record.modelled_seconds() == pytest.approx(sum(work[n] for n in work if n in counted))
        assert record.timing is None and record.timed_seconds() is None
        assert record.hardware and not record.shared, name
    # The first counts 4 regenerated, the second 8 explored in as many steps and nothing twice.
    of = {name: record.modelled.by_stage(record.arm.counted) for name, record in records.items()}
    assert set(of["bf16-4of4"]) == {"regenerate", "update"} and set(of["bf16-8full"]) == {"explore", "update"}
    assert of["bf16-8full"]["explore"] == pytest.approx(2 * of["bf16-4of4"]["regenerate"])
    assert of["solrl-fp8"]["explore"] < of["bf16-explore"]["explore"]


def test_hardware_without_units_for_a_precision_has_no_modelled_seconds(root, base):
    Store.open(root)
    flops = model_flops(Store.open(root), base.model)
    nvfp4 = arm_recipe(base, {"explore.engine": {"name": "nvfp4-emulated"}}, "x")
    found = model_iteration(nvfp4, flops, "NVIDIA H200")
    assert found.work is None and "nvfp4" in found.reason and found.seconds(frozenset({"update"})) is None
    assert model_iteration(nvfp4, flops, "NVIDIA B200").work is not None
    with pytest.raises(ValueError, match="no rates are known of 'abacus'"):
        model_iteration(base, flops, "abacus")


def test_an_exploration_that_lends_its_statistics_is_modelled_as_it_is_counted(root, base):
    flops = model_flops(Store.open(root), base.model)
    lending = arm_recipe(base, {"explore.candidates": base.select.keep, "update.advantage": "pool"}, "x")
    counted = counted_stages(lending)
    assert "explore" in counted, "statistics of the whole pool enter its advantages, though all of it is kept"
    assert model_iteration(lending, flops, "NVIDIA B200").by_stage(counted)["explore"] > 0


def test_operations_are_counted_once_for_a_model(root, base, monkeypatch):
    first = model_flops(Store.open(root), base.model)
    monkeypatch.setattr("solrl_tasks.studies.modelled._count", lambda *_: pytest.fail("counted again"))
    assert model_flops(Store.open(root), base.model) == first


def test_repeated_regeneration_is_what_was_explored(root, base):
    """The rule that leaves regeneration out of the cost holds: it draws the same images."""
    (record,) = (arm for arm in controls(base, here).arms if arm.name == "bf16-8full")
    (run,) = plan_runs("controls", base, [record], [1])
    execute(root, [run])
    with open_session(root, run.run_id, run.recipe) as session:
        from solrl_tasks.stages.plan import plan_explore, plan_regenerate
        from solrl_tasks.stages.update import first_policy
        from solrl_tasks.store.selections import load_selection

        summary = Summary.model_validate(session.run.summary(1))
        pool = plan_explore(session, 1, first_policy(session))
        chosen = load_selection(session.store, summary.refs["select"]).indices
        (name,) = pool.reward_ids()
        explored = pool.open(session).rewards(name, pool.candidates)
        again = plan_regenerate(session, pool, chosen).open(session).rewards(name)
        for row in range(len(chosen)):
            assert again[row] == pytest.approx(explored[row][chosen[row]], abs=1e-5)


# Timing


def test_timing_runs_have_the_device_and_a_seed_of_their_own(root, base):
    arms = [make_arm("a", "", base, {}), make_arm("b", "", base, {"select.keep": 6})]
    timings = plan_timing(base, arms, iterations=2)
    assert {run.seed for run in timings} == {TIMING_SEED}
    assert all(run.recipe.evaluate.every == 0 and run.recipe.iterations == 2 for run in timings)
    runs = plan_runs("study", base, arms, [1])
    execute(root, runs)
    store = Store.open(root)
    assert all(record.timing is None for record in read_runs(store, runs, timings=timings))
    execute(root, timings)
    records = read_runs(store, runs, timings=timings)
    for record in records:
        assert set(record.timing) == {"quantize", "explore", "regenerate", "update"}
        assert record.timed_seconds() == pytest.approx(sum(record.timing.values())) and record.timed_seconds() > 0


# Forecast


def test_a_forecast_is_what_is_then_done(root, base):
    changes = {"base": {}, "keep": {"select.keep": 6}, "more": {"explore.candidates": 12}}
    runs = runs_of(base, changes)
    before = forecast(None, runs, CPU)
    assert (before.missing, before.seconds) == (6, None)
    assert "No estimate" in forecast_summary(before) and "never measured" in forecast_summary(before)
    first, keep, more = before.arms
    # The first pays for the shared baseline; 8 of the 12 candidates are there for the last.
    assert first.forwards == EXPLORE + REGENERATE + 2 * EVALUATION
    assert keep.forwards == KEPT_SIX + EVALUATION
    assert more.forwards == 2 * 4 * 2 + REGENERATE + EVALUATION
    spent = execute(root, runs)
    assert sum(one.forwards for one in spent) <= before.forwards
    assert spent[0].forwards == first.forwards
    after = forecast(Store.open(root), runs, CPU)
    assert (after.missing, after.forwards, after.seconds) == (0, 0, 0.0)
    assert "nothing is to be computed" in forecast_summary(after)
    assert before.note == after.note == ""
    spread = base.model_copy(update={"workers": WorkersSpec(kind="ray", address="head:6379")})
    away = forecast(None, runs_of(spread, changes), CPU)
    assert "the cluster at head:6379" in forecast_summary(away)


BRIGHT = {"rewards": [{"name": "brightness"}]}
PICTURES = {"explore.store_images": "lossless", "evaluate.store_images": "lossless"}
STUDIES = {
    "other rewards, nothing kept to score": {"base": {}, "bright": BRIGHT},
    "other rewards of kept images": {"base": PICTURES, "bright": {**PICTURES, **BRIGHT}},
    "images that only the second asks for": {"base": {}, "seen": PICTURES},
    "images of the first few": {"base": PICTURES, "more": {**BRIGHT, "explore.candidates": 12}},
    "what is learned from the same samples": {"base": {}, "slow": {"update.optimizer.lr": 1e-4}},
    "what is only watched": {"base": {}, "watched": {"evaluate.rewards": [{"name": "brightness"}]}},
    "what is only named": {"base": {}, "named": {"tracking.experiment": "other", "evaluate.seeds": 4}},
    "another rule and adapter": {"lot": {"select.rule": "random_keep"}, "small": {"update.lora.rank": 2}, "base": {}},
}


@pytest.mark.parametrize("changes", STUDIES.values(), ids=STUDIES)
def test_what_is_planned_is_what_is_computed(root, base, changes):
    base = base.model_copy(update={"iterations": 2})
    runs = runs_of(base, changes)
    planned = forecast(None, runs, CPU)
    spent = execute(root, runs)
    assert not [one for one in spent if one.state != "done"]
    assert [arm.forwards for arm in planned.arms] == [one.forwards for one in spent]
    store = Store.open(root)
    assert forecast(store, runs, CPU).forwards == 0
    # The same arms under other names, as a grid has them: every step is to be committed, and nothing computed.
    again = runs_of(base, {f"grid-{name}": fields for name, fields in changes.items()})
    found = forecast(store, again, CPU)
    assert (found.forwards, found.missing) == (0, 3 * len(changes))
    assert sum(arm.trained_rows for arm in found.arms) == 0 and found.seconds == 0.0
    assert sum(one.forwards for one in execute(root, again)) == 0


def test_what_another_run_left_counts_only_where_it_is_the_same_and_there(root, base, recipe_of):
    runs = runs_of(base, {"base": {}})
    with open_session(root, "before", base.model_copy(update={"seed": 1, "name": "mine"})) as session:
        for _ in run_all(session):
            pass
    store = Store.open(root)
    full = forecast(None, runs, CPU).forwards
    assert forecast(store, runs, CPU).forwards == 0 < full
    assert forecast(store, runs_of(base, {"base": {}}, [2]), CPU).forwards == full - EVALUATION
    shutil.rmtree(root / RunView(store, "before").refs(1)["regenerate"].path)
    assert forecast(store, runs, CPU).forwards == REGENERATE
    # Prompts of the same name and other contents are other prompts.
    recipe_of()
    source = Path(base.prompts.train)
    source.write_text(source.read_text().replace("circle", "star"), encoding="utf-8")
    assert forecast(store, runs, CPU).forwards == full


def test_time_is_estimated_from_like_runs_of_this_device_alone(root, base):
    execute(root, runs_of(base, {"base": {}}))
    store = Store.open(root)
    known = forecast(store, runs_of(base, {"keep": {"select.keep": 6}}), CPU)
    assert known.seconds is not None and known.seconds > 0
    other = forecast(store, runs_of(base, {"fp8": {"explore.engine": {"name": "fp8"}}}), CPU)
    assert other.seconds is None and other.arms[0].unmeasured == ("explore",)
    assert forecast_rows(other)[0]["device time"] == "not measured: explore"
    assert forecast(store, runs_of(base, {"keep": {"select.keep": 6}}), CPU, threads=7).seconds is None


def test_a_forecast_makes_nothing(tmp_path, base):
    forecast(None, runs_of(base, {"base": {}}), CPU)
    assert not (tmp_path / "store").exists()
