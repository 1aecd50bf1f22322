"""Records: what follows from them, and that they survive a file."""

import pytest

from solrl_tasks.bench.iteration import report_iterations
from solrl_tasks.bench.report import ReportError, metrics_of, read_report, write_report
from solrl_tasks.tracking.summary import StageCost, Summary
from tests.support.bench_reports import environment, sampled


def test_a_rollout_is_its_first_chunk_and_the_steady_rest():
    timed = sampled("bf16", 10, 11.0, 31.0, 9.6)
    assert timed.steady_seconds == pytest.approx(10.0)
    assert timed.seconds_of(1) == pytest.approx(11.0)
    assert timed.seconds_of(3) == pytest.approx(31.0)
    assert timed.seconds_of(4) == pytest.approx(41.0)
    assert timed.seconds_of(0) == 0.0


def test_the_denoising_time_is_a_median():
    timed = sampled("bf16", 10, 11.0, 31.0, 9.6)
    assert timed.denoise == 9.6
    assert timed.image_step_seconds == pytest.approx(9.6 / 240)


def test_a_single_chunk_that_was_slow_does_not_make_time_run_backwards():
    assert sampled("bf16", 10, 11.0, 9.0, 3.0).steady_seconds == 0.0


def test_speedups_and_the_overhead_of_the_second_stage(rollout_report):
    arm = rollout_report.arm("fp8-two-stage")
    assert rollout_report.speedup(arm, "bf16-full") == pytest.approx(1.6)
    assert rollout_report.speedup(arm, "eager-pipeline") == pytest.approx(2.4)
    assert rollout_report.speedup(arm, "bf16-two-stage") is None
    assert rollout_report.overhead("fp8") == pytest.approx(0.25)
    assert rollout_report.overhead("bf16") is None


def test_an_arm_that_failed_is_no_baseline(rollout_report):
    assert rollout_report.arm("nvfp4-two-stage") is None


def test_an_arms_memory_leaves_out_the_engines_of_others(rollout_report):
    gib = 2**30
    assert rollout_report.needed_bytes(rollout_report.arm("bf16-full")) == (60 - 24 + 16) * gib
    assert rollout_report.needed_bytes(rollout_report.arm("fp8-full")) == (60 - 24 + 8) * gib
    assert rollout_report.needed_bytes(rollout_report.arm("fp8-two-stage")) == 60 * gib


def test_a_report_survives_its_file(rollout_report, tmp_path):
    path = tmp_path / "deeper" / "report.json"
    write_report(rollout_report, path)
    assert read_report(path) == rollout_report


@pytest.mark.parametrize("content", ["", "[]", '{"bench": "rollout"}', '{"bench": "other"}', "{"])
def test_what_is_no_report_is_refused_by_name(content, tmp_path):
    path = tmp_path / "broken.json"
    path.write_text(content)
    with pytest.raises(ReportError, match=r"broken\.json is no report"):
        read_report(path)


def test_an_absent_report_is_refused_by_name(tmp_path):
    with pytest.raises(ReportError, match=r"absent\.json cannot be read"):
        read_report(tmp_path / "absent.json")


def test_metrics_are_flat_and_named_by_what_they_are_of(rollout_report):
    metrics = metrics_of(rollout_report)
    assert metrics["arms/bf16-full/seconds"] == 40.0
    assert metrics["arms/fp8-two-stage/speedup_over_bf16-full"] == pytest.approx(1.6)
    assert metrics["samplings/fp8@6x24/one_seconds"] == 5.0
    assert metrics["model/flops/total"] == 20e12
    assert not any("environment" in name for name in metrics)


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
    with pytest.raises(ValueError, match="1 iterations were run, of which 1 warm up"):
        report_iterations(environment(), {}, {}, [summary(0, 0), summary(1, 9)], warm_up=1, peak_bytes=None)
