"""Runs made by hand, with numbers that can be checked by hand."""

import math

import pytest

from solrl_tasks.analysis.estimates import Estimate
from solrl_tasks.bench.comparison.arms import PlannedRun
from solrl_tasks.bench.comparison.gradients import GradientCosines
from solrl_tasks.bench.comparison.report import NothingToCompareError, RunRecord, compare
from solrl_tasks.bench.comparison.tables import page, plots
from solrl_tasks.tracking.summary import StageCost, Summary


def record(arm, how, seed, rewards, seconds=3600.0, distance=0.1, every=1, **others):
    """A run with these held-out rewards, one every so many iterations, with eight optimizer steps in each."""
    cost = StageCost(seconds=9, device_seconds=9, attributed_seconds=2.0, state="Completed")
    summaries = []
    for step, reward in enumerate(rewards):
        at = step * every
        metrics = {"eval/scene": reward, **{name: values[step] for name, values in others.items()}}
        if step:
            metrics |= {"train/optimizer_steps": 8.0 * at, "policy/distance": distance * at}
        stages = {"update": cost} if step else {}
        summaries.append(Summary(run_id="r", step=at, timestamp_ms=0, metrics=metrics, stages=stages))
    return RunRecord(PlannedRun(arm, how, seed), "scene", seconds, summaries)


def only(items, **wanted):
    (found,) = [item for item in items if all(getattr(item, name) == value for name, value in wanted.items())]
    return found


GRPO = [record("flow-grpo", "plain", 1, [0.1, 0.3, 0.2]), record("flow-grpo", "plain", 2, [0.1, 0.5, 0.3])]
RAM = [record("ram", "plain", 1, [0.1, 0.4, 0.6]), record("ram", "plain", 2, [0.1, 0.2, 0.4])]


def test_curves_are_means_over_seeds_over_all_that_was_spent():
    arm = only(compare(GRPO).arms, arm="flow-grpo")
    assert (arm.seeds, arm.iterations, arm.optimizer_steps, arm.hours) == ((1, 2), (0, 1, 2), (0, 8, 16), (0, 1, 2))
    assert [one.mean for one in arm.curve] == pytest.approx([0.1, 0.4, 0.25])
    assert arm.curve[1].stderr == pytest.approx(0.1)
    assert arm.gain.mean == pytest.approx(0.15) and arm.peak == 1
    assert arm.device_seconds == {"update": 2.0}


def test_a_run_that_is_not_as_far_shortens_the_curve_and_one_without_evaluations_is_left_out():
    arm = only(compare([GRPO[0], record("flow-grpo", "plain", 2, [0.1, 0.5])]).arms)
    assert arm.iterations == (0, 1)
    assert only(compare([GRPO[0], record("flow-grpo", "plain", 2, [0.1])]).arms).seeds == (1,)
    with pytest.raises(NothingToCompareError, match="0 of 1 run "):
        compare([record("ram", "plain", 1, [0.1])])


def test_ram_reaches_the_peak_of_flow_grpo_or_it_does_not():
    found = only(compare([*GRPO, *RAM]).reaches)
    # Means of RAM 0.1, 0.3, 0.5 against a peak of 0.4 at step 8.
    assert (found.level, found.peak_step, found.step, found.last_step) == (pytest.approx(0.4), 8, 16, 16)
    assert found.each == {1: (8, 8), 2: (8, None)}
    assert "| plain | 0.4000 | 8 | 16 | 0.5 | 1 of 2 |" in page(compare([*GRPO, *RAM]))
    low = [record("ram", "plain", 1, [0.1, 0.2, 0.2])]
    assert only(compare([*GRPO, *low]).reaches).step is None
    assert "not reached in 16 | not reached" in page(compare([*GRPO, *low]))


def test_a_rival_that_never_rises_is_no_measure():
    flat = [record("flow-grpo", "plain", 1, [0.4, 0.3, 0.2])]
    assert "no rise to compare with" in page(compare([*flat, *RAM]))


def test_gains_are_paired_by_seed_and_compared_at_equal_hours_too():
    two = [
        record("ram", "two-stage", seed, curve, seconds=7200.0)
        for seed, curve in ((1, [0.1, 0.5, 0.9]), (2, [0.1, 0.4, 0.7]))
    ]
    gain = only(compare([*two, *RAM, record("ram", "two-stage", 3, [0.1, 0.9, 0.9])]).gains)
    assert gain.seeds == (1, 2)
    assert [one.mean for one in gain.difference] == pytest.approx([0.0, 0.15, 0.3])
    # Twice the cost: plain spent two hours by its second iteration, two-stage by its first: 0.5 - 0.6, 0.4 - 0.4.
    assert gain.equal_hours.mean == pytest.approx(-0.05)


def test_at_equal_trained_reward_the_others_are_read_between_measurements():
    strict = {"eval/scene-strict": [0.5, 0.3, 0.1]}
    ram = record("ram", "plain", 1, [0.0, 0.2, 0.4], **{"eval/scene-strict": [0.5, 0.5, 0.5]})
    free = record("awm-free", "plain", 1, [0.0, 0.4, 0.8], distance=1.0, **strict)
    levels = compare([ram, free]).levels
    top = only(levels, arm="awm-free", level=0.4)
    assert (top.step.mean, top.others["policy/distance"].mean) == (8, 1.0)
    assert top.others["eval/scene-strict"].mean == pytest.approx(-0.2)
    half = only(levels, arm="awm-free", level=0.2)
    assert (half.step.mean, half.others["policy/distance"].mean) == (pytest.approx(4), pytest.approx(0.5))
    assert half.others["eval/scene-strict"].mean == pytest.approx(-0.1)
    assert only(levels, arm="ram", level=0.4).others["eval/scene-strict"].mean == 0
    assert math.isnan(top.others["eval/colourfulness"].mean)
    assert compare([record("ram", "plain", 1, [0.3, 0.2])]).levels == ()


def test_page_and_plots_hold_everything():
    two = [record("ram", "two-stage", 1, [0.1, 0.5, 0.9])]
    one = Estimate(mean=0.25, stderr=0.01, n=4)
    gradients = GradientCosines(samples=4, gradients=9, steps=10, eta=0.7, renoised=one, path=one, policy=one)
    found = compare([*two, *RAM, *GRPO]).model_copy(update={"gradients": gradients})
    text = page(found)
    for title in ("Arms", "Two-stage selection", "Optimizer steps until", "At equal trained", "Gradients of one"):
        assert f"## {title}" in text
    names = [
        f"{how}-{axis}" for how in ("two-stage", "plain") for axis in ("iterations", "optimizer-steps", "gpu-hours")
    ]
    drawn = plots(found)
    assert set(drawn) == {*names, "two-stage-gain"}
    assert all(picture.startswith(b"\x89PNG") for picture in drawn.values())
    assert found == type(found).model_validate_json(found.model_dump_json())
