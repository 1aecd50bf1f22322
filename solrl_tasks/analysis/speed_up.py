"""How many times less an arm spent than a baseline until both had come to a share of the baseline's gain."""

import math
from typing import Annotated, Final, Literal

import numpy as np
from pydantic import Field
from scipy import stats

from solrl_tasks.analysis.curves import Curves, Floats
from solrl_tasks.analysis.estimates import Figure, confidence_interval, mean_estimate
from solrl_tasks.analysis.plateau import Plateau
from solrl_tasks.analysis.reach import Lines, Reached, reach, spent
from solrl_tasks.config.base import Frozen

RESAMPLES: Final = 2000

Bound = Literal["exact", "at least", "at most", "unknown"]


class SpeedUp(Frozen):
    """How many times less than the baseline an arm spent, pairs of one seed.

    Attributes:
        ratio: geometric mean over pairs. A run that never comes to the level counts with all that it spent, which makes
            the ratio a bound.
        low, high: 95 % by Student's t on logarithms; NaN for bounds, and with fewer than two pairs.
        bound: ``at least`` where only runs of the baseline miss the level, ``at most`` where only runs of the arm do,
            ``unknown`` where both do: ``ratio`` is NaN then.
        pairs: of runs.
        arm_censored, baseline_censored: runs of each that never come there.
        of_mean: ratio of the costs of both mean curves, NaN where one never comes there.
        of_mean_low, of_mean_high: 95 % of it, by resampling pairs of seeds, the level with them. A low end of 0 says
            that in more than 2.5 % of them the arm never comes there.
    """

    ratio: Figure
    low: Figure
    high: Figure
    bound: Bound
    pairs: Annotated[int, Field(ge=1)]
    arm_censored: int
    baseline_censored: int
    of_mean: Figure
    of_mean_low: Figure
    of_mean_high: Figure


def speed_up(arm: Curves, baseline: Curves, plateau: Plateau, share: float) -> SpeedUp:
    """The baseline's cost of a share of its gain over the arm's, seed by seed and of the mean curves.

    Args:
        plateau: of all the baseline's seeds.

    Raises:
        ValueError: no seed is in both arms.
    """
    return Pair(arm, baseline).speed_up(plateau, share)


class Pair:
    """Two arms with the seeds that both have, and resamples of these, fitted once for all levels."""

    def __init__(self, arm: Curves, baseline: Curves) -> None:
        self._arm, self._baseline = arm.paired(baseline)
        count = len(self._arm.seeds)
        # A stream of its own: the same curves give the same interval.
        drawn = np.random.default_rng(0).integers(count, size=(RESAMPLES, count))
        kinds, self._which = np.unique(np.sort(drawn, axis=1), axis=0, return_inverse=True)
        self._resampled = Lines.mean_of(self._arm, kinds), Lines.mean_of(self._baseline, kinds)
        self._whole = Lines.mean_of(self._arm), Lines.mean_of(self._baseline)

    def speed_up(self, plateau: Plateau, share: float) -> SpeedUp:
        """At a share of the baseline's gain."""
        level = plateau.threshold(share)
        ours, base = reach(self._arm, level), reach(self._baseline, level)
        known = mean_estimate(self._log_ratios(ours, base))
        bound = _bound(ours.censored, base.censored)
        low, high = confidence_interval(known) if bound == "exact" else (math.nan, math.nan)
        whole = float(_ratios(*self._whole, plateau, share)[0])
        low_of_mean, high_of_mean = self._interval(plateau, share)
        return SpeedUp(
            ratio=math.nan if bound == "unknown" else math.exp(known.mean),
            low=math.exp(low),
            high=math.exp(high),
            bound=bound,
            pairs=len(self._arm.seeds),
            arm_censored=ours.censored,
            baseline_censored=base.censored,
            of_mean=whole if whole > 0 else math.nan,
            of_mean_low=low_of_mean,
            of_mean_high=high_of_mean,
        )

    def _log_ratios(self, ours: Reached, base: Reached) -> Floats:
        """Logarithms of the ratios of pairs; a run that never comes there counts with all that it spent."""
        mine, theirs = (
            np.array([end if own is None else own for own, end in zip(found.each, curves.costs[:, -1], strict=True)])
            for found, curves in ((ours, self._arm), (base, self._baseline))
        )
        # A run that begins above the level spent nothing for it: it has no ratio and is left out.
        with np.errstate(divide="ignore", invalid="ignore"):
            logs: Floats = np.log(theirs / mine)
        return logs

    def _interval(self, plateau: Plateau, share: float) -> tuple[float, float]:
        """Ends of a 95 % interval of the ratio of mean curves by resampling pairs of seeds.

        Percentiles of few units are too near: they are taken further out, by as much as Student's t and the missing
        n - 1 ask for (expanded percentiles, Hesterberg, arXiv 1411.5279, section 5.3).
        """
        count = len(self._arm.seeds)
        if count < 2:
            return math.nan, math.nan
        found = _ratios(*self._resampled, plateau, share)[self._which.ravel()]
        width = math.sqrt(count / (count - 1)) * stats.t.ppf(0.975, count - 1)
        outside = float(stats.norm.cdf(-width))
        low, high = np.quantile(found, [outside, 1 - outside], method="nearest")
        return float(low), float(high)


def _bound(arm: int, baseline: int) -> Bound:
    if arm and baseline:
        return "unknown"
    return "at most" if arm else "at least" if baseline else "exact"


def _ratios(arm: Lines, baseline: Lines, plateau: Plateau, share: float) -> Floats:
    """Ratios of costs at a share of the gain of each baseline, ``[R]``; 0 where the arm never comes there.

    The end of a baseline's rising curve is never below the mean of its tail: the baseline always comes there. NaN where
    it has no gain, or the arm begins there.
    """
    start, rewards = baseline.rewards[:, 0], baseline.rewards
    end = rewards[:, -plateau.tail :].mean(axis=1) if plateau.trend == "flat" else rewards[:, -1]
    level = start + share * (end - start)
    theirs, mine = spent(baseline, level), spent(arm, level)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.where(np.isnan(mine), 0.0, theirs / mine)
    told: Floats = np.where((end > start) & np.isfinite(ratios), ratios, np.nan)
    return told
