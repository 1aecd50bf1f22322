"""The page of a study of arms, from records made by hand: figures that can be checked, and what has to be said."""

import pytest

from solrl_tasks.bench.comparison.work import Work
from solrl_tasks.config.load import load_recipe
from solrl_tasks.engines.base import Availability
from solrl_tasks.reports.html import render_html
from solrl_tasks.reports.page import Table
from solrl_tasks.studies.arm_study import ArmStudy
from solrl_tasks.studies.arms import arm_recipe, study_recipe
from solrl_tasks.studies.arms_page import arm_rows, arms_curves, arms_metrics, arms_page, arms_summary
from solrl_tasks.studies.controls import controls
from solrl_tasks.studies.modelled import Modelled
from solrl_tasks.studies.runs import ArmRecord, Outcome
from solrl_tasks.tracking.summary import StageCost, Summary
from tests.studies.test_arms import EMBEDDED

SECONDS = {"quantize": 0.5, "explore": 4.0, "regenerate": 2.0, "update": 1.0, "evaluate": 9.0}
TIMED = {"quantize": 0.25, "explore": 2.0, "regenerate": 1.0, "update": 0.5}
ENVIRONMENT = {"hardware": "Abacus 9", "device_class": "cpu", "threads": 1}


def here(name):
    return Availability(name != "nvfp4", "no such units")


@pytest.fixture(scope="module")
def family():
    return controls(study_recipe(load_recipe(EMBEDDED), {}, 4), here)


def record(family, name, seed, rewards, processes=1, timing=None):
    (arm,) = [arm for arm in family.arms if arm.name == name]
    cost = {
        stage: StageCost(seconds=9, device_seconds=value, attributed_seconds=value, state="Completed")
        for stage, value in SECONDS.items()
    }
    summaries = tuple(
        Summary(run_id="r", step=step, timestamp_ms=0, metrics={"eval/scene": reward}, stages=cost if step else {})
        for step, reward in enumerate(rewards)
    )
    work = Work(explore=0.008, regenerate=0.004, update=0.002)
    return ArmRecord(
        arm=arm,
        seed=seed,
        run_id=f"controls-{name}-seed{seed}",
        recipe=arm_recipe(family.base, arm.changes, name),
        summaries=summaries,
        modelled=Modelled("NVIDIA B200", {"bf16": 1e15}, work),
        processes=processes,
        timing=timing,
        hardware="Abacus 9 (CPU, 1 thread)",
        environment=ENVIRONMENT,
    )


def study(family, records, outcomes=()):
    return ArmStudy("Controls", family, (1, 2), 4, tuple(records), tuple(outcomes), "NVIDIA B200")


def records_of(family, **more):
    """Rises of .3 and .5 in the baseline, .6 and .8 in another arm; the ends are means of three evaluations."""
    plain = [[0.1, 0.4, 0.4, 0.4, 0.4], [0.1, 0.6, 0.6, 0.6, 0.6]]
    better = [[0.1, 0.7, 0.7, 0.7, 0.7], [0.1, 0.9, 0.9, 0.9, 0.9]]
    return [
        record(family, name, seed, values, **more)
        for name, curves in (("bf16-24of24", plain), ("solrl-nvfp4", better), ("bf16-96full", better))
        for seed, values in zip((1, 2), curves, strict=True)
    ]


def table(page, start):
    (found,) = [block for block in page.blocks if isinstance(block, Table) and block.caption.startswith(start)]
    return found


def rows(found):
    return {row[0]: dict(zip(found.columns, row, strict=True)) for row in found.rows}


def test_gains_are_over_seeds_and_differences_between_runs_of_one_seed(family):
    found = {row["arm"]: row for row in arm_rows(study(family, records_of(family)))}
    assert found["bf16-24of24"]["gain"] == "0.4000 ± 0.1" and found["bf16-24of24"]["less bf16-24of24"] == "-"
    assert found["solrl-nvfp4"]["end"] == "0.8000 ± 0.1" and found["solrl-nvfp4"]["untrained"] == "0.1000"
    assert found["solrl-nvfp4"]["less bf16-24of24"].startswith("+0.3000 (+0.3000 to")
    assert found["solrl-nvfp4"]["explored by"] == "nvfp4-emulated (emulated)"
    assert found["solrl-fp8"]["seeds"] == "0 of 2" and found["solrl-fp8"]["gain"] == "-"
    metrics = arms_metrics(study(family, records_of(family)))
    assert metrics["gain/solrl-nvfp4"] == pytest.approx(0.7) and metrics["end/bf16-24of24"] == pytest.approx(0.5)
    curve = arms_curves(study(family, records_of(family)))["eval/scene/bf16-24of24"]
    assert curve == [(0, pytest.approx(0.1)), *((step, pytest.approx(0.5)) for step in range(1, 5))]


