"""Reward at equal cost: what arms have when each has spent the same."""

from collections.abc import Mapping, Sequence
from typing import Final, Literal

import numpy as np

from solrl_tasks.analysis.curves import Curves, Floats
from solrl_tasks.analysis.estimates import Estimate, Figure, confidence_interval, mean_estimate, paired_difference
from solrl_tasks.analysis.progress import value_at
from solrl_tasks.config.base import Frozen

SHARES: Final = (0.25, 0.5, 0.75, 1.0)
"""Of the largest budget that every run has."""

Verdict = Literal["higher", "lower", "not resolved"]


class AtBudget(Frozen):
    """An arm when it has spent a budget.

    Attributes:
        reward: over its seeds; those whose runs end before it are excluded.
        difference: to the baseline at the same budget, over pairs of one seed.
        low, high: 95 % of the difference by Student's t; NaN with fewer than two pairs.
        verdict: of the arm against the baseline: ``not resolved`` where the interval holds 0 or there is none.
    """

    budget: float
    reward: Estimate
    difference: Estimate
    low: Figure
    high: Figure
    verdict: Verdict


def common_budget(arms: Mapping[str, Curves]) -> float:
    """The most that every run of every arm has spent.

    Raises:
        ValueError: there is no arm.
    """
    if not arms:
        raise ValueError("a budget takes at least one arm")
    return min(float(curves.costs[:, -1].min()) for curves in arms.values())


def reward_at(curves: Curves, budget: float) -> Floats:
    """Reward of each run when it has spent a budget, ``[S]``, between evaluations on a straight line; NaN beyond its
    last."""
    pairs = zip(curves.costs.tolist(), curves.rewards.tolist(), strict=True)
    return np.array([value_at(costs, rewards, budget) for costs, rewards in pairs])


def at_budgets(arm: Curves, baseline: Curves, budgets: Sequence[float]) -> tuple[AtBudget, ...]:
    """An arm beside the baseline at some budgets, in the unit of their costs.

    Raises:
        ValueError: no seed is in both arms.
    """
    mine, theirs = arm.paired(baseline)
    found = []
    for budget in budgets:
        difference = paired_difference(reward_at(mine, budget), reward_at(theirs, budget))
        low, high = confidence_interval(difference)
        found.append(
            AtBudget(
                budget=budget,
                reward=mean_estimate(reward_at(arm, budget)),
                difference=difference,
                low=low,
                high=high,
                verdict=verdict(difference),
            )
        )
    return tuple(found)


def verdict(difference: Estimate, level: float = 0.95) -> Verdict:
    """Whether a difference is resolved from 0 by its interval (Student's t)."""
    low, high = confidence_interval(difference, level)
    return "higher" if low > 0 else "lower" if high < 0 else "not resolved"
