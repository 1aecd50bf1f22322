"""Iterations timed by their summaries."""

import pytest

from solrl_tasks.bench.iteration import report_iterations
from solrl_tasks.tracking.summary import StageCost, Summary
from tests.support.bench_reports import environment


def summary(step: int, at: int, **stages: tuple[float, float]) -> Summary:
    costs = {
        name: StageCost(seconds=wall, device_seconds=work, attributed_seconds=work, state="Completed")
        for name, (wall, work) in stages.items()
    }
    return Summary(run_id="r", step=step, timestamp_ms=at, metrics={}, stages=costs)


def test_orchestration_is_the_wall_time_that_no_device_work_fills():
    history = [
        summary(0, 1000, evaluate=(2.0, 1.5)),
        summary(1, 61_000, explore=(50.0, 20.0), update=(5.0, 5.0)),
        summary(2, 91_000, explore=(21.0, 20.0), select=(0.5, 0.0), update=(6.0, 6.0)),
        summary(3, 123_000, explore=(22.0, 21.0), select=(0.5, 0.0), update=(7.0, 7.0)),
    ]
    report = report_iterations(environment(), {}, {}, history, warm_up=1, peak_bytes=None)
    assert [cost.seconds for cost in report.iterations] == [60.0, 30.0, 32.0]
    assert [cost.orchestration_seconds for cost in report.warm] == [4.0, 4.0]
    assert report.fixed_seconds == pytest.approx(4.0)
    assert report.share == pytest.approx(8 / 62)


def test_a_run_that_only_warms_up_has_no_average():
    with pytest.raises(ValueError, match="1 iteration ran, of which 1 to warm up"):
        report_iterations(environment(), {}, {}, [summary(0, 0), summary(1, 9)], warm_up=1, peak_bytes=None)
