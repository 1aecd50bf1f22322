"""What the best and the worst of n candidates are expected to be: for a Gaussian, for 0/1 rewards, and for a pool.

Nothing here is sampled. A Gaussian's figures are one integral each, a pool's are sums with hypergeometric weights.
Throughout, K kept candidates are K - K // 2 best and K // 2 worst, and their *contrast* is the mean of the best minus
the mean of the worst.
"""

from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

Floats = NDArray[np.float64]

ROUNDING: Final = 1e-12
"""Of the largest value of a pool: less is what sums of its values differ by."""
UNLIKELY: Final = 1e-300
"""A chance that counts as none: scipy overflows on what is close to the smallest number there is."""
REACH: Final = 12.0
"""Standard deviations beyond which a Gaussian integrand is below what a float64 can tell from nothing."""


def ends_of(keep: int) -> tuple[int, int]:
    """How many best and how many worst are kept; an odd one goes to the best.

    Raises:
        ValueError: ``keep`` is below 2.
    """
    if keep < 2:
        raise ValueError(f"keep is {keep}: two ends need at least 2")
    return keep - keep // 2, keep // 2


def gaussian_top_mean(count: int, top: int) -> float:
    """The expected mean of the ``top`` largest of ``count`` independent standard normal values.

    Raises:
        ValueError: ``top`` is not within 1 .. ``count``.
    """
    return _top_moment(count, top, 1)


def gaussian_contrast(count: int, keep: int) -> float:
    """The expected contrast of ``keep`` of ``count`` standard normal values, chosen by the values themselves.

    Raises:
        ValueError: ``keep`` is not within 2 .. ``count``.
    """
    best, worst = ends_of(keep)
    _require_room(count, keep)
    return gaussian_top_mean(count, best) + gaussian_top_mean(count, worst)


def gaussian_kept_spread(count: int, keep: int) -> float:
    """Root mean square of the ``keep`` kept of ``count`` standard normal values, chosen by the values themselves.

    It is 1 where all are kept. Without a loss of its own making it is what a first update scales with: the gradient of
    a group whose advantages have a fixed scale goes with the spread of its rewards.
    """
    best, worst = ends_of(keep)
    _require_room(count, keep)
    squares = best * _top_moment(count, best, 2) + worst * _top_moment(count, worst, 2)
    return float(np.sqrt(squares / keep))


def proxy_contrast(rho: float, ideal: float) -> float:
    """The contrast left when a proxy chooses: ``rho`` times the ideal one.

    Exact where proxy and true reward are jointly Gaussian with Pearson correlation ``rho``: the mean of the true
    reward given the proxy is then rho times the proxy, both in standard deviations, and contrast is linear.

    Raises:
        ValueError: ``rho`` is no correlation.
    """
    if not -1.0 <= rho <= 1.0:
        raise ValueError(f"rho is {rho}: a correlation lies within -1 .. 1")
    return rho * ideal


def proxy_spread(rho: float, ideal: float) -> float:
    """The root mean square of what a proxy keeps, in standard deviations, where choosing by the truth gives ``ideal``.

    Under the assumption of ``proxy_contrast`` the square of a true reward given its proxy has the mean
    1 - rho ** 2 + rho ** 2 proxy ** 2. A proxy that knows nothing leaves 1.

    Raises:
        ValueError: ``rho`` is no correlation.
    """
    squared = proxy_contrast(rho, rho)
    return float(np.sqrt(1.0 - squared + squared * ideal**2))


def bernoulli_contrast(chance: float, count: int, keep: int) -> float:
    """The expected contrast of ``keep`` of ``count`` independent 0/1 rewards, each 1 with probability ``chance``.

    Of X ones, min(X, best) stand among the best and max(0, worst - (count - X)) among the worst. It cannot exceed 1,
    so that more candidates soon stop helping, whatever a Gaussian of the same spread would promise.

    Raises:
        ValueError: ``chance`` is no probability, or ``keep`` is not within 2 .. ``count``.
    """
    if not 0.0 <= chance <= 1.0:
        raise ValueError(f"chance is {chance}: a probability lies within 0 .. 1")
    best, worst = ends_of(keep)
    _require_room(count, keep)
    if chance < UNLIKELY:
        return 0.0
    ones = np.arange(count + 1)
    high = np.minimum(ones, best) / best
    low = np.maximum(0, worst - (count - ones)) / worst
    return float(stats.binom.pmf(ones, count, chance) @ (high - low))


@lru_cache(maxsize=4096)
def _subset_weights(pool: int, drawn: int, top: int) -> tuple[float, ...]:
    if not 1 <= top <= drawn <= pool:
        raise ValueError(f"top {top}, drawn {drawn}, pool {pool}: they must not decrease in this order")
    if pool == 1:
        return (1.0,)
    # A candidate is drawn with chance drawn / pool; then the larger ones are shared out among the other places drawn.
    among = stats.hypergeom.cdf(top - 1, pool - 1, np.arange(pool), drawn - 1)
    return tuple((drawn / pool * among / top).tolist())


