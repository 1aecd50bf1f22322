"""A run in the terminal: its course as it happens, its results as tables."""

import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, Literal, Protocol, Self

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from solrl_tasks.tracking.summary import Summary, in_order

ABSENT: Final = "-"
LINE_SECONDS: Final = 10.0
"""Seconds between lines of progress where there is no terminal to draw a bar in."""
HOURS: Final = {"cuda": "GPU-hours", "cpu": "CPU device-hours (no GPU)"}
STYLES: Final = {"Completed": "green", "Reused": "cyan", "Skipped": "dim"}


class Outcome(Protocol):
    """What is shown of a stage's end."""

    @property
    def stage(self) -> str:
        """explore, select, ..."""

    @property
    def state(self) -> str:
        """Completed, Reused or Skipped."""

    @property
    def message(self) -> str:
        """One line for people."""

    @property
    def seconds(self) -> float:
        """Wall seconds."""


class RichReporter:
    """Tells the course of a run on a console: a bar while a stage counts, then one line a stage.

    Without a terminal there are plain lines only. Use it as a context, or ``close`` it: a bar left open would
    hide the cursor.

    Args:
        console: where to; standard output by default.
        iterations: the number of iterations, shown beside the current one where it is known.
        clock: seconds, for the pace of progress lines.
    """

    def __init__(
        self,
        console: Console | None = None,
        iterations: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = console or Console(highlight=False)
        self._live = self._console.is_terminal and not self._console.is_dumb_terminal
        self._iterations = iterations
        self._clock = clock
        self._step: int | None = None
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._told = clock()
        self._what = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Take the bar away, whatever has happened."""
        if self._bar is not None:
            self._bar.stop()
        self._bar = self._task = None

    def stage_started(self, step: int, stage: str, what: str) -> None:  # noqa: ARG002
        """A heading where a step begins; the bar comes with the first progress, the line at the end."""
        self.close()
        self._head(step)
        self._what = what
        self._told = self._clock()

    def progress(self, step: int, stage: str, done: int, total: int, unit: str) -> None:
        """The bar, or a line now and then."""
        self._head(step)
        if self._live:
            self._draw_bar(stage, done, total, unit)
        elif self._clock() - self._told >= LINE_SECONDS and done < total:
            self._told = self._clock()
            self._say(Text(f"  {stage:<12}{done} of {total} {unit}"))

    def stage_finished(self, step: int, outcome: Outcome) -> None:
        """One line: stage, state, seconds, and what it says of itself."""
        self.close()
        self._head(step)
        line = Text(f"  {outcome.stage:<12}")
        line.append(f"{outcome.state:<10}", STYLES.get(outcome.state, ""))
        line.append(f"{outcome.seconds:7.1f} s   ")
        line.append(outcome.message, "dim")
        self._say(line)

    def note(self, message: str) -> None:
        """A line that stands out."""
        self._say(Text.assemble(("  note ", "yellow"), message), whole=True)

    def _head(self, step: int) -> None:
        if step == self._step:
            return
        self._step = step
        of = f" of {self._iterations}" if self._iterations else ""
        self._say(Text(f"iteration {step}{of}" if step else "baseline: the untrained policy", "bold"))

    def _draw_bar(self, stage: str, done: int, total: int, unit: str) -> None:
        if self._bar is None or self._task is None:
            self._bar = Progress(
                TextColumn("  {task.description:<11}"),
                BarColumn(bar_width=30),
                MofNCompleteColumn(),
                TextColumn("{task.fields[unit]}"),
                TimeRemainingColumn(compact=True, elapsed_when_finished=True),
                TextColumn("{task.fields[what]}", style="dim", markup=False),
                console=self._console,
                transient=True,
            )
            self._task = self._bar.add_task(stage, total=total, unit=unit, what=self._what)
            self._bar.start()
        self._bar.update(self._task, completed=done, total=total)

    def _say(self, line: Text, whole: bool = False) -> None:
        if not self._live:
            self._console.print(line, soft_wrap=True)  # a file has no width
        elif whole:
            self._console.print(line)
        else:
            self._console.print(line, no_wrap=True, overflow="ellipsis")


def results(summaries: Sequence[Summary], device_kind: str, rewards: Sequence[str] = ()) -> RenderableType:
    """What a run came to: rewards and ranks by iteration, seconds by stage, and what it cost.

    Args:
        device_kind: ``cpu``, ``cuda`` or ``unknown``; hours are called so.
        rewards: names in the recipe's order, in which held-out rewards stand; the gain shown is that of the first.
    """
    if not summaries:
        return Text("no iteration is finished yet")
    parts: list[RenderableType] = [
        Text("\nRewards and ranks", "bold"),
        _reward_table(summaries, rewards),
        Text(f"{_legend(summaries)}\n", "dim"),
        Text("Seconds by stage", "bold"),
        _seconds_table(summaries),
        Text(f"{_cost(summaries[-1], device_kind)}\n", "dim"),
    ]
    return Group(*parts)


def metrics_table(summary: Summary) -> Table:
    """Every metric of one iteration with its standard error."""
    table = _table(f"iteration {summary.step}", "value", "standard error", justify_first="left")
    section = ""
    for name in sorted(summary.metrics):
        if section and not name.startswith(section):
            table.add_section()
        section = name.partition("/")[0] + "/"
        error = summary.stderr.get(name)
        table.add_row(name, f"{summary.metrics[name]:.6g}", "" if error is None else f"{error:.2g}")
    return table


def hours_name(device_kind: str) -> str:
    """What the hours of ``gpu_hours/`` metrics are."""
    return HOURS.get(device_kind, "device-hours (of which device is not known)")


def eval_names(summaries: Sequence[Summary], rewards: Sequence[str] = ()) -> list[str]:
    """The held-out rewards that some iteration has, without the prefix ``eval/``; those of ``rewards`` in its order."""
    names = dict.fromkeys(name for summary in summaries for name in sorted(summary.metrics))
    found = [n.removeprefix("eval/") for n in names if n.startswith("eval/") and not n.startswith("eval/gain_")]
    return sorted(found, key=lambda name: rewards.index(name) if name in rewards else len(rewards))


def value(summary: Summary, name: str, digits: int = 3) -> str:
    """A metric as shown in tables, with its standard error if it has one; a dash where it is absent."""
    if name not in summary.metrics:
        return ABSENT
    error = summary.stderr.get(name)
    shown = f"{summary.metrics[name]:.{digits}f}"
    return shown if error is None else f"{shown} ± {error:.{digits}f}"


def _reward_table(summaries: Sequence[Summary], order: Sequence[str]) -> Table:
    rewards = {"reward\nproxy": "reward/proxy", "reward\nBF16": "reward/bf16"}
    ranks = {"rank\nkept": "rank/kept_spearman", "rank\naudited": "rank/audit_spearman"}
    names = eval_names(summaries, order)
    held_out = {f"held-out\n{name}": f"eval/{name}" for name in names}
    gains = {f"gain\n{name}": f"eval/gain_{name}" for name in names[:1]}
    held_out |= {title: name for title, name in gains.items() if any(name in summary.metrics for summary in summaries)}
    table = _table("iter", *rewards, *ranks, *held_out)
    for summary in summaries:
        table.add_row(
            str(summary.step),
            *(_short(summary, name, 3) for name in rewards.values()),
            *(_short(summary, name, 2) for name in ranks.values()),
            *(value(summary, name) for name in held_out.values()),
            style="bold red" if summary.metrics.get("rank/alarm") else "",
        )
    return table


def _legend(summaries: Sequence[Summary]) -> str:
    lines = [
        "iteration 0 is the untrained policy; ± is one standard error over prompts",
        "gain is the held-out reward less that of iteration 0, on the same prompts and seeds",
    ]
    alarmed = [str(summary.step) for summary in summaries if summary.metrics.get("rank/alarm")]
    if alarmed:
        lines.append(f"alarm: the proxy did not rank the kept seeds in iteration {', '.join(alarmed)}")
    return "\n".join(lines)


def _short(summary: Summary, name: str, digits: int) -> str:
    return f"{summary.metrics[name]:.{digits}f}" if name in summary.metrics else ABSENT


def _seconds_table(summaries: Sequence[Summary]) -> Table:
    stages = in_order(stage for summary in summaries for stage in summary.stages)
    table = _table("iter", *stages, "all")
    for summary in summaries:
        table.add_row(
            str(summary.step),
            *(f"{summary.stages[s].seconds:.1f}" if s in summary.stages else ABSENT for s in stages),
            f"{sum(cost.seconds for cost in summary.stages.values()):.1f}",
        )
    totals = [sum(s.stages[stage].seconds for s in summaries if stage in s.stages) for stage in stages]
    table.add_section()
    table.add_row("all", *(f"{total:.1f}" for total in totals), f"{sum(totals):.1f}", style="bold")
    return table


def _cost(last: Summary, device_kind: str) -> str:
    spent, attributed = (_short(last, f"gpu_hours/{kind}", 4) for kind in ("spent", "attributed"))
    return f"{hours_name(device_kind)}: {spent} spent by this run, {attributed} attributed"


def _table(first: str, *others: str, justify_first: Literal["left", "right"] = "right") -> Table:
    table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column(first, justify=justify_first, no_wrap=True)
    for heading in others:
        table.add_column(heading, justify="right", no_wrap=True)
    return table
