"""Means with what is known of their error."""

import math
from typing import Annotated, Any, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, PlainSerializer
from scipy import stats

from solrl_tasks.config.base import Frozen


def _from_null(value: Any) -> Any:
    return math.nan if value is None else value


def _to_null(value: float) -> float | None:
    return value if math.isfinite(value) else None


Figure = Annotated[
    float,
    Field(allow_inf_nan=True),
    BeforeValidator(_from_null),
    PlainSerializer(_to_null, return_type=float | None, when_used="json"),
]
"""A number that may be NaN, which is null in JSON."""


class Estimate(Frozen):
    """A mean over independent units, such as prompts.

    Attributes:
        mean: NaN where there is nothing to average.
        stderr: standard error of the mean, from the sample standard deviation; NaN with fewer than two units.
        n: units averaged.
        excluded: units left out because they had no value.
    """

    mean: Figure
    stderr: Figure
    n: Annotated[int, Field(ge=0)]
    excluded: Annotated[int, Field(ge=0)] = 0

    def __str__(self) -> str:
        error = f" ± {self.stderr:.2g}" if math.isfinite(self.stderr) else ""
        return f"{self.mean:.4g}{error} (n={self.n})"


def mean_estimate(values: NDArray[np.floating]) -> Estimate:
    """The mean of independent units.

    Args:
        values: one number a unit, any shape; a non-finite one is left out and counted.
    """
    every = np.asarray(values, dtype=np.float64).ravel()
    found = every[np.isfinite(every)]
    n = len(found)
    mean = float(found.mean()) if n else math.nan
    stderr = float(found.std(ddof=1)) / math.sqrt(n) if n > 1 else math.nan
    return Estimate(mean=mean, stderr=stderr, n=n, excluded=len(every) - n)


RESAMPLES: Final = 4000
LEVEL: Final = 0.95


class Bounded(Estimate):
    """A mean with the spread of its units and a bootstrap interval.

    Attributes:
        spread: sample standard deviation over units, which does not fall with their number; NaN with fewer than two.
        low, high: bounds of the mean, from ``bootstrap``; NaN with fewer than two units.
    """

    spread: Figure
    low: Figure
    high: Figure


def bootstrap(
    values: NDArray[np.floating], seed: int = 0, resamples: int = RESAMPLES, level: float = LEVEL
) -> tuple[float, float]:
    """Bounds of the mean of independent units by the bias-corrected and accelerated bootstrap (BCa, Efron 1987).

    Units are drawn with replacement by a generator of their own, so that the same values and seed give the same bounds,
    and values of the same units are resampled alike. BCa follows skewed units, such as correlations near 1, where a
    percentile interval does not; neither sees more than the units show, so that bounds of few units are too narrow: at
    the level .95 they held .87 of the time for 6 normal units, .91 for 12 and .94 for 24.

    Args:
        values: one number a unit, any shape; a non-finite one is left out.
        seed: of the resampling.
        level: how often the bounds are to hold.

    Returns:
        NaN with fewer than two units; the value itself where all are equal.
    """
    every = np.asarray(values, dtype=np.float64).ravel()
    found = every[np.isfinite(every)]
    if len(found) < 2:
        return math.nan, math.nan
    if np.ptp(found) <= 1e-12 * max(1.0, float(np.abs(found).max())):
        return float(found.mean()), float(found.mean())
    generator = np.random.default_rng(seed)
    result = stats.bootstrap(
        (found,), np.mean, n_resamples=resamples, confidence_level=level, method="BCa", rng=generator
    )
    return float(result.confidence_interval.low), float(result.confidence_interval.high)


def bounded_estimate(
    values: NDArray[np.floating], seed: int = 0, resamples: int = RESAMPLES, level: float = LEVEL
) -> Bounded:
    """The mean of independent units, their spread, and bounds of the mean; arguments as for ``bootstrap``."""
    mean = mean_estimate(values)
    low, high = bootstrap(values, seed, resamples, level)
    return Bounded(**mean.model_dump(), spread=mean.stderr * math.sqrt(mean.n), low=low, high=high)


def paired_difference(after: NDArray[np.floating], before: NDArray[np.floating]) -> Estimate:
    """The mean of ``after - before`` over units measured twice.

    With the same prompts and seeds on both sides it is far better known than either mean.

    Args:
        after: one number a unit.
        before: the same units in the same order; a unit with a non-finite value on either side is left out.

    Raises:
        ValueError: the shapes differ.
    """
    if np.shape(after) != np.shape(before):
        raise ValueError(f"paired values must have one shape, found {np.shape(after)} and {np.shape(before)}")
    with np.errstate(invalid="ignore"):
        return mean_estimate(np.asarray(after, dtype=np.float64) - np.asarray(before, dtype=np.float64))


def unit_means(scores: NDArray[np.floating]) -> NDArray[np.float64]:
    """The mean of each unit's finite values, [P] of [P, N]; NaN where it has none.

    Values of one unit, such as images of one prompt, are not independent: they are averaged before any error is taken.
    """
    values = np.asarray(scores, dtype=np.float64)
    valid = np.isfinite(values)
    means = np.where(valid, values, 0.0).sum(axis=1) / np.maximum(valid.sum(axis=1), 1)
    return np.where(valid.any(axis=1), means, np.nan)


def paired_units(after: NDArray[np.floating], before: NDArray[np.floating]) -> Estimate:
    """As ``paired_difference``, of units with several values each, [P, N]: only values valid on both sides count."""
    both = np.isfinite(after) & np.isfinite(before)
    return paired_difference(
        unit_means(np.where(both, after, np.nan)),
        unit_means(np.where(both, before, np.nan)),
    )


def confidence_interval(estimate: Estimate, level: float = 0.95) -> tuple[float, float]:
    """Bounds of the mean by Student's t with n - 1 degrees of freedom; NaN with fewer than two units.

    It takes means of units for about normal, which they become with some tens of units whatever the scores are.
    """
    if estimate.n < 2:
        return math.nan, math.nan
    reach = float(stats.t.ppf(0.5 + level / 2, estimate.n - 1)) * estimate.stderr
    return estimate.mean - reach, estimate.mean + reach


def share_better(after: NDArray[np.floating], before: NDArray[np.floating]) -> Estimate:
    """The share of units whose mean is higher after than before, [P, N] each; equal ones count half."""
    both = np.isfinite(after) & np.isfinite(before)
    change = unit_means(np.where(both, after, np.nan)) - unit_means(np.where(both, before, np.nan))
    return mean_estimate(np.where(np.isfinite(change), (np.sign(change) + 1) / 2, np.nan))
