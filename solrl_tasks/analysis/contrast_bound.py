"""The contrast that theory promises, 2 sigma sqrt(2 ln N) - 4 Delta, beside what holds at a finite N.

sigma is the spread of true rewards over the seeds of one prompt, Delta a bound on how far a proxy reward is from the
true one. The bound is that of the Sol-RL paper (arXiv 2604.06916) and concerns one best and one worst seed. Its two
halves are of a different kind. That a proxy which errs by at most Delta loses at most 4 Delta of the contrast is
arithmetic, and holds for any K, N and distribution. That the largest minus the smallest of N rewards is worth
2 sigma sqrt(2 ln N) is a limit, reached from below: at any N that can be paid for, the exact value is smaller.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from solrl_tasks.analysis.estimates import Estimate, mean_estimate

Floats = NDArray[np.float64]
Measure = Callable[[Floats], float]

QUANTILE: Final = 0.99
"""Share of proxy - true in the middle, where the ends are too much at the mercy of one image."""


def asymptotic_range(count: int) -> float:
    """2 sqrt(2 ln N), in standard deviations: above the exact range of a Gaussian at every finite N."""
    if count < 2:
        raise ValueError(f"N is {count}: a range needs at least 2 candidates")
    return 2.0 * math.sqrt(2.0 * math.log(count))


def first_positive(sigma: float, delta: float) -> float:
    """The N from which the asymptotic bound promises anything at all: exp(2 (Delta / sigma) ** 2).

    Infinite where that overflows, or where sigma is 0.
    """
    if sigma <= 0:
        return math.inf
    exponent = 2.0 * (delta / sigma) ** 2
    return math.exp(exponent) if exponent < 700 else math.inf


@dataclass(frozen=True)
class Deviation:
    """How far a proxy is from the true rewards, for each prompt, [P]; NaN where no pair is valid.

    A constant that is added to every proxy of a prompt changes no choice, so that it may be taken off first. Which
    constant is a matter of choice, and these are ours:

    Attributes:
        raw: largest |proxy - true|, nothing taken off.
        centred: half of the largest minus the smallest of proxy - true: the smallest Delta that any constant leaves,
            and therefore the one that makes the most of the bound.
        quantile: half of the width that the middle ``QUANTILE`` of proxy - true takes. Choices by candidates beyond it
            are not covered: with it the bound is no longer certain.
        offset: the constant that ``centred`` takes off, the middle between the two ends.
    """

    raw: Floats
    centred: Floats
    quantile: Floats
    offset: Floats

    @classmethod
    def of(cls, proxy: Floats, true: Floats) -> "Deviation":
        """Measure it on [P, N] rewards of the same candidates; a pair with a non-finite side is left out."""
        gaps = _valid_gaps(proxy, true)
        return cls(
            raw=_each(gaps, lambda d: float(np.max(np.abs(d)))),
            centred=_each(gaps, lambda d: float(np.ptp(d)) / 2),
            quantile=_each(gaps, _half_width),
            offset=_each(gaps, _middle),
        )

    def pooled(self) -> dict[str, float]:
        """The largest over prompts of each, which is what a bound for all of them needs."""
        values = {"raw": self.raw, "centred": self.centred, "quantile": self.quantile}
        return {name: float(np.nanmax(each)) if np.isfinite(each).any() else math.nan for name, each in values.items()}


def sigma_of(true: Floats) -> Floats:
    """The standard deviation of true rewards over the seeds of each prompt, [P] of [P, N].

    From the sum of squares over n - 1, divided by c4(n), so that its expectation is sigma itself where rewards are
    Gaussian. NaN with fewer than two valid rewards.
    """
    sigmas = np.full(len(true), np.nan)
    for row, values in enumerate(true):
        found = values[np.isfinite(values)]
        if len(found) > 1:
            sigmas[row] = found.std(ddof=1) / _c4(len(found))
    return sigmas


def pooled_sigma(true: Floats) -> float:
    """Root of the within-prompt variance, every prompt weighed by its degrees of freedom; [P, N].

    It is at least the mean of ``sigma_of`` and larger the more prompts differ. A contrast is linear in sigma, so that
    the mean contrast over prompts goes with the mean sigma, not with this one.
    """
    squares, degrees = 0.0, 0
    for values in true:
        found = values[np.isfinite(values)]
        if len(found) > 1:
            squares += float(((found - found.mean()) ** 2).sum())
            degrees += len(found) - 1
    return math.sqrt(squares / degrees) if degrees else math.nan


@dataclass(frozen=True)
class Shape:
    """How far the rewards of a prompt are from Gaussian, means over prompts.

    Attributes:
        skew: third standardised cumulant, corrected for the number of seeds; 0 for a Gaussian.
        kurtosis: excess, corrected likewise; 0 for a Gaussian, below -1 for two heaps of equal size.
        tied: share of candidates whose reward another candidate of the prompt has too.
        distinct: different rewards of a prompt.
        flat: prompts whose candidates all have one reward: they have no contrast, whatever N.
        binary: whether no reward but 0 and 1 occurs.
    """

    skew: Estimate
    kurtosis: Estimate
    tied: Estimate
    distinct: Estimate
    flat: int
    binary: bool

    @classmethod
    def of(cls, true: Floats) -> "Shape":
        """Measure it on [P, N]; prompts without spread say nothing about skew and kurtosis, and are left out there."""
        rows = [values[np.isfinite(values)].astype(np.float64) for values in true]
        every = np.concatenate(rows) if rows else np.empty(0)
        return cls(
            skew=mean_estimate(_each(rows, lambda v: _moment(stats.skew, v, 3))),
            kurtosis=mean_estimate(_each(rows, lambda v: _moment(stats.kurtosis, v, 4))),
            tied=mean_estimate(_each(rows, _tied)),
            distinct=mean_estimate(_each(rows, lambda v: float(len(np.unique(v))))),
            flat=sum(len(row) > 0 and float(np.ptp(row)) == 0 for row in rows),
            binary=len(every) > 0 and bool(np.isin(every, (0.0, 1.0)).all()),
        )


def _each(rows: list[Floats], measure: Measure) -> Floats:
    return np.array([measure(row) if len(row) else math.nan for row in rows], dtype=np.float64)


def _valid_gaps(proxy: Floats, true: Floats) -> list[Floats]:
    if proxy.ndim != 2 or proxy.shape != true.shape:
        raise ValueError(f"proxy {proxy.shape} and true {true.shape} must both be [prompts, candidates]")
    valid = np.isfinite(proxy) & np.isfinite(true)
    return [(p[row] - t[row]).astype(np.float64) for p, t, row in zip(proxy, true, valid, strict=True)]


def _middle(values: Floats) -> float:
    return float(np.max(values) + np.min(values)) / 2


def _half_width(values: Floats) -> float:
    low, high = np.quantile(values, ((1 - QUANTILE) / 2, (1 + QUANTILE) / 2))
    return float(high - low) / 2


def _moment(measure: Callable[..., Any], values: Floats, least: int) -> float:
    if len(values) < least or np.ptp(values) == 0:
        return math.nan
    return float(measure(values, bias=False))


def _tied(values: Floats) -> float:
    _, counts = np.unique(values, return_counts=True)
    return float(counts[counts > 1].sum() / len(values))


def _c4(count: int) -> float:
    """E of the sample standard deviation of ``count`` standard normal values."""
    logarithm = special.gammaln(count / 2) - special.gammaln((count - 1) / 2)
    return math.sqrt(2.0 / (count - 1)) * math.exp(logarithm)
