"""Sections on cost: what arms spend to a reward, and what they have for the same cost."""

import math
from collections.abc import Mapping

from solrl_tasks.analysis.budgets import AtBudget
from solrl_tasks.analysis.time_to_reward import AtShare, Plateau, Reached, SpeedUp
from solrl_tasks.reports.page import Block, Kind, Table, Text
from solrl_tasks.studies.results.cells import ABSENT, ERRORS, between, claim_lines, figure, said, shown, with_interval
from solrl_tasks.studies.results.findings import Race, Results
from solrl_tasks.studies.results.published import SPEEDUPS


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
        *figure(found, pictures, "speed-ups", "Speed-ups that the noise resolves", "modelled", "bands: 95 %"),
    ]


def _race(found: Results, race: Race) -> list[Block]:
    gone = " ".join(f"{name}: {why}." for name, why in race.absent.items())
    if race.plateau is None or not race.arms:
        return [Text(f"In {race.unit}: {gone}")]
    rows = tuple(
        _race_row(name, reached[place])
        for place in range(len(next(iter(race.arms.values()), ())))
        for name, reached in race.arms.items()
    )
    columns = (
        "share",
        "reward",
        "arm",
        "arm there",
        "its cost",
        "baseline there",
        "its cost",
        "speed-up, pairs (95 %)",
        "speed-up, mean curves (95 %)",
        "resolved",
    )
    note = " ".join(part for part in (_level(race.plateau), gone) if part)
    caption = f"Cost to shares of the gain of {race.baseline}, {race.unit}"
    table = Table(caption, columns, rows, said(found, ERRORS, kind_of(race)), note)
    return [table, *claim_lines(race.claims)]


def _race_row(name: str, at: AtShare) -> tuple[str, ...]:
    return (
        f"{100 * at.share:.0f} %",
        f"{at.level:.4f}",
        name,
        *_reached(at.arm),
        *_reached(at.baseline),
        _pairs(at.speedup),
        between(at.speedup.of_mean, at.speedup.of_mean_low, at.speedup.of_mean_high),
        "unresolved" if at.unresolved else "yes",
    )


def _reached(reached: Reached) -> tuple[str, str]:
    count = len(reached.each)
    return f"{count - reached.censored} of {count}", shown(reached.cost, 3)


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
    blocks: list[Block] = []
    for race in found.races:
        rows = tuple(
            _budget_row(name, spent[place], name == race.baseline)
            for place in range(len(next(iter(race.budgets.values()), ())))
            for name, spent in race.budgets.items()
        )
        if rows and race.unit != "iterations":
            columns = (race.unit, "arm", "seeds", "reward", f"less {race.baseline} (95 %)", "verdict")
            caption = f"Held-out reward at equal {race.unit}"
            blocks.append(Table(caption, columns, rows, said(found, ERRORS, kind_of(race))))
    return blocks


def _budget_row(name: str, at: AtBudget, baseline: bool) -> tuple[str, ...]:
    beside = (ABSENT, ABSENT) if baseline else (with_interval(at.difference), at.verdict)
    return (f"{at.budget:.3g}", name, str(at.reward.n), shown(at.reward), *beside)
