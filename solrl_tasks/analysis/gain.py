"""How many candidates to explore: what more of them gain, what they cost, and where that stops paying.

A curve is exact over all subsets of the pools that were explored, so that one pool of N candidates answers for every
n up to N. What is left uncertain is which prompts were asked, and intervals are over them.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from solrl_tasks.analysis.estimates import Estimate
from solrl_tasks.analysis.order_statistics import (
    gaussian_contrast,
    gaussian_kept_spread,
    proxy_spread,
    subset_contrast,
    subset_square,
)
from solrl_tasks.config.words import counted

Floats = NDArray[np.float64]
Measure = Literal["contrast", "spread"]
MEASURES: Final[tuple[Measure, ...]] = ("contrast", "spread")
"""``contrast``: best kept less worst kept, as the proxy calls them. ``spread``: standard deviation of the true rewards
of all kept around the mean of their prompt, whatever the proxy calls them: what an update goes with whose advantages
are divided by the spread of all rewards."""

THRESHOLD: Final = 0.5
"""Elasticity below which more candidates are called not worth it: 1 % more cost must gain at least 0.5 %."""
DENSE: Final = 256
"""Numbers of candidates at which a curve is taken one by one; beyond, they are spaced by ratio."""
FARTHEST: Final = 100_000
REPLICATES: Final = 2000
_SUBSET: Final[dict[Measure, Callable[[Floats, Floats, int, int], float]]] = {
    "contrast": subset_contrast,
    "spread": subset_square,
}


@dataclass(frozen=True)
class Prices:
    """Device seconds of one prompt's part in an iteration.

    Attributes:
        explore: of one candidate: sampling, decoding and scoring.
        regenerate: of one kept candidate, sampled precisely.
        update: of one kept candidate's part in the update; 0 where it is not known, which whoever shows it must say.
        keep: K, kept candidates.
    """

    explore: float
    regenerate: float
    update: float
    keep: int

    def __post_init__(self) -> None:
        if not (self.explore > 0 and self.regenerate >= 0 and self.update >= 0 and self.regenerate + self.update > 0):
            raise ValueError(
                f"prices {self.explore}, {self.regenerate}, {self.update} seconds: exploring, and what is done with "
                "the kept, must cost something"
            )

    @property
    def fixed(self) -> float:
        """What does not depend on the number of candidates."""
        return self.keep * (self.regenerate + self.update)

    @property
    def ratio(self) -> float:
        """A candidate's price over a kept one's: all that the answer depends on."""
        return self.explore / (self.regenerate + self.update)

    def cost(self, candidates: NDArray[np.int64]) -> Floats:
        """Seconds with so many candidates."""
        return candidates.astype(np.float64) * self.explore + self.fixed


@dataclass(frozen=True)
class GainCurve:
    """What keeping K of n candidates is worth, in units of the reward.

    Attributes:
        candidates: n, increasing from K, int64 [G].
        each: the expectation for each prompt, [P, G]: a contrast, or the square of a spread.
        excluded: prompts left out, for having too few valid candidates.
    """

    measure: Measure
    keep: int
    candidates: NDArray[np.int64]
    each: Floats
    excluded: int

    def over(self, shares: Floats) -> Floats:
        """The curve [..., G] of prompts weighted by ``shares`` [..., P], which sum to 1.

        Squares are averaged before the root is taken, which is how the spread of all rewards of an iteration forms.
        """
        means: Floats = shares @ self.each
        return np.sqrt(means) if self.measure == "spread" else means

    @property
    def mean(self) -> Floats:
        """Over prompts, [G]."""
        prompts = len(self.each)
        return self.over(np.full(prompts, 1 / prompts)) if prompts else np.full(len(self.candidates), np.nan)

    def errors(self) -> Floats:
        """Standard errors of the mean over prompts, [G]; NaN with fewer than two. A root's are to first order."""
        prompts = len(self.each)
        if prompts < 2:
            return np.full(len(self.candidates), np.nan)
        errors: Floats = self.each.std(axis=0, ddof=1) / math.sqrt(prompts)
        if self.measure == "contrast":
            return errors
        mean = self.mean
        found: Floats = np.divide(errors, 2 * mean, out=np.full(len(mean), np.nan), where=mean > 0)
        return found

    def at(self, candidates: int) -> Estimate:
        """Mean and standard error over prompts at one n of the curve.

        Raises:
            KeyError: the curve was not taken there.
        """
        found = np.flatnonzero(self.candidates == candidates)
        if not len(found):
            raise KeyError(f"the curve was not taken at {counted(candidates, 'candidate')}")
        mean, stderr = float(self.mean[found[0]]), float(self.errors()[found[0]])
        return Estimate(mean=mean, stderr=stderr, n=len(self.each), excluded=self.excluded)