def test_the_summary_says_whether_the_best_arm_is_told_from_another(family):
    best = arms_summary(study(family, records_of(family)))
    assert "rose most in **solrl-nvfp4**, by 0.7000 ± 0.1 (standard error over 2 training seeds)" in best
    assert "; over bf16-24of24 that is +0.3000 (+0.3000 to +0.3000)" in best
    worse = [record(family, "solrl-nvfp4", seed, [0.1, *[reward] * 4]) for seed, reward in ((1, 0.2), (2, 0.5))]
    baseline = arms_summary(study(family, [*records_of(family)[:2], *worse]))
    assert "rose most in **bf16-24of24**" in baseline and "; over solrl-nvfp4 that is +0.1500 (" in baseline
    assert "not resolved from 0" in baseline
    fallen = [record(family, "solrl-nvfp4", seed, [0.9, *[0.8] * 4]) for seed in (1, 2)]
    assert "rose in no arm, and fell least in **solrl-nvfp4**, by -0.1" in arms_summary(study(family, fallen))
    alone = arms_summary(study(family, records_of(family)[::2]))
    assert "(of one training seed)" in alone and "standard error" not in alone


def test_measured_and_modelled_cost_stand_apart_and_count_by_the_rule(family):
    page = arms_page(study(family, records_of(family)), ["solrl study controls"])
    measured, modelled = table(page, "Measured device-seconds"), table(page, "Modelled milliseconds")
    assert (measured.provenance.kind, modelled.provenance.kind) == ("measured", "modelled")
    assert "Abacus 9" in measured.provenance.line and "NVIDIA B200" in modelled.provenance.line
    cost = rows(measured)
    assert cost["solrl-nvfp4"]["counted"] == "7.5" and cost["solrl-nvfp4"]["taken"] == "alone"
    assert (cost["bf16-24of24"]["explore"], cost["bf16-24of24"]["counted"]) == ("[4]", "3")
    assert (cost["bf16-96full"]["regenerate"], cost["bf16-96full"]["counted"]) == ("[2]", "5.5")
    cost = rows(modelled)
    assert [cost[name]["counted"] for name in ("solrl-nvfp4", "bf16-24of24", "bf16-96full")] == ["14", "6", "10"]
    why = {row[0]: row[2] for row in table(page, "Which stages count").rows}
    assert "chooses nothing" in why["bf16-24of24"] and "repeats" in why["bf16-96full"]
    assert {"Held-out reward over measured device-seconds", "Held-out reward over modelled GPU-hours"} <= {
        getattr(block, "caption", "") for block in page.blocks
    }
    assert any(section.title == "Time to reward" for section in page.sections)


def test_seconds_of_a_shared_device_say_so_each_and_are_not_drawn(family):
    page = arms_page(study(family, records_of(family, processes=4)), ["x"])
    measured = table(page, "Measured device-seconds")
    for row in measured.rows:
        assert all("(shared)" in cell for cell in row[1:-1]), row
    assert "up to 4 processes shared the device" in measured.note and "--timing" in measured.note
    captions = {getattr(block, "caption", "") for block in page.blocks}
    assert "Held-out reward over measured device-seconds" not in captions
    assert "measured_seconds/solrl-nvfp4" not in arms_metrics(study(family, records_of(family, processes=4)))
    unknown = table(arms_page(study(family, records_of(family, processes=None)), ["x"]), "Measured")
    assert "unknown number of processes" in unknown.note


def test_a_run_that_had_the_device_for_itself_gives_honest_seconds(family):
    page = arms_page(study(family, records_of(family, processes=4, timing=TIMED)), ["x"])
    measured = table(page, "Measured device-seconds")
    assert "(shared)" not in str(measured.rows) and measured.note == ""
    assert rows(measured)["solrl-nvfp4"]["counted"] == "3.75"
    assert rows(measured)["bf16-24of24"]["taken"] == "alone, in a timing run"
    assert arms_metrics(study(family, records_of(family, processes=4, timing=TIMED)))[
        "measured_seconds/bf16-24of24"
    ] == pytest.approx(1.5)


def test_what_is_not_complete_failed_or_cannot_run_is_said(family):
    some = [
        *records_of(family)[:2],
        record(family, "solrl-nvfp4", 1, [0.1, 0.2]),
    ]
    outcomes = [
        Outcome("controls-a", "failed", 1, error="Traceback\nRuntimeError: the device is gone"),
        Outcome("controls-b", "stopped", 1, 3.0, forwards=7, loads=1),
    ]
    found = study(family, some, outcomes)
    text = arms_summary(found)
    assert "Failed: controls-a." in text and "1 run is not complete" in text
    assert "This time: 7 forward passes, 1 load of weights." in text
    page = arms_page(found, ["x"])
    assert "RuntimeError: the device is gone" in render_html(page)
    assert {row["arm"]: row["seeds"] for row in arm_rows(found)}["solrl-nvfp4"] == "0 of 2"
    nothing = study(family, [])
    assert "No run of 4 iterations is complete yet" in arms_summary(nothing)
    render_html(arms_page(nothing, ["x"]))


def test_a_page_is_the_same_for_the_same_records(family):
    one, other = (render_html(arms_page(study(family, records_of(family)), ["x"])) for _ in range(2))
    assert one == other
