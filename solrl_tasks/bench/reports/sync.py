"""What was measured of engines that take new weights."""

import statistics
from typing import Literal

from pydantic import Field

from solrl_tasks.bench.reports.facts import Environment, ModelFacts
from solrl_tasks.bench.reports.sampling import Kind
from solrl_tasks.config.base import Frozen


class EngineSync(Frozen):
    """What one engine does to take new weights.

    Attributes:
        first_seconds: the first sync, which fills every layer; ``seconds`` those that follow, each for another LoRA.
        hash_seconds: of it, finding out which policy the LoRA is, by hashing its weights on the host.
        tensors: layers that a later sync writes; ``replaced`` those that compute at the engine's precision.
        new_graphs: graphs compiled by forwards after the swaps; 0 is right.
        bytes: what the twin owns beyond the base.
    """

    engine: str
    kind: Kind
    execution: str
    first_seconds: float
    first_tensors: int
    seconds: tuple[float, ...]
    hash_seconds: float
    tensors: int
    replaced: int
    graphs: int
    new_graphs: int
    bytes: int
    error: str | None = None

    @property
    def later(self) -> float:
        """Median of the later syncs."""
        return statistics.median(self.seconds)


class SyncBenchReport(Frozen):
    """``solrl bench sync``; ``failed`` has the reason of every engine that could not be measured."""

    bench: Literal["sync"] = "sync"
    environment: Environment
    model: ModelFacts
    lora: str
    engines: tuple[EngineSync, ...]
    failed: dict[str, str] = Field(default_factory=dict)
