"""How well a cheap proxy ranks the candidates of a prompt.

Everything is measured group by group and then averaged over prompts. A group where either side has no spread,
or with fewer valid pairs than are needed, says nothing about ranking: its value is NaN, and estimates count
it as excluded.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy.stats import kendalltau, rankdata

from solrl_tasks.analysis.estimates import Estimate, mean_estimate

Floats = NDArray[np.float64]


def spearman(proxy: Floats, true: Floats) -> Floats:
    """Spearman's rank correlation of each group, ties by average ranks.

    Args:
        proxy: ``[P, N]`` rewards of the proxy; non-finite where invalid.
        true: ``[P, N]`` rewards of the same candidates that count.

    Returns:
        ``[P]``.

    Raises:
        ValueError: the shapes differ.
    """
    return _each(proxy, true, 2, _spearman)


def kendall(proxy: Floats, true: Floats) -> Floats:
    """Kendall's tau-b of each group; arguments as for ``spearman``."""
    return _each(proxy, true, 2, lambda p, t: float(kendalltau(p, t).statistic))


def ends(proxy: Floats, true: Floats, keep: int) -> dict[str, Floats]:
    """What keeping the proxy's two ends is worth, for each group.

    With b = keep - keep // 2 candidates picked as best and w = keep // 2 as worst by the proxy (each of
    several candidates that tie at the edge counts in equal part):

    * ``overlap_best``: the share of those picked as best whose true reward reaches the b-th best true reward.
      Without ties this is the plain overlap of the two sets; chance is b / N. ``overlap_worst`` likewise.
    * ``contrast``: mean true reward of those picked as best minus that of those picked as worst;
      ``contrast_ideal``: the same had the true reward picked; ``contrast_share``: their ratio, 0 by chance.
    * ``rank_best`` and ``rank_worst``: mean true rank of those picked, rank 1 being the best of the group.
      Perfect are (b + 1) / 2 and N - (w - 1) / 2; chance is (N + 1) / 2 for both.

    Args:
        proxy: ``[P, N]``; non-finite where invalid.
        true: ``[P, N]`` of whole groups.
        keep: K, at least 2; groups with fewer valid pairs are left out.

    Returns:
        ``[P]`` for each of these names.

    Raises:
        ValueError: the shapes differ, or ``keep`` is below 2.
    """
    if keep < 2:
        raise ValueError(f"keep is {keep}: two ends need at least 2")
    best, worst = keep - keep // 2, keep // 2
    return {
        "overlap_best": _each(proxy, true, keep, lambda p, t: _overlap(p, t, best)),
        "overlap_worst": _each(proxy, true, keep, lambda p, t: _overlap(-p, -t, worst)),
        "contrast": _each(proxy, true, keep, lambda p, t: _contrast(p, t, best, worst)),
        "contrast_ideal": _each(proxy, true, keep, lambda _, t: _contrast(t, t, best, worst)),
        "contrast_share": _each(
            proxy, true, keep, lambda p, t: _contrast(p, t, best, worst) / _contrast(t, t, best, worst)
        ),
        "rank_best": _each(proxy, true, keep, lambda p, t: float(_picked(p, best) @ rankdata(-t))),
        "rank_worst": _each(proxy, true, keep, lambda p, t: float(_picked(-p, worst) @ rankdata(-t))),
    }


def whole_groups(proxy: Floats, true: Floats, keep: int) -> dict[str, Estimate]:
    """Every measure of a proxy where both rewards of whole groups are known; arguments as for ``ends``.

    Returns:
        Estimates over prompts: ``spearman``, ``kendall`` and the names of ``ends``.
    """
    values = {"spearman": spearman(proxy, true), "kendall": kendall(proxy, true), **ends(proxy, true, keep)}
    return {name: mean_estimate(each) for name, each in values.items()}


def matches(proxy: Floats, true: Floats, counts: Sequence[int]) -> dict[str, Floats]:
    """How far the proxy's top k and bottom k are those of the true reward, for each group and each k.

    Candidates that tie at the edge of a choice count in equal part.

    * ``top_overlap_k``: the strict one. The share of the proxy's top k whose true reward reaches the k-th best one;
      without ties the overlap of two sets. 1 at best, k / N by chance. ``bottom_overlap_k`` likewise from below.
    * ``top_match_k``: the lenient one. The mean share of the group's other candidates that a pick of the proxy's top k
      is better than, ties half: with r its true rank of N, (N - r) / (N - 1). 1 - (k - 1) / (2 N - 2) at best, 1/2 by
      chance. ``bottom_match_k``: the mean share that a pick of the bottom k is worse than. A near miss costs little
      here and everything in the strict one.

    Published rates (Sol-RL, Table 8) do not say how they were computed. They fall as k rises, which the lenient one
    does at its best and the strict one does not; that is no proof that it is theirs.

    Args:
        proxy: ``[P, N]``; non-finite where invalid.
        true: ``[P, N]`` of whole groups.
        counts: each k, at least 1; groups with fewer valid pairs are left out.

    Raises:
        ValueError: the shapes differ, or a k is below 1.
    """
    if any(count < 1 for count in counts):
        raise ValueError(f"counts are {list(counts)}: at least 1 candidate must be picked")
    found: dict[str, Floats] = {}
    for k in counts:
        least = max(2, k)
        found |= {
            f"top_overlap_{k}": _each(proxy, true, least, partial(_overlap, count=k)),
            f"bottom_overlap_{k}": _each(-proxy, -true, least, partial(_overlap, count=k)),
            f"top_match_{k}": _each(proxy, true, least, partial(_match, count=k)),
            f"bottom_match_{k}": _each(-proxy, -true, least, partial(_match, count=k)),
        }
    return found


