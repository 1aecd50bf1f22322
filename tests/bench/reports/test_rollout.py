"""What follows from the arms of a rollout's report."""

import pytest


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
