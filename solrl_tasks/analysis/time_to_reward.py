"""How much sooner than a baseline an arm comes to a reward: levels, costs to reach them, speed-ups and their spread."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Final, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from scipy import optimize, stats

from solrl_tasks.analysis.estimates import Estimate, Figure, confidence_interval, mean_estimate
from solrl_tasks.config.base import Frozen

Floats = NDArray[np.float64]

SHARES: Final = (0.25, 0.5, 0.75, 1.0)
"""Of the baseline's gain, at which arms are compared."""
TAIL: Final = 1 / 3
LEAST_TAIL: Final = 3
"""Evaluations: a line through two has no error."""
RESAMPLES: Final = 2000
ROUNDING: Final = 1e-9
"""Of the range of a curve: what is less is no difference."""

Trend = Literal["flat", "rising", "falling"]
Bound = Literal["exact", "at least", "at most", "unknown"]


@dataclass(frozen=True)
class Curves:
    """Held-out reward of one arm.

    Attributes:
        seeds: of training; runs of two arms with one seed are a pair.
        places: iterations of the evaluations, increasing, ``[E]``; the first is the untrained model's.
        rewards: ``[S, E]``, finite.
        costs: spent by each run up to each evaluation, ``[S, E]``, in any one unit; increasing.
        prompt_errors: standard errors of the rewards over prompts, ``[S, E]``, or None where they are not known.
    """

    seeds: tuple[int, ...]
    places: Floats
    rewards: Floats
    costs: Floats
    prompt_errors: Floats | None = None

    def __post_init__(self) -> None:
        shape = (len(self.seeds), len(self.places))
        given = {"rewards": self.rewards, "costs": self.costs, "prompt_errors": self.prompt_errors}
        for name, values in given.items():
            if values is not None and np.shape(values) != shape:
                raise ValueError(f"{name} is {np.shape(values)}, but seeds and places make {shape}")
        if len(set(self.seeds)) < len(self.seeds) or not all(shape):
            raise ValueError(f"curves need distinct seeds and places, found seeds {self.seeds}, {shape[1]} places")
        if np.any(np.diff(self.places) <= 0) or np.any(np.diff(self.costs, axis=1) <= 0):
            raise ValueError("places and costs must increase from one evaluation to the next")
        if not np.all(np.isfinite(self.rewards)):
            raise ValueError("rewards must be finite: leave out evaluations that a run does not have")

    def paired(self, other: "Curves") -> tuple["Curves", "Curves"]:
        """Both with the seeds alone that both have, in one order.

        Raises:
            ValueError: they share none.
        """
        common = [seed for seed in self.seeds if seed in other.seeds]
        if not common:
            raise ValueError(f"no pair of runs: one arm has seeds {self.seeds}, the other {other.seeds}")
        return self.take(common), other.take(common)

    def take(self, seeds: Sequence[int]) -> "Curves":
        """The runs of some seeds."""
        rows = [self.seeds.index(seed) for seed in seeds]
        errors = None if self.prompt_errors is None else self.prompt_errors[rows]
        return Curves(tuple(seeds), self.places, self.rewards[rows], self.costs[rows], errors)


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


class AtShare(Frozen):
    """An arm at one share of the baseline's gain.

    Attributes:
        unresolved: the noise of the arm's or the baseline's curve there is larger than the step from this threshold to
            the next below (or the baseline's gain is not resolved from 0), so that the figures tell nothing.
    """

    share: float
    level: float
    step: float
    arm: Reached
    baseline: Reached
    speedup: SpeedUp
    unresolved: bool


def isotonic(values: Floats) -> Floats:
    """The rising curve that is nearest in squares, ``[..., E]``.

    A running maximum would take the luckiest measurement for progress; a mean over neighbours would come to a level
    before the curve does. A curve that falls after a peak is levelled over both: it reached what it holds.
    """
    flat = np.reshape(values, (-1, np.shape(values)[-1]))
    fitted = np.array([optimize.isotonic_regression(row).x for row in flat], dtype=np.float64)
    return fitted.reshape(np.shape(values))


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


def reach(curves: Curves, level: float) -> Reached:
    """What each run spent when its rising curve first comes to a level, between evaluations on a straight line."""
    found = _spent(_Lines.of(curves), level)
    mean = float(_spent(_Lines.mean_of(curves), level)[0])
    place = curves.places[-1] if math.isnan(mean) else np.interp(mean, curves.costs.mean(axis=0), curves.places)
    return Reached(
        cost=mean_estimate(found),
        each=tuple(None if math.isnan(one) else one for one in found.tolist()),
        of_mean=None if math.isnan(mean) else mean,
        noise=float(np.interp(place, curves.places, curve_noise(curves))),
    )