def subset_weights(pool: int, drawn: int, top: int) -> Floats:
    """Weights of a pool that give the expected mean of the ``top`` largest of ``drawn`` of its candidates.

    They are drawn without replacement. The candidate of rank j counts when it is drawn, and when at most ``top - 1``
    of the j - 1 larger ones are drawn with it: a hypergeometric tail. The expectation over all subsets is therefore a
    fixed weighted sum of the sorted pool, and needs no resampling.

    Returns:
        ``[pool]``, for values from the largest to the smallest; they sum to 1.

    Raises:
        ValueError: not ``top <= drawn <= pool``.
    """
    return np.asarray(_subset_weights(pool, drawn, top))


def subset_contrast(proxy: Floats, true: Floats, drawn: int, keep: int) -> float:
    """The expected contrast in the true reward of ``drawn`` candidates of one pool, of which the proxy keeps ``keep``.

    Exact over all subsets. Candidates whose proxies tie are chosen by lot. Invalid ones are drawn like others, and
    never kept.

    Args:
        proxy: [N]; non-finite where invalid.
        true: [N], the same candidates; non-finite where invalid.

    Returns:
        NaN where some subset has fewer than ``keep`` valid candidates, or the shapes hold none.

    Raises:
        ValueError: not ``2 <= keep <= drawn <= N``, or the shapes differ.
    """
    ends = _ends(proxy, true, drawn, keep)
    if ends is None:
        return float("nan")
    # What rounding leaves of a contrast of nothing would have a best number of candidates.
    largest = float(np.abs(true[np.isfinite(true)]).max())
    return ends[0] - ends[1] if abs(ends[0] - ends[1]) > ROUNDING * largest else 0.0


def subset_square(proxy: Floats, true: Floats, drawn: int, keep: int) -> float:
    """The expected mean square of the true rewards that the proxy keeps of ``drawn``, around the pool's mean.

    What the update sees: it knows the true rewards of the kept, so that even a proxy that knows nothing leaves the
    plain variance of the pool. Arguments and errors as for ``subset_contrast``.
    """
    best, worst = ends_of(keep)
    known = np.isfinite(proxy) & np.isfinite(true)
    middle = float(np.mean(true[known])) if known.any() else float("nan")
    away = true - middle
    # Of equal rewards the mean differs from them by rounding, which is no spread.
    away = np.where(np.abs(away) <= ROUNDING * abs(middle), 0.0, away)
    ends = _ends(proxy, np.where(known, away**2, np.nan), drawn, keep)
    return float("nan") if ends is None else (best * ends[0] + worst * ends[1]) / keep


def _ends(proxy: Floats, values: Floats, drawn: int, keep: int) -> tuple[float, float] | None:
    """Expected means of ``values`` over the best and over the worst; None where some subset cannot keep enough."""
    best, worst = ends_of(keep)
    if proxy.ndim != 1 or proxy.shape != values.shape:
        raise ValueError(f"proxy {proxy.shape} and true {values.shape} must both be [candidates]")
    if not keep <= drawn <= len(proxy):
        raise ValueError(f"keep {keep}, drawn {drawn}, candidates {len(proxy)}: they must not decrease in this order")
    valid = np.isfinite(proxy) & np.isfinite(values)
    count, there = len(proxy), int(valid.sum())
    if drawn - (count - there) < keep:
        return None
    falling = _falling(proxy[valid], values[valid])
    high = subset_weights(count, drawn, best)[:there] @ falling
    low = subset_weights(count, drawn, worst)[:there] @ falling[::-1]
    return float(high), float(low)


def _falling(proxy: Floats, values: Floats) -> Floats:
    """Values from the largest proxy to the smallest, averaged where proxies tie."""
    _, place, sizes = np.unique(proxy, return_inverse=True, return_counts=True)
    means: Floats = np.bincount(place, weights=values) / sizes
    return np.repeat(means, sizes)[::-1]


@lru_cache(maxsize=100_000)
def _top_moment(count: int, top: int, power: int) -> float:
    """E of z ** power over the ``top`` largest of ``count`` standard normal values.

    A value z is among them when at most ``top - 1`` of the ``count - 1`` others exceed it: a binomial tail, which is
    the regularised incomplete beta function I. So the moment is count / top times the integral of
    z ** power phi(z) I(z). The trapezoidal rule on such an integrand, smooth and gone at both ends, is exact to
    rounding once its step is finer than the width of the tail's slope, about 1 / sqrt(count).
    """
    if not 1 <= top <= count:
        raise ValueError(f"top is {top}: it must be within 1 .. {count}")
    z = np.arange(-REACH, REACH, 0.2 / np.sqrt(count))
    among = special.betainc(count - top, top, special.ndtr(z)) if top < count else np.ones_like(z)
    return float(count / top * np.sum(z**power * stats.norm.pdf(z) * among) * (z[1] - z[0]))


def _require_room(count: int, keep: int) -> None:
    if keep > count:
        raise ValueError(f"keep is {keep}, more than the {count} candidates")
