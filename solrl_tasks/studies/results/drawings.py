"""The plots of the results. An arm has one colour in all of them, by its place among all arms."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from solrl_tasks.analysis.estimates import Estimate
from solrl_tasks.analysis.plots import NEUTRAL, Series, looks, progress_curve, rank_curve, reward_curve
from solrl_tasks.analysis.time_to_reward import AtShare
from solrl_tasks.studies.results.findings import SECONDS_PER_HOUR, Ablation, ArmFinding, Direct, Race, Results

APART: Final = 1.4
"""Per cent of a share between the bars of one arm and the next."""
TITLES: Final = {
    "controls-iterations": "Held-out reward of the controls",
    "controls-gpu-hours": "Held-out reward of the controls",
    "steps": "Reward at the end over explore steps",
    "candidates": "Reward at the end over candidates",
    "direct": "Trained on samples of which precision",
    "speed-ups": "Times less modelled GPU-hours than {}",
}
ACROSS: Final = {
    "controls-gpu-hours": "modelled GPU-hours ({})",
    "candidates": "candidates a prompt",
    "speed-ups": "share of the baseline's gain, %",
}
"""What is on the horizontal axis where it is not iterations or explore steps."""


def draw(found: Results) -> dict[str, bytes]:
    """PNG files by name; what there is nothing of is not drawn."""
    drawn: dict[str, bytes] = {}
    for name, lines in lines_of(found).items():
        title, across = TITLES[name], ACROSS.get(name, "")
        if name == "steps":
            drawn[name] = rank_curve(lines, found.reward, title)
        elif name == "speed-ups":
            title = title.format(found.races[0].baseline)
            drawn[name] = progress_curve(lines, across, "speed-up", title, errors="bars", even=1.0)
        elif across:
            across = across.format(found.modelled_hardware)
            drawn[name] = progress_curve(lines, across, found.reward, title)
        else:
            drawn[name] = reward_curve(lines, found.reward, title)
    return drawn


def lines_of(found: Results) -> dict[str, list[Series]]:
    """The lines of each plot by its name, without those of which there is nothing."""
    raced = [arm for race in found.races[:1] for name in race.budgets if (arm := found.arm(name))]
    modelled = [race for race in found.races if race.unit == "modelled GPU-hours"]
    ablations = {"steps": found.steps, "candidates": found.candidates_ablation}
    lines = {
        "controls-iterations": [_curve(arm, float) for arm in raced],
        "controls-gpu-hours": [_curve(arm, _hours(arm)) for arm in raced if arm.modelled is not None],
        # Each point is another arm: the line is of none of them.
        **{name: [replace(_ablation(one), look=NEUTRAL)] for name, one in ablations.items() if one},
        "direct": _sides(found, found.direct) if found.direct else [],
        "speed-ups": [line for race in modelled for line in _speedups(race)],
    }
    known = looks([*(arm.name for arm in found.arms), *found.absent])
    return {
        name: [replace(line, look=line.look or known.get(line.label)) for line in these]
        for name, these in lines.items()
        if these
    }


def _curve(arm: ArmFinding, place: Callable[[int], float]) -> Series:
    return _line(arm.name, [place(step) for step in arm.places], arm.curve)


def _hours(arm: ArmFinding) -> Callable[[int], float]:
    seconds = arm.modelled or 0.0
    return lambda step: step * seconds / SECONDS_PER_HOUR


def _line(label: str, x: Sequence[float], values: Sequence[Estimate]) -> Series:
    return Series(label, x, [one.mean for one in values], [one.stderr for one in values])


def _ablation(found: Ablation) -> Series:
    return _line("embedded model", [row.value for row in found.rows], [row.end for row in found.rows])


def _sides(found: Results, direct: Direct) -> list[Series]:
    return [_curve(arm, float) for name in (direct.precise, direct.direct) if (arm := found.arm(name))]


def _speedups(race: Race) -> list[Series]:
    """Only what the noise of the curves lets be told; an end of an interval that is not known is a gap."""
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
