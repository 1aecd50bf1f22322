"""Where the wall time of whole iterations went, from what a finished run has committed."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from solrl_tasks.bench.reports.facts import Environment
from solrl_tasks.bench.reports.iteration import IterationCost, IterationReport, StageShare
from solrl_tasks.config.words import counted
from solrl_tasks.tracking.summary import Summary


def report_iterations(
    environment: Environment,
    recipe: dict[str, Any],
    servers: dict[str, str],
    summaries: Sequence[Summary],
    warm_up: int,
    peak_bytes: int | None,
) -> IterationReport:
    """Costs from commit to commit.

    The time between two commits is all that an iteration takes: publishing the one before, its stages, its
    bookkeeping.

    Args:
        summaries: every step of the run in order, the baseline first.
        warm_up: iterations at the beginning that are shown but not averaged.

    Raises:
        ValueError: no iteration is left to average.
    """
    costs = [_cost(before, after) for before, after in pairwise(summaries)]
    if len(costs) <= warm_up:
        raise ValueError(f"{counted(len(costs), 'iteration')} ran, of which {warm_up} to warm up: run more")
    return IterationReport(
        environment=environment,
        recipe=recipe,
        servers=servers,
        warm_up=warm_up,
        iterations=tuple(costs),
        peak_bytes=peak_bytes,
    )


def _cost(before: Summary, after: Summary) -> IterationCost:
    return IterationCost(
        step=after.step,
        seconds=(after.timestamp_ms - before.timestamp_ms) / 1000,
        stages={
            name: StageShare(seconds=cost.seconds, device_seconds=cost.device_seconds)
            for name, cost in after.stages.items()
        },
    )
