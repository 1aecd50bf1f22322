"""Summaries as points of a metric history, and the digest by which a history is known again."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from solrl_tasks.store.keys import digest
from solrl_tasks.tracking.summary import Summary

STDERR_SUFFIX = "_se"


@dataclass(frozen=True, order=True)
class Point:
    """One value of one metric at one step; ``timestamp_ms`` is when its iteration was committed."""

    step: int
    name: str
    value: float
    timestamp_ms: int


def points(summary: Summary) -> list[Point]:
    """Every metric of an iteration and, as ``<name>_se``, every standard error, by name."""
    values = dict(summary.metrics)
    for name, error in summary.stderr.items():
        if values.setdefault(name + STDERR_SUFFIX, error) != error:
            clash = f"metric {name + STDERR_SUFFIX} and the standard error of {name}"
            raise ValueError(f"summary of step {summary.step}: {clash} want the same name: rename the metric")
    return [Point(summary.step, name, values[name], summary.timestamp_ms) for name in sorted(values)]


def check_order(summaries: Sequence[Summary]) -> None:
    """Refuse summaries that are not one run's, in the order of their steps.

    Raises:
        ValueError: two run ids, or a step that does not follow the one before it.
    """
    if len({summary.run_id for summary in summaries}) > 1:
        raise ValueError(f"summaries of several runs: {sorted({summary.run_id for summary in summaries})}")
    steps = [summary.step for summary in summaries]
    if steps != sorted(set(steps)):
        raise ValueError(f"summaries must stand in the order of their steps, each once, found {steps}")


def history_digests(summaries: Sequence[Summary]) -> dict[int, str]:
    """For every step, a digest of all points up to and with it.

    Two histories with the same digest at a step hold the same names, values and timestamps up to there.
    """
    digests = {}
    before = ""
    for summary in summaries:
        before = digest([before, [[p.step, p.name, p.value, p.timestamp_ms] for p in points(summary)]])
        digests[summary.step] = before
    return digests


def batches(summaries: Sequence[Summary], limit: int) -> Iterator[list[Point]]:
    """The points in lists of at most ``limit``; a summary that fits is not split: a request is atomic."""
    batch: list[Point] = []
    for summary in summaries:
        own = points(summary)
        if batch and len(batch) + len(own) > limit:
            yield batch
            batch = []
        batch = batch + own
        while len(batch) > limit:
            yield batch[:limit]
            batch = batch[limit:]
    if batch:
        yield batch
