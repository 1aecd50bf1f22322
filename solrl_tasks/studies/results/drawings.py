"""The plots of the results."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from solrl_tasks.analysis.estimates import Estimate
from solrl_tasks.analysis.plots import Series, progress_curve, rank_curve, reward_curve
from solrl_tasks.analysis.time_to_reward import AtShare
from solrl_tasks.studies.results.findings import SECONDS_PER_HOUR, Ablation, ArmFinding, Direct, Race, Results

APART: Final = 1.4
"""Per cent of a share between the bars of one arm and the next."""


def draw(found: Results) -> dict[str, bytes]:
    """PNG files by name; what there is nothing of is not drawn."""
    drawn: dict[str, bytes] = {}
    raced = [arm for race in found.races[:1] for name in race.budgets if (arm := found.arm(name))]
    if raced:
        title = "Held-out reward of the controls"
        drawn["controls-iterations"] = reward_curve([_curve(a, float) for a in raced], found.reward, title)
        hours = [_curve(arm, _hours(arm)) for arm in raced if arm.modelled is not None]
        if hours:
            across = f"modelled GPU-hours ({found.modelled_hardware})"
            drawn["controls-gpu-hours"] = progress_curve(hours, across, found.reward, title)
    if found.steps:
        lines = [_ablation(found.steps, "embedded model")]
        drawn["steps"] = rank_curve(lines, found.reward, "Reward at the end over explore steps")
    if found.candidates_ablation:
        lines = [_ablation(found.candidates_ablation, "embedded model")]
        title = "Reward at the end over candidates"
        drawn["candidates"] = progress_curve(lines, "candidates a prompt", found.reward, title)
    if found.direct:
        drawn["direct"] = reward_curve(
            _sides(found, found.direct), found.reward, "Trained on samples of which precision"
        )
    for race in found.races:
        if race.unit == "modelled GPU-hours" and (lines := _speedups(race)):
            title = f"Times less {race.unit} than {race.baseline}"
            across = "share of the baseline's gain, %"
            drawn["speed-ups"] = progress_curve(lines, across, "speed-up", title, errors="bars")
    return drawn


def _curve(arm: ArmFinding, place: Callable[[int], float]) -> Series:
    return _line(arm.name, [place(step) for step in arm.places], arm.curve)


def _hours(arm: ArmFinding) -> Callable[[int], float]:
    seconds = arm.modelled or 0.0
    return lambda step: step * seconds / SECONDS_PER_HOUR


def _line(label: str, x: Sequence[float], values: Sequence[Estimate]) -> Series:
    return Series(label, x, [one.mean for one in values], [one.stderr for one in values])


def _ablation(found: Ablation, label: str) -> Series:
    return _line(label, [row.value for row in found.rows], [row.end for row in found.rows])


def _sides(found: Results, direct: Direct) -> list[Series]:
    return [_curve(arm, float) for name in (direct.precise, direct.direct) if (arm := found.arm(name))]


def _speedups(race: Race) -> list[Series]:
    """Only what the noise resolves; an end of an interval that is not known is a gap."""
    lines = []
    for name, reached in race.arms.items():
        told = [one for one in reached if not one.unresolved and math.isfinite(one.speedup.of_mean)]
        if told:
            lines.append(_speedup(name, told))
    # Side by side: all arms have their bars at the same shares.
    middle = (len(lines) - 1) / 2
    return [replace(line, x=[x + APART * (n - middle) for x in line.x]) for n, line in enumerate(lines)]


def _speedup(name: str, told: Sequence[AtShare]) -> Series:
    ups = [one.speedup for one in told]
    bounds = ([up.of_mean_low for up in ups], [up.of_mean_high for up in ups])
    return Series(name, [100 * one.share for one in told], [up.of_mean for up in ups], bounds=bounds)
