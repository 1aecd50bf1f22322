"""What a run cost, stage by stage."""

from collections.abc import Sequence

from solrl_tasks.analysis.plots import progress_curve, stacked_bars
from solrl_tasks.reports.page import Block, Figure, Section, Table, Text
from solrl_tasks.reports.run_record import RunRecord
from solrl_tasks.reports.training_curves import spaced
from solrl_tasks.tracking.summary import StageCost, Summary, in_order

BARS = 60
"""Iterations that a chart of bars shows."""


def cost_section(run: RunRecord) -> Section:
    """Seconds of every stage, and hours spent and attributed as they grew."""
    stages = in_order(stage for summary in run.summaries for stage in summary.stages)
    told = (
        f"Hours are {run.hours}. *Spent* is what this run computed, work lost to a kill included; *attributed* is what "
        "its result cost whoever computed it, pools of other runs that were re-used included."
    )
    blocks: list[Block] = [Text(told)]
    if stages:
        blocks += [_table(run, stages), _bars(run, stages)]
    hours = [run.curve(name, f"gpu_hours/{name}") for name in ("spent", "attributed")]
    lines = [line for line in hours if line is not None]
    if any(len(line.x) > 1 for line in lines):
        ends = "; ".join(f"{line.label} {line.y[-1]:.4f}" for line in lines)
        alt = f"{run.hours} over iterations, ending at: {ends}."
        plot = progress_curve(lines, "iteration", run.hours)
        blocks.append(Figure(f"{run.hours}, spent and attributed", plot, alt, run.made_by(None)))
    return Section("Cost", tuple(blocks))


def _table(run: RunRecord, stages: Sequence[str]) -> Table:
    sums = {stage: _sums(run.summaries, stage) for stage in stages}
    totals = tuple(sum(column) for column in zip(*sums.values(), strict=True))
    rows = [(stage, *_figures(values, totals[2])) for stage, values in sums.items()]
    columns = ("stage", "seconds", "device seconds spent", "device seconds attributed", "share of attributed")
    total = ("all", *_figures(totals, totals[2]))
    note = "Seconds are those of the clock, loading and waiting included; device seconds are those of the computation."
    return Table("Seconds by stage, over all iterations", columns, (*rows, total), run.made_by(None), note)


def _sums(summaries: Sequence[Summary], stage: str) -> tuple[float, float, float]:
    costs: list[StageCost] = [summary.stages[stage] for summary in summaries if stage in summary.stages]
    return (
        sum(cost.seconds for cost in costs),
        sum(cost.device_seconds for cost in costs),
        sum(cost.attributed_seconds for cost in costs),
    )


def _figures(values: tuple[float, ...], whole: float) -> tuple[str, ...]:
    share = f"{100 * values[2] / whole:.1f} %" if whole > 0 else ""
    return (*(f"{value:.1f}" for value in values), share)


def _bars(run: RunRecord, stages: Sequence[str]) -> Figure:
    shown = spaced(run.summaries, BARS)
    steps = [summary.step for summary in shown]
    parts = {
        stage: [summary.stages[stage].seconds if stage in summary.stages else 0.0 for summary in shown]
        for stage in stages
    }
    longest = max(stages, key=lambda stage: sum(parts[stage]))
    alt = f"Seconds of every iteration, stacked by stage: {', '.join(stages)}. Most of them are those of {longest}."
    caption = "Seconds of the clock by stage and iteration"
    return Figure(caption, stacked_bars(steps, parts, ("iteration", "seconds")), alt, run.made_by(None))
