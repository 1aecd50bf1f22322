"""The arithmetic of what is possible, against the figures that were worked out by hand."""

import pytest

from solrl_tasks.bench.ceiling import (
    RolloutShape,
    floor_seconds,
    ideal_rollout_speedup,
    rollout_speedup,
    step_speedup,
)

PAPER = RolloutShape(candidates=96, keep=24, explore_steps=6, full_steps=10)
MODELS = {
    # TFLOP an image and step, and of it in quantisable layers; then step and rollout at 2 and 4 times.
    "flux-512": (21.50, 19.83, 1.86, 3.24, 1.74, 2.30),
    "flux-1024": (74.39, 59.49, 1.67, 2.50, 1.64, 2.04),
    "sd3.5-512": (7.98, 7.28, 1.84, 3.17, 1.74, 2.28),
    "sd3.5-1024": (31.12, 23.86, 1.62, 2.35, 1.61, 1.98),
    "sana-512": (0.837, 0.814, 1.95, 3.70, 1.79, 2.43),
    "sana-1024": (2.967, 2.895, 1.95, 3.73, 1.79, 2.43),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_table_of_what_is_possible(name):
    total, quantisable, fp8_step, fp4_step, fp8_rollout, fp4_rollout = MODELS[name]
    assert step_speedup(total, quantisable, 2) == pytest.approx(fp8_step, abs=0.006)
    assert step_speedup(total, quantisable, 4) == pytest.approx(fp4_step, abs=0.02)
    assert ideal_rollout_speedup(PAPER, total, quantisable, 2) == pytest.approx(fp8_rollout, abs=0.006)
    assert ideal_rollout_speedup(PAPER, total, quantisable, 4) == pytest.approx(fp4_rollout, abs=0.011)


@pytest.mark.parametrize(("factor", "expected"), [(2, 1.82), (4, 2.50), (1, 1.18)])
def test_everything_faster_by_a_factor(factor, expected):
    assert ideal_rollout_speedup(PAPER, 1.0, 1.0, factor) == pytest.approx(expected, abs=0.006)


def test_a_free_exploration_is_the_limit():
    assert rollout_speedup(PAPER, 1.0, 0.0) == pytest.approx(4.0)


def test_the_general_form_is_the_papers_at_its_split():
    base, cheap = 39.7, 27.2
    assert rollout_speedup(PAPER, base, cheap) == pytest.approx(960 * base / (576 * cheap + 240 * base))


def test_keeping_everything_at_full_steps_only_costs():
    shape = RolloutShape(candidates=8, keep=8, explore_steps=4, full_steps=4)
    assert rollout_speedup(shape, 1.0, 1.0) == pytest.approx(0.5)


def test_the_floor_of_a_step():
    assert floor_seconds(21.50e12, 19.83e12, 790e12, 790e12) == pytest.approx(27.2e-3, abs=1e-4)
    assert floor_seconds(10.0, 6.0, 2.0, 4.0) == pytest.approx(3.5)
