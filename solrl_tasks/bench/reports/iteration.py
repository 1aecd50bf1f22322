"""What was measured of whole iterations."""

from typing import Any, Literal

from solrl_tasks.bench.reports.facts import Environment
from solrl_tasks.config.base import Frozen


class StageShare(Frozen):
    """Seconds of one stage: on the wall, and on the device."""

    seconds: float
    device_seconds: float


class IterationCost(Frozen):
    """One iteration, from the commit of the one before to its own.

    Attributes:
        seconds: wall time, publishing of the one before included.
    """

    step: int
    seconds: float
    stages: dict[str, StageShare]

    @property
    def device_seconds(self) -> float:
        """All stages' work on the device."""
        return sum(stage.device_seconds for stage in self.stages.values())

    @property
    def orchestration_seconds(self) -> float:
        """Everything else: store, Prefect, MLflow, selection, pictures, checks."""
        return self.seconds - self.device_seconds

    @property
    def orchestration_share(self) -> float:
        """Of the iteration's wall time."""
        return self.orchestration_seconds / self.seconds


class IterationReport(Frozen):
    """``solrl bench iteration``.

    Attributes:
        warm_up: iterations at the beginning that load and compile; they are not in the averages.
        servers: what the run spoke to.
    """

    bench: Literal["iteration"] = "iteration"
    environment: Environment
    recipe: dict[str, Any]
    servers: dict[str, str]
    warm_up: int
    iterations: tuple[IterationCost, ...]
    peak_bytes: int | None

    @property
    def warm(self) -> tuple[IterationCost, ...]:
        """The iterations that count."""
        return self.iterations[self.warm_up :]

    @property
    def fixed_seconds(self) -> float:
        """Mean seconds of a warm iteration that are no stage's device work."""
        return sum(cost.orchestration_seconds for cost in self.warm) / len(self.warm)

    @property
    def share(self) -> float:
        """Of the warm iterations' wall time."""
        return sum(c.orchestration_seconds for c in self.warm) / sum(c.seconds for c in self.warm)
