"""Sections on cost: what arms spend to a reward, and what they have for the same cost."""

import math
from collections.abc import Mapping, Sequence
from typing import Final

from solrl_tasks.analysis.plateau import Plateau
from solrl_tasks.analysis.reach import Reached
from solrl_tasks.analysis.speed_up import SpeedUp
from solrl_tasks.analysis.time_to_reward import AtShare
from solrl_tasks.config.words import counted
from solrl_tasks.reports.page import Block, Kind, Table, Text
from solrl_tasks.studies.results.cells import ERRORS, between, claim_lines, figure, said, shown, with_interval
from solrl_tasks.studies.results.findings import Race, Results
from solrl_tasks.studies.results.published import SPEEDUPS

SAME_WORK: Final = ("regenerate", "update")
"""Stages that do as much in every arm: as many kept seeds are sampled as precisely, and trained on."""


def kind_of(race: Race) -> Kind:
    """Whether its costs are measured or modelled."""
    return "modelled" if race.unit == "modelled GPU-hours" else "measured"


def race_blocks(found: Results, pictures: Mapping[str, bytes]) -> list[Block]:
    """Costs to shares of the baseline's gain, a table a unit."""
    blocks: list[Block] = []
    for race in found.races:
        blocks += _race(found, race)
    if blocks:
        lines = [f"{name}: {', '.join(f'{v:g}' for v in known.values())}" for name, known in SPEEDUPS.items()]
        shares = ", ".join(f"{100 * share:.0f}" for share in next(iter(SPEEDUPS.values())))
        blocks.append(Text(f"Published GPU-hours of DiffusionNFT over Sol-RL at {shares} %: {'; '.join(lines)}."))
    return [
        *blocks,
        *figure(
            found,
            pictures,
            "speed-ups",
            "Speed-ups to shares of the baseline's gain, where the noise of the curves lets them be told",
            "modelled",
            "bars: 95 %; one that holds 1 does not say which is cheaper; down to 0: some samples never come there",
        ),
    ]


def _race(found: Results, race: Race) -> list[Block]:
    gone = " ".join(f"{name}: {why}." for name, why in race.absent.items())
    if race.plateau is None or not race.arms:
        return [Text(f"In {race.unit}: {gone}")]
    first = next(iter(race.arms.values()))
    columns = ("arm", *(f"{100 * at.share:.0f} % ({at.level:.4f})" for at in first))
    # What the baseline spends stands beside every arm, and is the same.
    costs = [(race.baseline, *(_cost(at.baseline) for at in first))]
    costs += [(name, *(_cost(at.arm) for at in reached)) for name, reached in race.arms.items()]
    ratios = [row for name, reached in race.arms.items() for row in _ratio_rows(name, reached)]
    note = " ".join(part for part in (_level(race.plateau), gone, _seconds_of(found, race)) if part)
    spread = _timing_spread(found, race)
    where = said(found, ERRORS, kind_of(race))
    return [
        Table(f"Cost of shares of the gain of {race.baseline}, {race.unit}", columns, tuple(costs), where, note),
        Table(f"Times less than {race.baseline}, {race.unit}", columns, tuple(ratios), where, spread),
        *claim_lines(race.claims),
    ]


def _seconds_of(found: Results, race: Race) -> str:
    """What has to be known of measured seconds: some engines stand in for others."""
    if race.unit != "measured device-seconds":
        return ""
    notes: dict[str, list[str]] = {}
    for name in race.arms:
        arm = found.arm(name)
        if arm is not None and arm.note:
            notes.setdefault(arm.note, []).append(name)
    return " ".join(f"{', '.join(names)}: {note}." for note, names in notes.items())


def _timing_spread(found: Results, race: Race) -> str:
    """How far the seconds of stages lie apart that are the same work in every arm: no interval over seeds has that."""
    if race.unit != "measured device-seconds":
        return ""
    arms = [found.arm(name) for name in (race.baseline, *race.arms)]
    parts = []
    for stage in SAME_WORK:
        spent = [arm.timed[stage] for arm in arms if arm is not None and arm.timed is not None and stage in arm.timed]
        if len(spent) > 1:
            parts.append(f"{stage} {min(spent):.2f} to {max(spent):.2f} s")
    if not parts:
        return ""
    return (
        f"Every arm's iteration was timed by itself. What is the same work in all arms took from arm to arm: "
        f"{', '.join(parts)}. The intervals are over seeds and have nothing of that."
    )


def _cost(reached: Reached) -> str:
    count = len(reached.each)
    there = count - reached.censored
    mean = shown(reached.cost, 3)
    return mean if there == count else f"{mean} ({there} of {count})"


def _ratio_rows(name: str, reached: Sequence[AtShare]) -> list[tuple[str, ...]]:
    """Of mean curves, with what the noise does not resolve told instead; of pairs."""
    ups = [at.speedup for at in reached]
    means = [between(up.of_mean, up.of_mean_low, up.of_mean_high) for up in ups]
    told = ["unresolved" if at.unresolved else mean for at, mean in zip(reached, means, strict=True)]
    pairs = ["unresolved" if at.unresolved else _pairs(up) for at, up in zip(reached, ups, strict=True)]
    count, every = ups[0].pairs, len(reached[0].baseline.each)
    # Their mean curves come to shares of their own baselines' gain, not to the levels above the columns.
    own = "" if count == every else f", own levels of {count} of {counted(every, 'seed')}"
    return [(f"{name}, mean curves{own}", *told), (f"{name}, {count} pairs", *pairs)]


def _pairs(found: SpeedUp) -> str:
    if found.bound == "unknown" or not math.isfinite(found.ratio):
        return "unknown"
    if found.bound != "exact":
        return f"{found.bound} {found.ratio:.2f}"
    return between(found.ratio, found.low, found.high)


def _level(plateau: Plateau) -> str:
    tail = f"the last {plateau.tail} evaluations change by {shown(plateau.rise)} along a line"
    if plateau.trend == "flat":
        told = f"100 % is the plateau, {plateau.level:.4f}: {tail}, not resolved from 0."
    else:
        told = f"No plateau is reached: {tail}, {plateau.trend}. 100 % is the end, {plateau.level:.4f}."
    return told if plateau.resolved else f"{told} The baseline's gain itself is not resolved from 0."


def budget_blocks(found: Results) -> list[Block]:
    """Rewards at equal cost, a table a unit; iterations are no cost."""
    races = [race for race in found.races if race.unit != "iterations" and race.budgets]
    return [_budget_table(found, race) for race in races]


def _budget_table(found: Results, race: Race) -> Table:
    budgets = next(iter(race.budgets.values()))
    columns = ("arm", *(f"{at.budget:.3g}" for at in budgets))
    rows = [(f"{race.baseline}, reward", *(shown(at.reward) for at in race.budgets[race.baseline]))]
    rows += [
        (f"{name}, less that", *(with_interval(at.difference) for at in spent))
        for name, spent in race.budgets.items()
        if name != race.baseline
    ]
    caption = f"Held-out reward at equal {race.unit}: of {race.baseline}, and what others have beyond it (95 %)"
    return Table(caption, columns, tuple(rows), said(found, ERRORS, kind_of(race)), _timing_spread(found, race))
