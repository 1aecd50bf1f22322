"""A run in the Prefect UI: a page and tables for every iteration, progress while a stage counts, and an alarm."""

import re
import time
from collections.abc import Callable, Sequence
from typing import Final
from uuid import UUID

from solrl_tasks.tracking import telemetry
from solrl_tasks.tracking.mlflow_files import image_path
from solrl_tasks.tracking.mlflow_run import MlflowRun
from solrl_tasks.tracking.summary import Summary, in_order
from solrl_tasks.tracking.terminal import Outcome, eval_names, hours_name, value

UPDATE_SECONDS: Final = 2.0
"""Seconds between updates of a progress artifact: each is a request to the server."""
ROWS: Final = 50
"""Iterations that a table shows: every iteration stores the table anew."""

Note = Callable[[str], None]
Answers = Callable[[], bool]
"""Whether Prefect's server answers: a bar that would wait for it would hold up the stage."""


def _always() -> bool:
    return True


def show_iteration(summaries: Sequence[Summary], device_kind: str, mlflow: MlflowRun | None, note: Note) -> None:
    """Make the artifacts of the last of ``summaries``, inside a flow or task run.

    Keys are the same in every iteration, so that the UI keeps their history: ``<run>-iteration`` (a page),
    ``<run>-stages`` and ``<run>-iterations`` (tables), ``<run>-mlflow`` (a link), and ``<run>-rank-alarm``
    where the proxy does not rank. A fault of Prefect is told through ``note`` and goes no further.
    """
    telemetry.switch_off()
    from prefect.artifacts import create_link_artifact, create_markdown_artifact, create_table_artifact

    summary = summaries[-1]
    run, step = summary.run_id, summary.step
    try:
        create_markdown_artifact(
            iteration_page(summary, device_kind, mlflow), artifact_key(run, "iteration"), f"Iteration {step} of {run}"
        )
        if summary.stages:
            create_table_artifact(stage_rows(summary), artifact_key(run, "stages"), f"Stages of iteration {step}")
        create_table_artifact(
            iteration_rows(summaries), artifact_key(run, "iterations"), f"Iterations of {run}, up to {step}"
        )
        if mlflow is not None and mlflow.url:
            create_link_artifact(
                mlflow.charts_url,
                f"{run} in MLflow",
                artifact_key(run, "mlflow"),
                "Curves, image grids, adapter, config",
            )
        if summary.metrics.get("rank/alarm"):
            create_markdown_artifact(
                alarm_page(summary), artifact_key(run, "rank-alarm"), f"Iteration {step}: the proxy does not rank"
            )
    except Exception as error:  # what is shown may not stop what is done
        note(f"Prefect does not show iteration {step} of {run}: {type(error).__name__}: {error}")


def artifact_key(*parts: str) -> str:
    """Parts as one key: lower-case letters, digits and single dashes, which is what Prefect takes."""
    return re.sub(r"[^a-z0-9]+", "-", "-".join(parts).lower()).strip("-")


def iteration_page(summary: Summary, device_kind: str, mlflow: MlflowRun | None) -> str:
    """A finished iteration as markdown."""
    parts = [f"# {_plain(summary.run_id)}: {_name(summary)}", _headline(summary)]
    if summary.metrics.get("rank/alarm"):
        parts.append("**The proxy does not rank the kept seeds**: see the alarm among the artifacts.")
    parts += _images(summary, mlflow)
    if summary.notes:
        parts += ["## Notes", "\n".join(f"- {_plain(note)}" for note in summary.notes)]
    parts += ["## All metrics", f"`gpu_hours/` are {hours_name(device_kind)}.", _metrics(summary)]
    return "\n\n".join(parts) + "\n"


def alarm_page(summary: Summary) -> str:
    """What to know and to do when exploration stops ranking."""
    names = {
        "on the kept seeds (Spearman)": "rank/kept_spearman",
        "on audited whole groups (Spearman)": "rank/audit_spearman",
        "share of the possible contrast, audited": "rank/audit_contrast_share",
    }
    rows = [[label, value(summary, name, 2)] for label, name in names.items() if name in summary.metrics]
    advice = (
        "The order that exploration gave the kept seeds is not the order of their regenerated rewards, so selection "
        "came close to drawing seeds at random. On the kept seeds alone the correlation is flattered: an audited group "
        "says more.\n\n"
        "Things to try: more `explore.steps`, a more precise `explore.engine`, or an audit in every iteration "
        "(`audit.every: 1`) to see whether it lasts."
    )
    title = f"# {_plain(summary.run_id)}, {_name(summary)}: rank alarm"
    return "\n\n".join([title, _table(["rank correlation", ""], rows), advice]) + "\n"


def stage_rows(summary: Summary) -> list[dict[str, str]]:
    """The stages of an iteration as rows of a table."""
    return [
        {
            "stage": name,
            "state": cost.state,
            "seconds": f"{cost.seconds:.1f}",
            "device s spent": f"{cost.device_seconds:.1f}",
            "device s attributed": f"{cost.attributed_seconds:.1f}",
            "made": _made(summary, name),
        }
        for name, cost in ((name, summary.stages[name]) for name in in_order(summary.stages))
    ]


