"""The rule of saturation on curves whose answer is known."""

import math

import numpy as np
import pytest

from solrl_tasks.analysis.saturation import find_saturation

STEPS = [2, 4, 6, 8, 10]


def curve(means, units=24, noise=0.05, seed=0, own=0.2):
    """Units that differ by a level of their own, which pairing takes out, and by noise at each step count."""
    random = np.random.default_rng(seed)
    level = own * random.standard_normal(units)
    return np.array(means)[:, None] + level + noise * random.standard_normal((len(means), units))


def test_a_curve_that_becomes_flat_saturates_where_it_does():
    found = find_saturation(STEPS, curve([0.1, 0.3, 0.6, 0.6, 0.6]))
    assert found.step == 6
    assert found.left is not None
    assert found.left.low <= 0 <= found.left.high
    assert found.reason == f"reached at 6 steps: higher counts gain at most {found.left.high:.2g}"


def test_a_curve_that_still_rises_is_not_said_to_saturate():
    found = find_saturation(STEPS, curve([0.1, 0.3, 0.5, 0.7, 0.9]))
    assert (found.step, found.reason) == (None, "not reached within 10 steps")
    assert found.left is not None
    assert found.left.mean == pytest.approx(0.2, abs=0.03)
    assert found.left.low > 0


def test_a_curve_that_is_flat_from_the_first_saturates_there():
    assert find_saturation(STEPS, curve([0.4] * 5)).step == 2


def test_a_dip_is_no_saturation():
    assert find_saturation(STEPS, curve([0.1, 0.6, 0.4, 0.6, 0.9])).step is None
    assert find_saturation(STEPS, curve([0.1, 0.9, 0.4, 0.6, 0.7])).step == 4


def test_exact_curves_need_no_noise():
    exact = curve([0.2, 0.5, 1.0, 1.0, 1.0], noise=0.0, own=0.0)
    assert find_saturation(STEPS, exact).step == 6
    assert find_saturation(STEPS, curve([0.1, 0.2, 0.3, 0.4, 0.5], noise=0.0)).step is None


def test_few_units_leave_a_gain_unseen_and_say_how_large_it_may_be():
    noisy = find_saturation([2, 4], curve([0.4, 0.45], units=4, noise=0.3, seed=1))
    assert noisy.step == 2
    assert noisy.left is not None
    assert noisy.left.high > 0.05
    assert find_saturation([2, 4], curve([0.4, 0.45], units=400, noise=0.05)).step is None


def test_how_often_a_flat_curve_is_said_to_rise():
    """The rule errs about as often as its level says; picking the best of four makes it a little more often."""
    late = sum(find_saturation(STEPS, curve([0.4] * 5, seed=seed), resamples=400).step != 2 for seed in range(200))
    assert late / 200 < 0.15


def test_units_without_a_value_are_left_out_of_a_comparison():
    values = curve([0.1, 0.3, 0.6, 0.6, 0.6])
    values[4, :20] = np.nan
    values[:, 0] = np.nan
    assert find_saturation(STEPS, values).step == 6
    hopeless = find_saturation(STEPS, np.full((5, 3), np.nan))
    assert (hopeless.step, hopeless.left) == (None, None)
    assert "nothing can be told" in hopeless.reason
    assert "nothing can be told" in find_saturation(STEPS, values[:, 30:31]).reason


def test_one_step_count_is_no_curve():
    found = find_saturation([6], curve([0.4]))
    assert (found.step, found.left, found.reason) == (None, None, "one step count is no curve")


@pytest.mark.parametrize("steps", [[2, 2, 4, 6, 8], [4, 2, 6, 8, 10], [2, 4]])
def test_steps_must_increase_and_fit(steps):
    with pytest.raises(ValueError, match="must increase"):
        find_saturation(steps, curve([0.1, 0.3, 0.6, 0.6, 0.6]))


def test_the_same_values_give_the_same_answer():
    values = curve([0.1, 0.55, 0.57, 0.6, 0.6])
    assert find_saturation(STEPS, values, seed=3) == find_saturation(STEPS, values, seed=3)
    assert not math.isnan(find_saturation(STEPS, values).left.low)
