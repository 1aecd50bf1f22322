"""What the stages ask of whatever holds the devices."""

from collections.abc import Iterable, Iterator
from typing import Protocol

import numpy as np
import torch

from solrl_tasks.config.recipe import ExtensionSpec
from solrl_tasks.engines.base import EngineRecord, SyncReport
from solrl_tasks.models.lora import LoraState
from solrl_tasks.workers.device import Counters
from solrl_tasks.workers.jobs import RolloutJob, TrainJob, TrainResult, Work, WorkResult
from solrl_tasks.workers.state import PolicyState


class Worker(Protocol):
    """One or more devices behind the few things an iteration does with them."""

    @property
    def counters(self) -> Counters:
        """What was done so far."""
        ...

    def sync(self, engine: ExtensionSpec, lora: LoraState | None) -> SyncReport:
        """Put weights into an engine; nothing happens if it holds them already."""
        ...

    def record(self, engine: ExtensionSpec) -> EngineRecord:
        """What an engine really is."""
        ...

    def rollout(self, job: RolloutJob, blocks: Iterable[Work]) -> Iterator[WorkResult]:
        """Sample, decode and score blocks, one result a block, in any order."""
        ...

    def decode(self, latents: torch.Tensor) -> np.ndarray:
        """Images of clean latents [B, C, H, W]: uint8 [B, H, W, 3]."""
        ...

    def initial_policy(self, rank: int, alpha: float, targets: str, seed: int) -> PolicyState:
        """The policy before any update."""
        ...

    def train(self, job: TrainJob, policy: PolicyState) -> tuple[PolicyState, TrainResult]:
        """One update: the next policy and what it took."""
        ...
