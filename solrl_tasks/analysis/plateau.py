"""What a baseline comes to, and whether it rests there."""

from typing import Final, Literal

import numpy as np

from solrl_tasks.analysis.curves import ROUNDING, Curves
from solrl_tasks.analysis.estimates import Estimate, confidence_interval, mean_estimate
from solrl_tasks.config.base import Frozen

TAIL: Final = 1 / 3
LEAST_TAIL: Final = 3
"""Evaluations: a line through two has no error."""

Trend = Literal["flat", "rising", "falling"]


class Plateau(Frozen):
    """What a baseline comes to.

    Attributes:
        start: reward of the untrained model.
        level: the reward that counts as 100 %.
        trend: of the tail; flat where its slope is not resolved from 0. Only then is there a plateau.
        rise: over the whole tail by its slope, an estimate over seeds: what flat may hide.
        tail: evaluations in it.
        gain: of the level over the start, seed by seed.
        resolved: whether the gain is above 0 at all.
    """

    start: float
    level: float
    trend: Trend
    rise: Estimate
    tail: int
    gain: Estimate
    resolved: bool

    def threshold(self, share: float) -> float:
        """The reward at a share of the gain."""
        return self.start + share * (self.level - self.start)


def find_plateau(curves: Curves, confidence: float = 0.95) -> Plateau:
    """Where a baseline comes to rest, from the last third of its evaluations and at least three of them.

    A line is laid through the tail of every seed. Where the interval of the mean slope over seeds (Student's t) holds 0
    the tail is flat and its mean is the plateau. Where it does not, none is reached: the level is what the mean curve
    has at its end, and ``trend`` says so.

    Raises:
        ValueError: there are fewer than four evaluations: a tail and a start.
    """
    evaluations = len(curves.places)
    if evaluations <= LEAST_TAIL:
        raise ValueError(f"a plateau takes {LEAST_TAIL + 1} evaluations or more, found {evaluations}")
    tail = max(LEAST_TAIL, round(evaluations * TAIL))
    x, ends = curves.places[-tail:], curves.rewards[:, -tail:]
    rises = np.polynomial.polynomial.polyfit(x, ends.T, 1)[1] * (x[-1] - x[0])
    rise = mean_estimate(rises)
    low, high = confidence_interval(rise, confidence)
    # Seeds that are all alike have an interval of no width, about a slope of rounding errors.
    least = ROUNDING * float(np.ptp(curves.rewards))
    trend: Trend = "rising" if low > least else "falling" if high < -least else "flat"
    levels = ends.mean(axis=1) if trend == "flat" else ends[:, -1]
    gain = mean_estimate(levels - curves.rewards[:, 0])
    start = float(curves.rewards[:, 0].mean())
    return Plateau(
        start=start,
        level=start + gain.mean,
        trend=trend,
        rise=rise,
        tail=tail,
        gain=gain,
        resolved=bool(confidence_interval(gain, confidence)[0] > 0),
    )
