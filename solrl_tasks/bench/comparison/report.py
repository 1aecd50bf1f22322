"""What the runs of the comparison came to, from what they committed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from solrl_tasks.analysis.estimates import Estimate, Figure, mean_estimate, paired_difference
from solrl_tasks.analysis.progress import crossing, first_reach, mean_curve, paired_curves, value_at
from solrl_tasks.bench.comparison.arms import UNTRAINED, PlannedRun, Selection
from solrl_tasks.bench.comparison.gradients import GradientCosines
from solrl_tasks.config.base import Frozen
from solrl_tasks.config.words import counted
from solrl_tasks.tracking.summary import Summary

ANCHORS: Final = ("ram", "nft", "awm", "awm-free")
"""Arms that are compared at equal trained reward, from an anchor at the base to none."""
BESIDES: Final = (*(f"eval/{name}" for name in UNTRAINED), "policy/distance", "policy/lora_norm", "policy/diversity")
"""What is looked at then."""
SECONDS_PER_HOUR: Final = 3600.0


class NothingToCompareError(ValueError):
    """The runs do not make a comparison, or do not yet."""


@dataclass(frozen=True)
class RunRecord:
    """A run as it was committed.

    Attributes:
        reward: name of the trained reward.
        iteration_seconds: modelled, of one iteration.
        summaries: of all committed steps, in order.
    """

    run: PlannedRun
    reward: str
    iteration_seconds: float
    summaries: Sequence[Summary]

    @cached_property
    def measured(self) -> dict[int, Summary]:
        """Steps with a held-out evaluation."""
        return {one.step: one for one in self.summaries if f"eval/{self.reward}" in one.metrics}

    def curve(self, steps: Sequence[int], name: str = "") -> list[float]:
        """A metric at some evaluated steps, NaN where it is absent; the trained reward by default."""
        name = name or f"eval/{self.reward}"
        return [self.measured[step].metrics.get(name, math.nan) for step in steps]

    def optimizer_steps(self, steps: Sequence[int]) -> list[float]:
        """How many were made by the end of some evaluated steps."""
        return [self.measured[step].metrics.get("train/optimizer_steps", 0.0) for step in steps]

    def hours(self, steps: Sequence[int]) -> list[float]:
        """Modelled GPU-hours of the iterations up to some steps."""
        return [step * self.iteration_seconds / SECONDS_PER_HOUR for step in steps]

    def device_seconds(self) -> dict[str, float]:
        """Measured device-seconds of an iteration by stage, the mean over those that are committed."""
        iterations = [one for one in self.summaries if one.step > 0]
        stages = {name for one in iterations for name in one.stages}
        return {
            name: sum(one.stages[name].attributed_seconds for one in iterations if name in one.stages) / len(iterations)
            for name in sorted(stages)
        }


class ArmResult(Frozen):
    """An arm over its seeds.

    Attributes:
        seeds: those with two evaluations or more.
        iterations, optimizer_steps, hours: at each evaluation that all seeds have; hours are modelled.
        curve: held-out trained reward there.
        gain: at the last of them, against the untrained policy.
        peak: where the mean curve is highest; its index.
        device_seconds: measured, of an iteration by stage.
    """

    arm: str
    selection: Selection
    seeds: tuple[int, ...]
    iterations: tuple[int, ...]
    optimizer_steps: tuple[float, ...]
    hours: tuple[float, ...]
    curve: tuple[Estimate, ...]
    gain: Estimate
    peak: int
    device_seconds: dict[str, float]


class PairedGain(Frozen):
    """Two-stage selection minus plain, seed by seed.

    Attributes:
        iterations: evaluations that all runs of both have.
        difference: of the held-out trained reward at each.
        equal_hours: of it at the same modelled hours, as many as the cheaper one of each pair spent at the last of
            ``iterations``.
    """

    arm: str
    seeds: tuple[int, ...]
    iterations: tuple[int, ...]
    difference: tuple[Estimate, ...]
    equal_hours: Estimate


class Reach(Frozen):
    """How soon one arm comes to the peak of another.

    Attributes:
        level: the other's highest mean over seeds. Of noisy measurements the highest is too high: the larger the noise
            and the more there are.
        peak_step: optimizer step of the other at that.
        step: the first evaluated optimizer step at which the mean of the one is there; None is never.
        last_step: how far the one was trained.
        each: the same for each seed against its own peak of the other: peak step, and the step or None.
    """

    selection: Selection
    level: float
    peak_step: float
    step: float | None
    last_step: float
    each: dict[int, tuple[float, float | None]]


class AtLevel(Frozen):
    """What else is so of an arm where its trained reward comes to a level.

    Attributes:
        reached, seeds: how many runs come there, of how many.
        step: optimizer step at which they do.
        others: change of untrained rewards since the untrained policy, and what else is in ``BESIDES``.
    """

    arm: str
    selection: Selection
    level: float
    reached: int
    seeds: int
    step: Estimate
    others: dict[str, Estimate]


class Comparison(Frozen):
    """All that is reported."""

    reward: str
    arms: tuple[ArmResult, ...]
    gains: tuple[PairedGain, ...]
    reaches: tuple[Reach, ...]
    levels: tuple[AtLevel, ...]
    gradients: GradientCosines | None = None
    bf16_rate: Figure = math.nan


def compare(records: Sequence[RunRecord]) -> Comparison:
    """Everything that the records tell. Runs without two evaluations are left out.

    Raises:
        NothingToCompareError: nothing is left, or runs were trained on different rewards.
    """
    usable = [record for record in records if len(record.measured) > 1]
    rewards = sorted({record.reward for record in usable})
    if len(rewards) != 1:
        complete = f"{len(usable)} of {counted(len(records), 'run')} with two evaluations"
        raise NothingToCompareError(f"{complete}; their trained rewards are {rewards}: one is needed")
    groups: dict[tuple[str, Selection], list[RunRecord]] = {}
    for record in usable:
        groups.setdefault((record.run.arm, record.run.selection), []).append(record)
    arms = list(dict.fromkeys(arm for arm, _ in groups))
    hows = list(dict.fromkeys(how for _, how in groups))
    pairs = [(arm, groups.get((arm, "two-stage"), []), groups.get((arm, "plain"), [])) for arm in arms]
    races = [(how, groups.get(("ram", how), []), groups.get(("flow-grpo", how), [])) for how in hows]
    return Comparison(
        reward=rewards[0],
        arms=tuple(_arm(group) for group in groups.values()),
        gains=tuple(gain for arm, two, plain in pairs if (gain := _paired(arm, two, plain))),
        reaches=tuple(reach(how, one, other) for how, one, other in races if one and other),
        levels=tuple(found for how in hows for found in _levels(how, groups)),
    )


def common_steps(records: Sequence[RunRecord]) -> list[int]:
    """Steps that all of them evaluated."""
    return sorted(set.intersection(*(set(record.measured) for record in records)))


def _arm(records: Sequence[RunRecord]) -> ArmResult:
    steps, first = common_steps(records), records[0]
    curves = [record.curve(steps) for record in records]
    curve, last = mean_curve(curves), np.array([one[-1] for one in curves])
    costs = [record.device_seconds() for record in records]
    return ArmResult(
        arm=first.run.arm,
        selection=first.run.selection,
        seeds=tuple(record.run.seed for record in records),
        iterations=tuple(steps),
        optimizer_steps=tuple(first.optimizer_steps(steps)),
        hours=tuple(first.hours(steps)),
        curve=tuple(curve),
        gain=paired_difference(last, np.array([one[0] for one in curves])),
        peak=int(np.nanargmax([one.mean for one in curve])),
        device_seconds={
            name: sum(one.get(name, 0.0) for one in costs) / len(costs) for name in sorted(set().union(*costs))
        },
    )


def _paired(arm: str, two: Sequence[RunRecord], plain: Sequence[RunRecord]) -> PairedGain | None:
    other = {record.run.seed: record for record in plain}
    pairs = [(record, other[record.run.seed]) for record in two if record.run.seed in other]
    if not pairs:
        return None
    steps = common_steps([record for pair in pairs for record in pair])
    after, before = ([pair[side].curve(steps) for pair in pairs] for side in (0, 1))
    equal = [_at_equal_hours(one, base, steps) for one, base in pairs]
    return PairedGain(
        arm=arm,
        seeds=tuple(record.run.seed for record, _ in pairs),
        iterations=tuple(steps),
        difference=tuple(paired_curves(after, before)),
        equal_hours=mean_estimate(np.array(equal)),
    )


def _at_equal_hours(one: RunRecord, other: RunRecord, steps: Sequence[int]) -> float:
    hours = min(record.hours(steps)[-1] for record in (one, other))
    first, second = (value_at(record.hours(steps), record.curve(steps), hours) for record in (one, other))
    return first - second


def reach(how: Selection, one: Sequence[RunRecord], other: Sequence[RunRecord]) -> Reach:
    """When ``one`` comes to the peak of ``other``."""
    mine, others = _arm(one), _arm(other)
    means = [estimate.mean for estimate in mine.curve]
    level = others.curve[others.peak].mean
    theirs = {record.run.seed: record for record in other}
    pairs = [(record, theirs[record.run.seed]) for record in one if record.run.seed in theirs]
    return Reach(
        selection=how,
        level=level,
        peak_step=others.optimizer_steps[others.peak],
        step=first_reach(mine.optimizer_steps, means, level),
        last_step=mine.optimizer_steps[-1],
        each={record.run.seed: _race(record, rival) for record, rival in pairs},
    )


def _race(record: RunRecord, rival: RunRecord) -> tuple[float, float | None]:
    mine, theirs = common_steps([record]), common_steps([rival])
    curve = rival.curve(theirs)
    place = int(np.nanargmax(curve))
    reached = first_reach(record.optimizer_steps(mine), record.curve(mine), curve[place])
    return rival.optimizer_steps(theirs)[place], reached


def _levels(how: Selection, groups: dict[tuple[str, Selection], list[RunRecord]]) -> list[AtLevel]:
    """At the highest trained reward that every run of the anchored arms comes to, and half-way there."""
    chosen = {arm: groups[arm, how] for arm in ANCHORS if (arm, how) in groups}
    if not chosen:
        return []
    curves = [record.curve(common_steps([record])) for records in chosen.values() for record in records]
    start, top = max(curve[0] for curve in curves), min(max(curve) for curve in curves)
    if top <= start:
        return []
    return [_at_level(level, records) for level in ((start + top) / 2, top) for records in chosen.values()]


def _at_level(level: float, records: Sequence[RunRecord]) -> AtLevel:
    first = records[0]
    found: dict[str, list[float]] = {name: [] for name in BESIDES}
    places = []
    for record in records:
        steps = common_steps([record])
        x = record.optimizer_steps(steps)
        place = crossing(x, record.curve(steps), level)
        if place is None:
            continue
        places.append(place)
        for name in BESIDES:
            found[name].append(_besides(record, steps, name, place))
    return AtLevel(
        arm=first.run.arm,
        selection=first.run.selection,
        level=level,
        reached=len(places),
        seeds=len(records),
        step=mean_estimate(np.array(places)),
        others={name: mean_estimate(np.array(values)) for name, values in found.items()},
    )


def _besides(record: RunRecord, steps: Sequence[int], name: str, place: float) -> float:
    values = record.curve(steps, name)
    if name == "policy/distance":
        # Step 0 has no distance to itself.
        values = [0.0 if step == 0 else value for step, value in zip(steps, values, strict=True)]
    value = value_at(record.optimizer_steps(steps), values, place)
    return value - values[0] if name.startswith("eval/") else value
