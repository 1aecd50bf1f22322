"""Curves of a measure over what was spent: when a level is reached, and what else is so then."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from solrl_tasks.analysis.estimates import Estimate, mean_estimate, paired_difference


def first_reach(x: Sequence[float], y: Sequence[float], level: float) -> float | None:
    """The first measured place at which a curve is at a level or above; None where it never is."""
    return next((float(place) for place, value in zip(x, y, strict=True) if value >= level), None)


def crossing(x: Sequence[float], y: Sequence[float], level: float) -> float | None:
    """Where a curve first comes to a level, on the straight line between two measurements; None where it never does.

    Args:
        x: increasing.
    """
    if y and y[0] >= level:
        return float(x[0])
    for (before, low), (after, high) in pairwise(zip(x, y, strict=True)):
        if low < level <= high:
            return float(before + (after - before) * (level - low) / (high - low))
    return None


def value_at(x: Sequence[float], y: Sequence[float], place: float) -> float:
    """A curve between its measurements; NaN outside of them.

    Args:
        x: increasing.
    """
    if not x or not x[0] <= place <= x[-1]:
        return float("nan")
    return float(np.interp(place, x, y))


def mean_curve(curves: Sequence[Sequence[float]]) -> list[Estimate]:
    """Mean over curves at each of their common places.

    Raises:
        ValueError: they differ in length, or there is none.
    """
    return [mean_estimate(np.array(values)) for values in np.array(curves, dtype=np.float64, ndmin=2).T]


def paired_curves(after: Sequence[Sequence[float]], before: Sequence[Sequence[float]]) -> list[Estimate]:
    """Mean difference of pairs of curves at each of their common places."""
    columns = zip(np.array(after).T, np.array(before).T, strict=True)
    return [paired_difference(one, other) for one, other in columns]
