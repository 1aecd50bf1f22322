import math

import pytest

from solrl_tasks.bench.comparison.arms import ARMS, TUNING_SEED, PlannedRun, plan_runs, plan_tuning
from solrl_tasks.bench.comparison.report import RunRecord
from solrl_tasks.bench.comparison.tables import rate_rows
from solrl_tasks.bench.comparison.tuning import choose_rates
from solrl_tasks.tracking.summary import Summary


def record(arm, rate, curve):
    run = PlannedRun(arm, "plain", TUNING_SEED, rate)
    summaries = [
        Summary(run_id="r", step=3 * at, timestamp_ms=0, metrics={"eval/scene": value}, stages={})
        for at, value in enumerate(curve)
    ]
    return RunRecord(run, "scene", 1.0, summaries)


def test_tuning_runs_share_nothing_with_the_runs_that_are_compared():
    tuning, compared = plan_tuning(list(ARMS)), plan_runs(list(ARMS), 3, {"ram": 1e-5})
    assert not {run.run_id for run in tuning} & {run.run_id for run in compared}
    assert {run.seed for run in tuning}.isdisjoint(run.seed for run in compared)
    assert len({run.run_id for run in tuning}) == sum(len(arm.rates) for arm in ARMS.values()) == len(tuning)
    assert all(list(arm.rates) == sorted(set(arm.rates)) for arm in ARMS.values())
    assert {run.rate for run in compared if run.arm == "ram"} == {1e-5}
    assert {run.rate for run in compared if run.arm != "ram"} == {None}


def test_the_rate_with_the_highest_end_is_chosen_whatever_came_between():
    curves = {1e-5: [0.3, 0.31, 0.32], 3e-5: [0.3, 0.35, 0.36], 1e-4: [0.3, 0.9, 0.1]}
    (found,) = choose_rates([record("ram", rate, curve) for rate, curve in curves.items()], 6)
    assert found.chosen == 1e-4 and found.at_edge
    curves[1e-4] = [0.3, 0.9, 0.1, 0.1]
    (found,) = choose_rates([record("ram", rate, curves[rate]) for rate in (1e-4, 1e-5, 3e-5)], 6)
    assert found.chosen == 3e-5 and not found.at_edge
    assert [rate for rate, _ in found.tried] == [1e-5, 3e-5, 1e-4]
    assert dict(found.tried)[3e-5] == pytest.approx(0.355)


def test_a_rate_that_did_not_come_to_its_end_is_not_measured():
    records = [record("awm", 1e-5, [0.3, 0.31, 0.32]), record("awm", 3e-5, [0.3, 0.9]), record("ram", 1e-5, [0.3])]
    awm, ram = choose_rates(records, 6)
    assert awm.chosen == 1e-5 and math.isnan(dict(awm.tried)[3e-5])
    assert ram.chosen is None
    assert rate_rows([awm, ram])[1:] == [
        ["awm", "1e-05: 0.315, 3e-05: not measured", "1e-05 (at the edge)", "6"],
        ["ram", "1e-05: not measured", "-", "6"],
    ]