@dataclass(frozen=True)
class Stop:
    """The number of candidates at which a rule stops.

    Attributes:
        candidates: None where the curve never rises above 0.
        low, high: 2.5 % and 97.5 % quantiles over resampled prompts; None with fewer than two prompts.
        at_edge: it is the last n of the curve: the answer is *at least* so many.
        edge_share: share of resamples that stopped at the last n.
        unanswered: share of resamples without an answer.
    """

    candidates: int | None
    low: int | None
    high: int | None
    at_edge: bool
    edge_share: float
    unanswered: float

    def __str__(self) -> str:
        if self.candidates is None:
            return "none: no gain at any number"
        reach = "" if self.low is None else f" ({self.low} to {self.high})"
        return f"{'at least ' if self.at_edge else ''}{self.candidates}{reach}"


def counts_between(keep: int, count: int) -> NDArray[np.int64]:
    """The n at which curves are taken: each one near ``keep``, then spaced by ratio; both ends are among them.

    Raises:
        ValueError: ``keep`` is more than ``count``.
    """
    if keep > count:
        raise ValueError(f"keep is {keep}, more than the {counted(count, 'candidate')} of the pool")
    dense = np.arange(keep, min(count, keep + DENSE) + 1)
    far = np.geomspace(dense[-1], count, 65) if count > dense[-1] else dense[-1:]
    return np.unique(np.concatenate([dense, np.rint(far).astype(np.int64), [count]])).astype(np.int64)


def gain_curve(
    proxy: Floats, true: Floats, keep: int, measure: Measure = "contrast", candidates: Sequence[int] | None = None
) -> GainCurve:
    """The exact expected gain of every n up to N from pools of N candidates.

    Args:
        proxy: [P, N], by which the kept are chosen; the true rewards themselves give the ideal curve.
        true: [P, N].
        candidates: increasing; those of ``counts_between`` if left out.

    Raises:
        ValueError: shapes or counts do not fit.
    """
    if proxy.ndim != 2 or proxy.shape != true.shape:
        raise ValueError(f"proxy {proxy.shape} and true {true.shape} must both be [prompts, candidates]")
    asked = counts_between(keep, proxy.shape[1]) if candidates is None else np.asarray(candidates, dtype=np.int64)
    subset = _SUBSET[measure]
    rows = [[subset(p, t, int(n), keep) for n in asked] for p, t in zip(proxy, true, strict=True)]
    each = np.asarray(rows, dtype=np.float64).reshape(len(proxy), len(asked))
    whole = np.isfinite(each).all(axis=1)
    return GainCurve(measure, keep, asked, each[whole], int((~whole).sum()))


def best_ratio(values: Floats, candidates: NDArray[np.int64], prices: Prices) -> NDArray[np.int64]:
    """Where gain over cost is largest: the n that reaches a gain soonest, if what is learnt goes with it.

    It is ``last_above`` an elasticity of 1: there 1 % more cost gains 1 % more. Arguments and result as there.
    """
    return last_above(values, candidates, prices, 1.0)


def elasticity(values: Floats, candidates: NDArray[np.int64], prices: Prices) -> Floats:
    """d ln gain / d ln cost between neighbours of a curve, [..., G - 1]; infinite where the gain is not above 0."""
    positive = values > 0
    logs = np.log(np.where(positive, values, 1.0))
    slopes = np.diff(logs, axis=-1) / np.diff(np.log(prices.cost(candidates)))
    both = positive[..., 1:] & positive[..., :-1]
    return np.where(both, slopes, np.inf)


