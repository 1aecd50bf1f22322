import math

import numpy as np
import pytest

from solrl_tasks.analysis.budgets import at_budgets, common_budget, reward_at, verdict
from solrl_tasks.analysis.curves import Curves
from solrl_tasks.analysis.estimates import Estimate

PLACES = np.arange(5.0)


def curves(slopes, cost, seeds=None):
    """Lines from 0.1, one a seed, whose iterations cost the same."""
    rewards = 0.1 + np.outer(slopes, PLACES)
    return Curves(tuple(seeds or range(1, len(slopes) + 1)), PLACES, rewards, np.tile(PLACES * cost, (len(slopes), 1)))


def test_rewards_at_equal_cost_and_their_paired_difference():
    cheap, dear = curves([0.1, 0.12, 0.14], 1.0), curves([0.3, 0.32, 0.34], 2.0)
    assert common_budget({"cheap": cheap, "dear": dear}) == 4
    half, whole = at_budgets(dear, cheap, (2.0, 4.0))
    # Two of the cheap iterations for one of the dear: 0.3 - 0.2, 0.32 - 0.24, 0.34 - 0.28.
    assert half.reward.mean == pytest.approx(0.42) and half.difference.mean == pytest.approx(0.08)
    assert whole.difference.mean == pytest.approx(0.16)
    assert half.difference.stderr == pytest.approx(0.02 / math.sqrt(3))
    assert (half.verdict, whole.verdict) == ("higher", "higher")
    # The interval of three pairs reaches 4.3 standard errors.
    assert half.low < 0.08 - 4 * half.difference.stderr and half.high > 0.08 + 4 * half.difference.stderr
    assert at_budgets(cheap, dear, (2.0,))[0].difference.mean == pytest.approx(-0.08)


def test_the_unit_of_costs_changes_nothing():
    dear, cheap = curves([0.3, 0.31], 2.0), curves([0.1, 0.1], 1.0)
    hours = [curves(slopes, cost / 3600) for slopes, cost in (([0.3, 0.31], 2.0), ([0.1, 0.1], 1.0))]
    one, same = at_budgets(dear, cheap, (3.0,))[0], at_budgets(*hours, (3.0 / 3600,))[0]
    assert one.difference.mean == pytest.approx(same.difference.mean)
    assert (one.low, one.high, one.verdict) == (pytest.approx(same.low), pytest.approx(same.high), same.verdict)


def test_runs_that_end_before_the_budget_are_left_out_and_counted():
    arm = curves([0.1, 0.2], 1.0)
    assert np.isnan(reward_at(arm, 4.5)).all() and reward_at(arm, 4.0) == pytest.approx([0.5, 0.9])
    mixed = Curves((1, 2), PLACES, arm.rewards, PLACES * np.array([[1.0], [0.5]]))
    found = at_budgets(mixed, arm, (3.0,))[0]
    assert (found.reward.n, found.reward.excluded) == (1, 1)
    assert (found.difference.n, found.verdict) == (1, "not resolved")


def test_only_common_seeds_are_paired():
    found = at_budgets(curves([0.2, 0.5], 1.0, seeds=(2, 3)), curves([0.9, 0.1], 1.0, seeds=(1, 2)), (1.0,))[0]
    assert found.difference.n == 1 and found.difference.mean == pytest.approx(0.1)
    assert found.reward.n == 2
    with pytest.raises(ValueError, match="no pair"):
        at_budgets(curves([0.2], 1.0, seeds=(2,)), curves([0.2], 1.0), (1.0,))
    with pytest.raises(ValueError, match="at least one arm"):
        common_budget({})


def test_verdicts():
    assert verdict(Estimate(mean=0.1, stderr=0.01, n=8)) == "higher"
    assert verdict(Estimate(mean=-0.1, stderr=0.01, n=8)) == "lower"
    assert verdict(Estimate(mean=0.1, stderr=0.06, n=8)) == "not resolved"
    assert verdict(Estimate(mean=0.1, stderr=math.nan, n=1)) == "not resolved"


def test_intervals_hold_the_true_difference_as_often_as_they_say():
    held, trials = 0, 400
    random = np.random.default_rng(0)
    for _ in range(trials):
        shared = random.normal(0, 0.05, 5)
        arm, base = (curves(slope + shared + random.normal(0, 0.01, 5), 1.0) for slope in (0.15, 0.1))
        found = at_budgets(arm, base, (2.0,))[0]
        held += found.low <= 0.1 <= found.high
    assert 0.92 * trials <= held <= 0.98 * trials
