"""What was measured of updates."""

import statistics
from typing import Literal

from pydantic import Field

from solrl_tasks.bench.reports.facts import Environment, ModelFacts
from solrl_tasks.config.base import Frozen


class UpdateReport(Frozen):
    """``solrl bench update``.

    Attributes:
        rows: samples times noise levels of one optimizer step.
        first_seconds: the first update, everything cold; ``seconds`` the warm ones.
        peak_bytes: the most that was allocated; None on a CPU.
    """

    bench: Literal["update"] = "update"
    environment: Environment
    model: ModelFacts
    samples: int
    rows: int
    micro_batch: int
    gradient_checkpointing: bool
    lora: str
    first_seconds: float
    seconds: tuple[float, ...]
    peak_bytes: int | None
    memory: dict[str, int] = Field(default_factory=dict)

    @property
    def row_seconds(self) -> float:
        """Median seconds of one sample at one noise level."""
        return statistics.median(self.seconds) / self.rows
