"""What was spent until a reward was come to."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray

from solrl_tasks.analysis.curves import ROUNDING, Curves, Floats, curve_noise, isotonic
from solrl_tasks.analysis.estimates import Estimate, Figure, mean_estimate
from solrl_tasks.config.base import Frozen


class Reached(Frozen):
    """What an arm spent to come to a level.

    Attributes:
        cost: mean over the seeds that come there.
        each: of every seed, in the order of the arm's; None where it never comes there.
        of_mean: of the mean curve over seeds; None where that never comes there.
        noise: standard error of the mean curve where it crosses the level (at its end where it never does): over seeds
            and over prompts, added in squares.
    """

    cost: Estimate
    each: tuple[float | None, ...]
    of_mean: float | None
    noise: Figure

    @property
    def censored(self) -> int:
        """Seeds that never come there."""
        return sum(one is None for one in self.each)


@dataclass(frozen=True)
class Lines:
    """Rising curves, ``[R, E]``, and what they are fitted to."""

    places: Floats
    rewards: Floats
    costs: Floats

    @classmethod
    def of(cls, curves: Curves) -> Self:
        """Every run."""
        return cls(curves.places, curves.rewards, curves.costs)

    @classmethod
    def mean_of(cls, curves: Curves, rows: NDArray[np.int64] | None = None) -> Self:
        """Means over runs: over all, or over each row of ``[R, n]`` chosen ones."""
        chosen = np.arange(len(curves.seeds))[None] if rows is None else rows
        return cls(curves.places, curves.rewards[chosen].mean(axis=1), curves.costs[chosen].mean(axis=1))

    @cached_property
    def fitted(self) -> Floats:
        """As ``isotonic`` makes them."""
        return isotonic(self.rewards)


def reach(curves: Curves, level: float) -> Reached:
    """What each run spent when its rising curve first comes to a level, between evaluations on a straight line."""
    found = spent(Lines.of(curves), level)
    mean = float(spent(Lines.mean_of(curves), level)[0])
    place = curves.places[-1] if math.isnan(mean) else np.interp(mean, curves.costs.mean(axis=0), curves.places)
    return Reached(
        cost=mean_estimate(found),
        each=tuple(None if math.isnan(one) else one for one in found.tolist()),
        of_mean=None if math.isnan(mean) else mean,
        noise=float(np.interp(place, curves.places, curve_noise(curves))),
    )


def spent(lines: Lines, level: float | Floats) -> Floats:
    """What each has spent when its fitted curve first comes to its level, ``[R]``; NaN where it never does."""
    fitted, rows = lines.fitted, np.arange(len(lines.fitted))
    # The end of a fit can be the level itself but for the last digit.
    wanted = np.broadcast_to(level, rows.shape) - ROUNDING * np.ptp(lines.rewards, axis=1)
    there = fitted >= wanted[:, None]
    after = there.argmax(axis=1)
    before = np.maximum(after - 1, 0)
    low, high = fitted[rows, before], fitted[rows, after]
    with np.errstate(divide="ignore", invalid="ignore"):
        part = np.where(after > before, (wanted - low) / (high - low), 0.0)
    costs = lines.costs[rows, before] + part * (lines.costs[rows, after] - lines.costs[rows, before])
    spent: Floats = np.where(there.any(axis=1), costs, np.nan)
    return spent