def iteration_rows(summaries: Sequence[Summary]) -> list[dict[str, str]]:
    """The last iterations as rows of a table: rewards, ranks, held-out rewards, seconds."""
    names = eval_names(summaries)
    return [
        {
            "iteration": str(summary.step),
            "proxy": _cell(summary, "reward/proxy"),
            "BF16": _cell(summary, "reward/bf16"),
            "rank kept": _cell(summary, "rank/kept_spearman", 2),
            "rank audited": _cell(summary, "rank/audit_spearman", 2),
            **{f"held-out {name}": _cell(summary, f"eval/{name}") for name in names},
            "seconds": f"{sum(cost.seconds for cost in summary.stages.values()):.1f}",
        }
        for summary in summaries[-ROWS:]
    ]


class ProgressReporter:
    """Shows the progress of a stage as an artifact of the task that runs it; silent outside of one."""

    def __init__(self, run_id: str, clock: Callable[[], float] = time.monotonic, answers: Answers = _always) -> None:
        self._run_id = run_id
        self._clock = clock
        self._answers = answers
        self._artifact: UUID | None = None
        self._told = 0.0
        self._broken = False

    def stage_started(self, step: int, stage: str, what: str) -> None:  # noqa: ARG002
        """The next progress gets an artifact of its own."""
        self._artifact = None

    def progress(self, step: int, stage: str, done: int, total: int, unit: str) -> None:
        """The share done; at the end, or when some time has passed since it was last told."""
        due = self._artifact is None or done >= total or self._clock() - self._told >= UPDATE_SECONDS
        if self._broken or total <= 0 or not due:
            return
        self._told = self._clock()
        if not self._answers():
            return
        try:
            self._tell(100.0 * done / total, artifact_key(self._run_id, stage), f"{stage} {step}: {total} {unit}")
        except Exception:  # a bar is not worth a run: no more of it is tried
            self._broken = True

    def stage_finished(self, step: int, outcome: Outcome) -> None:
        """Nothing: the task's own state says it."""

    def note(self, message: str) -> None:
        """Nothing: the flow run's log says it."""

    def _tell(self, share: float, key: str, description: str) -> None:
        from prefect.artifacts import create_progress_artifact, update_progress_artifact
        from prefect.context import TaskRunContext

        if TaskRunContext.get() is None:
            return
        if self._artifact is None:
            made = create_progress_artifact(share, key, description)
            assert isinstance(made, UUID)  # a coroutine only where an event loop runs in this thread
            self._artifact = made
        else:
            update_progress_artifact(self._artifact, share, description)


def _name(summary: Summary) -> str:
    return f"iteration {summary.step}" if summary.step else "baseline"


def _made(summary: Summary, stage: str) -> str:
    ref = summary.refs.get(stage)
    return "" if ref is None else f"{ref.kind} {ref.key}"


def _cell(summary: Summary, name: str, digits: int = 3) -> str:
    # The table takes cells for markdown: the dash of an absent value would become a list.
    return value(summary, name, digits) if name in summary.metrics else ""


def _headline(summary: Summary) -> str:
    names = {
        "proxy reward": ("reward/proxy", 3),
        "BF16 reward": ("reward/bf16", 3),
        "rank correlation, kept seeds": ("rank/kept_spearman", 2),
        "rank correlation, audited groups": ("rank/audit_spearman", 2),
    }
    for name in eval_names([summary]):
        names[f"held-out {name}"] = (f"eval/{name}", 3)
        names[f"gain of {name} since the baseline"] = (f"eval/gain_{name}", 3)
    names |= {"hours spent so far": ("gpu_hours/spent", 4), "hours attributed so far": ("gpu_hours/attributed", 4)}
    rows = [[label, value(summary, *named)] for label, named in names.items() if named[0] in summary.metrics]
    return _table(["", "value ± standard error"], rows)


def _images(summary: Summary, mlflow: MlflowRun | None) -> list[str]:
    if mlflow is None or not mlflow.url:
        return []
    links = [f"[the run]({mlflow.url})", f"[curves]({mlflow.charts_url})"]
    paths = [image_path(summary.step, name) for name in summary.images]
    links += [f"[{_plain(path)}]({mlflow.artifact_url(path)})" for path in paths]
    return [f"In MLflow: {', '.join(links)}", *(f"![{_plain(path)}]({mlflow.image_url(path)})" for path in paths)]


def _metrics(summary: Summary) -> str:
    rows = [
        [f"`{name}`", f"{number:.6g}", f"{summary.stderr[name]:.2g}" if name in summary.stderr else ""]
        for name, number in sorted(summary.metrics.items())
    ]
    return _table(["metric", "value", "standard error"], rows)


def _table(head: list[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _plain(text: str) -> str:
    """Text that markdown leaves as it is, on one line."""
    return re.sub(r"([\\*_\[\]<>|#])", r"\\\1", " ".join(text.split()))
