"""The figures of a report, flat."""

import pytest

from solrl_tasks.bench.reports.metrics import metrics_of


def test_metrics_are_flat_and_named_by_what_they_are_of(rollout_report):
    metrics = metrics_of(rollout_report)
    assert metrics["arms/bf16-full/seconds"] == 40.0
    assert metrics["arms/fp8-two-stage/speedup_over_bf16-full"] == pytest.approx(1.6)
    assert metrics["samplings/fp8@6x24/one_seconds"] == 5.0
    assert metrics["model/flops/total"] == 20e12
    assert not any("environment" in name for name in metrics)
