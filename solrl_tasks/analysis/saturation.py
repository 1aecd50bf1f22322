"""From which step count on more steps gain nothing that can be seen."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from solrl_tasks.analysis.estimates import LEVEL, RESAMPLES, Bounded, bounded_estimate
from solrl_tasks.config.base import Frozen
from solrl_tasks.config.words import counted


class Saturation(Frozen):
    """Where a curve over step counts saturates.

    Attributes:
        step: the step count; None where it is not reached within what was measured, or cannot be told.
        left: what the best higher count gained over it on the same units; None where there is no such comparison. Its
            upper bound is the gain that the units are too few to rule out.
        reason: in words for people.
    """

    step: int | None
    left: Bounded | None
    reason: str


def find_saturation(
    steps: Sequence[int],
    values: NDArray[np.floating],
    seed: int = 0,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
) -> Saturation:
    """The smallest step count that is within one paired bootstrap interval of the best at higher counts.

    For a count s let t be the higher count with the highest mean. s saturates if the bootstrap interval of the mean of
    ``values[t] - values[s]``, taken unit by unit, does not lie wholly above 0. The highest count that was measured has
    nothing above it: where only it would do, saturation is *not reached*. The best is picked after the fact, which
    makes the rule slow to call a curve flat; few units make it quick, so that ``left.high`` should be read beside it.
    A curve can be flat at a low value: saturation says that steps are not what is missing.

    Args:
        steps: increasing.
        values: [steps, units], higher is better; units without a value at both counts are left out of a comparison.
        seed, resamples, level: as for ``estimates.bootstrap``.

    Raises:
        ValueError: steps do not increase, or shapes do not fit.
    """
    if list(steps) != sorted(set(steps)) or values.ndim != 2 or len(steps) != len(values):
        raise ValueError(f"steps {list(steps)} must increase and have a row of values each, found {values.shape}")
    if len(steps) < 2:
        return Saturation(step=None, left=None, reason="one step count is no curve")
    left: Bounded | None = None
    for position in range(len(steps) - 1):
        left = _left(values, position, seed, resamples, level)
        if left is None or left.n < 2:
            return Saturation(step=None, left=left, reason="fewer than two units have a value: nothing can be told")
        if left.low <= 0.0:
            reached = f"reached at {counted(steps[position], 'step')}"
            more = f"higher counts gain at most {left.high:.2g}"
            return Saturation(step=steps[position], left=left, reason=f"{reached}: {more}")
    return Saturation(step=None, left=left, reason=f"not reached within {counted(steps[-1], 'step')}")


def _left(values: NDArray[np.floating], position: int, seed: int, resamples: int, level: float) -> Bounded | None:
    higher = values[position + 1 :]
    known = np.isfinite(higher)
    counts = known.sum(axis=1)
    if not counts.any():
        return None
    sums = np.where(known, higher, 0.0).sum(axis=1)
    means = np.where(counts > 0, sums / np.maximum(counts, 1), -np.inf)
    gains = higher[int(means.argmax())] - values[position]
    return bounded_estimate(gains, seed, resamples, level)
