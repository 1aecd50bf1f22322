"""The figures of a report, flat, for a tracker."""

import json
from collections.abc import Iterator
from typing import Any

from solrl_tasks.bench.arms import FULL, PIPELINE, PRECISE
from solrl_tasks.bench.reports.file import Report
from solrl_tasks.bench.reports.iteration import IterationReport
from solrl_tasks.bench.reports.rollout import RolloutReport


def metrics_of(report: Report) -> dict[str, float]:
    """Every figure of a report as flat metrics, ``a/b/c``, for a tracker; what is absent is left out."""
    tree = json.loads(report.model_dump_json(exclude={"environment", "recipe"}))
    figures = dict(_figures("", tree))
    if isinstance(report, IterationReport):
        figures |= {"fixed_seconds": report.fixed_seconds, "orchestration_share": report.share}
    if isinstance(report, RolloutReport):
        for arm in report.arms:
            for over in (f"{PRECISE}{FULL}", PIPELINE):
                value = report.speedup(arm, over)
                figures |= {} if value is None else {f"arms/{arm.name}/speedup_over_{over}": value}
    return figures


def _figures(prefix: str, value: Any) -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _figures(f"{prefix}/{name}" if prefix else name, item)
    elif isinstance(value, list):
        for position, item in enumerate(value):
            own = item.get("name", item.get("engine", item.get("step"))) if isinstance(item, dict) else None
            yield from _figures(f"{prefix}/{position if own is None else own}", item)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield prefix, float(value)
