"""MLflow made again from the store, and compared with it point by point."""

from collections.abc import Sequence
from pathlib import Path

from solrl_tasks.config.base import Frozen
from solrl_tasks.config.words import counted
from solrl_tasks.tracking.mlflow_client import TrackingError, connect
from solrl_tasks.tracking.mlflow_files import RunFiles
from solrl_tasks.tracking.mlflow_run import MlflowRun, RunFacts, Status, publish, set_aside
from solrl_tasks.tracking.points import Point, points
from solrl_tasks.tracking.summary import Summary

NAMED = 5
"""How many differences are named; the others are counted."""


class Rebuilt(Frozen):
    """What a rebuild came to.

    Attributes:
        run: where the run is shown; its history equals the store's.
        points: values in that history.
        replaced: id of the MLflow run that differed and was set aside, None if there was none.
        differences: what was wrong with it, in words.
    """

    run: MlflowRun
    points: int
    replaced: str | None = None
    differences: tuple[str, ...] = ()


def rebuild(
    summaries: Sequence[Summary],
    facts: RunFacts,
    uri: str,
    files: RunFiles | None = None,
    status: Status = "FINISHED",
    artifact_root: Path | None = None,
) -> Rebuilt:
    """Make sure that MLflow shows exactly what the store holds.

    What is missing is added. An MLflow run that holds anything else is set aside, not changed, and a new one
    is made.

    Raises:
        TrackingError: MLflow cannot be reached, or differs even when made anew.
    """
    run = publish(summaries, facts, uri, files, status, artifact_root)
    found = compare(summaries, run)
    if not found:
        return Rebuilt(run=run, points=_count(summaries))
    replaced = set_aside(facts, uri)
    again = publish(summaries, facts, uri, files, status, artifact_root)
    left = compare(summaries, again)
    if left:
        raise TrackingError(f"MLflow at {uri} does not hold what it was given: {'; '.join(left)}")
    return Rebuilt(run=again, points=_count(summaries), replaced=replaced, differences=found)


def compare(summaries: Sequence[Summary], run: MlflowRun) -> tuple[str, ...]:
    """How the history in MLflow differs from the summaries; empty if they are equal, doubles included.

    Raises:
        TrackingError: MLflow cannot be reached or refuses.
    """
    held = sorted(point for summary in summaries for point in points(summary))
    shown = sorted(_history(run))
    if held == shown:
        return ()
    missing, foreign = sorted(set(held) - set(shown)), sorted(set(shown) - set(held))
    lines = [f"{point.name} of step {point.step} is missing" for point in missing]
    lines += [f"{point.name} of step {point.step} is {point.value}, which the store does not say" for point in foreign]
    if not lines:
        lines = [f"twice there: {counted(len(shown) - len(held), 'value')}"]
    more = len(lines) - NAMED
    return (*lines[:NAMED], *([f"and {more} more"] if more > 0 else []))


def _history(run: MlflowRun) -> list[Point]:
    with connect(run.uri) as client:
        names = [name for name in client.get_run(run.run_id).data.metrics if not name.startswith("system/")]
        return [
            Point(metric.step, name, metric.value, metric.timestamp)
            for name in names
            for metric in client.get_metric_history(run.run_id, name)
        ]


def _count(summaries: Sequence[Summary]) -> int:
    return sum(len(points(summary)) for summary in summaries)