def last_above(
    values: Floats, candidates: NDArray[np.int64], prices: Prices, threshold: float = THRESHOLD
) -> NDArray[np.int64]:
    """The last n that is worth its cost at an elasticity of ``threshold``: where gain / cost ** threshold is largest.

    Where the elasticity falls steadily, that is where it falls below the threshold. A curve of few prompts has bumps:
    one does not stop it, as long as what comes behind makes up for it.

    Args:
        values: [..., G] curves.

    Returns:
        [...] positions on the curve; -1 where it is nowhere above 0.
    """
    worth = values / prices.cost(candidates) ** threshold
    return np.where(values.max(axis=-1) > 0, worth.argmax(axis=-1), -1)


Rule = Callable[[Floats, NDArray[np.int64], Prices], NDArray[np.int64]]


def find_stop(curve: GainCurve, prices: Prices, rule: Rule, seed: int = 0) -> Stop:
    """Where a rule stops on the mean curve, with an interval by resampling prompts.

    Args:
        rule: ``best_ratio``, or ``last_above``.
        seed: of the resampling; prices are taken for known.

    Raises:
        ValueError: no prompt is left.
    """
    if not len(curve.each):
        raise ValueError(
            f"no prompt has {counted(curve.keep, 'valid candidate')} in every subset: there is no curve to stop on"
        )
    here = int(rule(curve.mean, curve.candidates, prices))
    prompts, last = len(curve.each), len(curve.candidates) - 1
    if prompts < 2:
        return Stop(_count(curve, here), None, None, here == last, float(here == last), float(here < 0))
    draws = np.random.default_rng(seed).multinomial(prompts, np.full(prompts, 1 / prompts), size=REPLICATES)
    found = rule(curve.over(draws / prompts), curve.candidates, prices)
    answered = found[found >= 0]
    low, high = _interval(curve, answered)
    return Stop(
        candidates=_count(curve, here),
        low=low,
        high=high,
        at_edge=here == last,
        edge_share=float((found == last).mean()),
        unanswered=float((found < 0).mean()),
    )


def gaussian_stop(
    prices: Prices, measure: Measure = "contrast", threshold: float = 1.0, rho: float = 1.0, most: int = FARTHEST
) -> int:
    """The n at which exploring stops to pay for Gaussian rewards and a proxy that is jointly Gaussian with them.

    It answers beyond the candidates of any pool. sigma scales the whole curve and cancels, as does ``rho`` in the
    contrast, so that there only K and ``prices.ratio`` count; of the spread, ``rho`` decides how much can be gained.

    Args:
        threshold: elasticity to stop at; 1 is the best gain for its cost.
        rho: correlation of proxy and truth.
        most: where the search ends.
    """
    candidates = counts_between(prices.keep, most)
    position = _gaussian_position(candidates, prices, measure, threshold, rho)
    near = candidates[max(position - 1, 0)], candidates[min(position + 1, len(candidates) - 1)]
    if near[1] - near[0] > 2:
        candidates = np.unique(np.linspace(near[0], near[1], DENSE).astype(np.int64))
        position = _gaussian_position(candidates, prices, measure, threshold, rho)
    return int(candidates[position])


def _gaussian_position(
    candidates: NDArray[np.int64], prices: Prices, measure: Measure, threshold: float, rho: float
) -> int:
    if measure == "contrast":
        values = np.array([gaussian_contrast(int(n), prices.keep) for n in candidates])
    else:
        values = np.array([proxy_spread(rho, gaussian_kept_spread(int(n), prices.keep)) for n in candidates])
    return int(last_above(values, candidates, prices, threshold))


def _count(curve: GainCurve, position: int) -> int | None:
    return None if position < 0 else int(curve.candidates[position])


def _interval(curve: GainCurve, found: NDArray[np.int64]) -> tuple[int | None, int | None]:
    if not len(found):
        return None, None
    low, high = np.quantile(curve.candidates[found], (0.025, 0.975), method="nearest")
    return int(low), int(high)