def regret(proxy: Floats, true: Floats, keep: int) -> dict[str, Floats]:
    """What choosing the best by the proxy gave away, for each group.

    ``regret``: mean true reward of the b = keep - keep // 2 truly best candidates minus that of the b that the proxy
    picks, in units of the reward; 0 is nothing. ``regret_std``: the same over the standard deviation of the group's
    true rewards, which makes prompts and rewards comparable. A choice by lot has the mean of the b best minus that of
    all.

    Args as for ``ends``. Raises as it does.
    """
    if keep < 2:
        raise ValueError(f"keep is {keep}: two ends need at least 2")
    best = keep - keep // 2
    return {
        "regret": _each(proxy, true, keep, lambda p, t: _regret(p, t, best)),
        "regret_std": _each(proxy, true, keep, lambda p, t: _regret(p, t, best) / float(t.std())),
    }


def fidelity(proxy: Floats, true: Floats, keep: int, counts: Sequence[int]) -> dict[str, Floats]:
    """Every measure of a proxy where both rewards of whole groups are known, ``[P]`` each.

    ``spearman``, ``kendall``, and what ``ends``, ``regret`` and ``matches`` return; arguments as for these.
    """
    return {
        "spearman": spearman(proxy, true),
        "kendall": kendall(proxy, true),
        **ends(proxy, true, keep),
        **regret(proxy, true, keep),
        **matches(proxy, true, counts),
    }


def kept_inflated(proxy: Floats, true: Floats) -> dict[str, Estimate]:
    """Rank correlation on the kept candidates alone, which is HIGHER than that of their whole groups.

    Keeping the proxy's two ends leaves out the middle, where it is hardest to rank, so that these figures can
    show a proxy that fails but not one that is good. Overlaps and the ideal contrast cannot be known from
    kept candidates.

    Args:
        proxy: ``[P, K]`` proxy rewards of the kept candidates; non-finite in groups that were left out.
        true: ``[P, K]`` their true rewards.

    Returns:
        Estimates over prompts: ``spearman`` and ``kendall``.
    """
    return {"spearman": mean_estimate(spearman(proxy, true)), "kendall": mean_estimate(kendall(proxy, true))}


def kept_contrast(true: Floats) -> Floats:
    """The contrast that selection achieved, for each group; unlike rank correlation it is not inflated.

    Args:
        true: ``[P, K]`` true rewards of the kept candidates in the order of selection, best first.

    Returns:
        ``[P]`` mean of the first K - K // 2 minus mean of the others; NaN where any is not finite.
    """
    worst = true.shape[1] // 2
    best = true.shape[1] - worst
    known: NDArray[np.bool_] = np.all(np.isfinite(true), axis=1, keepdims=True)
    whole = np.where(known, true, np.nan)
    contrast: Floats = whole[:, :best].mean(axis=1) - whole[:, best:].mean(axis=1)
    return contrast


def _each(proxy: Floats, true: Floats, least: int, measure: Callable[[Floats, Floats], float]) -> Floats:
    if proxy.ndim != 2 or proxy.shape != true.shape:
        raise ValueError(f"proxy {proxy.shape} and true {true.shape} must both be [prompts, candidates]")
    values = np.full(len(proxy), np.nan)
    for row, valid in enumerate(np.isfinite(proxy) & np.isfinite(true)):
        p, t = (side[row][valid].astype(np.float64) for side in (proxy, true))
        if len(p) >= least and np.ptp(p) > 0 and np.ptp(t) > 0:
            values[row] = measure(p, t)
    return values


def _spearman(proxy: Floats, true: Floats) -> float:
    return float(np.corrcoef(rankdata(proxy), rankdata(true))[0, 1])


def _picked(values: Floats, count: int) -> Floats:
    """Weights, summing to 1, of the ``count`` largest; candidates that tie at the edge share what is left."""
    edge = np.sort(values)[-count]
    above, tied = values > edge, values == edge
    weights: Floats = (above + tied * ((count - above.sum()) / tied.sum())) / count
    return weights


def _overlap(proxy: Floats, true: Floats, count: int) -> float:
    return float(_picked(proxy, count) @ (true >= np.sort(true)[-count]))


def _contrast(proxy: Floats, true: Floats, best: int, worst: int) -> float:
    return float((_picked(proxy, best) - _picked(-proxy, worst)) @ true)


def _match(proxy: Floats, true: Floats, count: int) -> float:
    beaten = (rankdata(true) - 1) / (len(true) - 1)
    return float(_picked(proxy, count) @ beaten)


def _regret(proxy: Floats, true: Floats, best: int) -> float:
    return float((_picked(true, best) - _picked(proxy, best)) @ true)
