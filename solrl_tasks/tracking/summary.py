"""The one record of a finished iteration, from which every view is made."""

import math
from collections.abc import Iterable, Mapping
from typing import Annotated, Final, Literal

from pydantic import Field

from solrl_tasks.config.base import Frozen
from solrl_tasks.store.refs import Ref

COST_PREFIXES: Final = ("gpu_hours/", "explore/blocks_", "seconds/")
"""Metrics of what an iteration cost; a run that was interrupted has others than one that was not."""

STAGES: Final = ("quantize", "explore", "select", "regenerate", "audit", "update", "reference", "evaluate")
"""In order of work."""

StageState = Literal["Completed", "Reused", "Skipped"]


class StageCost(Frozen):
    """What one stage of an iteration took.

    ``seconds`` is wall time. ``device_seconds`` is what this run spent, work done twice included;
    ``attributed_seconds`` is what the result cost whoever paid for it, re-used blocks included.
    """

    seconds: Annotated[float, Field(ge=0)]
    device_seconds: Annotated[float, Field(ge=0)]
    attributed_seconds: Annotated[float, Field(ge=0)]
    state: StageState


class Summary(Frozen):
    """A committed iteration: step 0 is the untrained policy's evaluation, 1 and up are the loop.

    ``timestamp_ms`` is set once, when the iteration is committed, so that a replay into MLflow makes the same
    points. Metrics are finite; one that could not be measured is absent. ``stderr`` has the standard error of
    some of them under the same names. ``images`` are file names beside the summary.
    """

    run_id: str
    step: Annotated[int, Field(ge=0)]
    timestamp_ms: Annotated[int, Field(ge=0)]
    metrics: dict[str, float]
    stderr: dict[str, float] = Field(default_factory=dict)
    stages: dict[str, StageCost] = Field(default_factory=dict)
    refs: dict[str, Ref] = Field(default_factory=dict)
    notes: list[str] = Field(default_factory=list)
    images: list[str] = Field(default_factory=list)

    def results(self) -> dict[str, float]:
        """The metrics without costs: what exact resume must reproduce."""
        return {name: value for name, value in self.metrics.items() if not is_cost(name)}


def in_order(stages: Iterable[str]) -> list[str]:
    """Stages in order of work, each once; unknown ones last."""
    return sorted(set(stages), key=lambda stage: (STAGES.index(stage) if stage in STAGES else len(STAGES), stage))


def is_cost(name: str) -> bool:
    """Whether a metric tells of cost rather than of a result."""
    return name.startswith(COST_PREFIXES)


def split_finite(metrics: Mapping[str, float]) -> tuple[dict[str, float], tuple[str, ...]]:
    """The metrics that a summary can hold, and the sorted names of those that are NaN or infinite."""
    finite = {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
    return finite, tuple(sorted(set(metrics) - set(finite)))
