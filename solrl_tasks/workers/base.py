"""What the stages ask of whatever holds the devices."""

from collections.abc import Iterable
from typing import Protocol

import numpy as np
import torch

from solrl_tasks.config.recipe import ExtensionSpec
from solrl_tasks.engines.base import EngineRecord, SyncReport
from solrl_tasks.models.lora import LoraState
from solrl_tasks.workers.counters import Counters
from solrl_tasks.workers.jobs import RolloutJob, TrainJob, TrainResult, Work
from solrl_tasks.workers.pipeline import Results
from solrl_tasks.workers.site import Site
from solrl_tasks.workers.state import PolicyState


class Worker(Protocol):
    """One or more devices behind the few things an iteration does with them."""

    @property
    def site(self) -> Site:
        """What the devices are."""
        ...

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

    def rollout(self, job: RolloutJob, blocks: Iterable[Work]) -> Results:
        """Sample, decode and score blocks, one result a block, in any order; close it to stop early.

        Raises:
            DeviceMemoryError: a block does not fit; the message names a chunk that does.
        """
        ...

    def fitting_chunk(self, job: RolloutJob, beside: Iterable[ExtensionSpec] = ()) -> int:
        """How many images of a job fit together in the smallest device's memory, with other engines held beside."""
        ...

    def memory(self) -> dict[str, int]:
        """Bytes by who holds them, of the fullest device; what is not loaded yet holds nothing."""
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