def curve_noise(curves: Curves) -> Floats:
    """Standard error of the mean curve, ``[E]``; NaN with one seed.

    All seeds are evaluated on the same prompts, so that the error over prompts is not less for more seeds.
    """
    count = len(curves.seeds)
    if count < 2:
        return np.full(len(curves.places), np.nan)
    seeds: Floats = curves.rewards.std(axis=0, ddof=1) / math.sqrt(count)
    prompts = 0.0 if curves.prompt_errors is None else np.nan_to_num(curves.prompt_errors).mean(axis=0)
    noise: Floats = np.hypot(seeds, prompts)
    return noise


def time_to_reward(arm: Curves, baseline: Curves, shares: Sequence[float] = SHARES) -> tuple[AtShare, ...]:
    """What an arm and the baseline spend until they are at shares of the baseline's gain.

    Args:
        shares: increasing, above 0.

    Raises:
        ValueError: the shares are not so, no seed is in both arms, or there are too few evaluations.
    """
    if not shares or min(shares) <= 0 or np.any(np.diff(shares) <= 0):
        raise ValueError(f"shares must be above 0 and increase, found {tuple(shares)}")
    plateau, pair = find_plateau(baseline), _Pair(arm, baseline)
    found, below = [], 0.0
    for share in shares:
        level, step = plateau.threshold(share), (share - below) * (plateau.level - plateau.start)
        mine, theirs = reach(arm, level), reach(baseline, level)
        # Never true of NaN: with one seed the noise is unknown, and nothing is resolved.
        clear = plateau.resolved and mine.noise <= step and theirs.noise <= step
        found.append(
            AtShare(
                share=share,
                level=level,
                step=step,
                arm=mine,
                baseline=theirs,
                speedup=pair.speed_up(plateau, share),
                unresolved=not clear,
            )
        )
        below = share
    return tuple(found)


def speed_up(arm: Curves, baseline: Curves, plateau: Plateau, share: float) -> SpeedUp:
    """The baseline's cost of a share of its gain over the arm's, seed by seed and of the mean curves.

    Args:
        plateau: of all the baseline's seeds.

    Raises:
        ValueError: no seed is in both arms.
    """
    return _Pair(arm, baseline).speed_up(plateau, share)


@dataclass(frozen=True)
class _Lines:
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


class _Pair:
    """Two arms with the seeds that both have, and resamples of these, fitted once for all levels."""

    def __init__(self, arm: Curves, baseline: Curves) -> None:
        self._arm, self._baseline = arm.paired(baseline)
        count = len(self._arm.seeds)
        # A stream of its own: the same curves give the same interval.
        drawn = np.random.default_rng(0).integers(count, size=(RESAMPLES, count))
        kinds, self._which = np.unique(np.sort(drawn, axis=1), axis=0, return_inverse=True)
        self._resampled = _Lines.mean_of(self._arm, kinds), _Lines.mean_of(self._baseline, kinds)
        self._whole = _Lines.mean_of(self._arm), _Lines.mean_of(self._baseline)

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
        reach = math.sqrt(count / (count - 1)) * stats.t.ppf(0.975, count - 1)
        outside = float(stats.norm.cdf(-reach))
        low, high = np.quantile(found, [outside, 1 - outside], method="nearest")
        return float(low), float(high)


def _bound(arm: int, baseline: int) -> Bound:
    if arm and baseline:
        return "unknown"
    return "at most" if arm else "at least" if baseline else "exact"


def _ratios(arm: _Lines, baseline: _Lines, plateau: Plateau, share: float) -> Floats:
    """Ratios of costs at a share of the gain of each baseline, ``[R]``; 0 where the arm never comes there.

    The end of a baseline's rising curve is never below the mean of its tail: the baseline always comes there. NaN where
    it has no gain, or the arm begins there.
    """
    start, rewards = baseline.rewards[:, 0], baseline.rewards
    end = rewards[:, -plateau.tail :].mean(axis=1) if plateau.trend == "flat" else rewards[:, -1]
    level = start + share * (end - start)
    theirs, mine = _spent(baseline, level), _spent(arm, level)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = np.where(np.isnan(mine), 0.0, theirs / mine)
    told: Floats = np.where((end > start) & np.isfinite(ratios), ratios, np.nan)
    return told


def _spent(lines: _Lines, level: float | Floats) -> Floats:
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
