"""The worker of a single process: one device, here."""

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch

from solrl_tasks.config.recipe import ExtensionSpec, ModelSpec
from solrl_tasks.engines.base import EngineRecord, SyncReport
from solrl_tasks.models.lora import LoraState
from solrl_tasks.workers.counters import Counters
from solrl_tasks.workers.device import Device
from solrl_tasks.workers.jobs import RolloutJob, TrainJob, TrainResult, Work
from solrl_tasks.workers.pipeline import Results
from solrl_tasks.workers.site import LocalSite, Site
from solrl_tasks.workers.state import PolicyState


class InlineWorker:
    """One device in the flow process."""

    def __init__(self, model: ModelSpec, device: torch.device, cache: Path | None = None) -> None:
        """
        Args:
            cache: folder in which encoded prompts are kept; None keeps them in memory only.
        """
        self._device = Device(model, device, cache)
        self.site: Site = LocalSite(device)

    @property
    def counters(self) -> Counters:
        """What the device did so far."""
        return self._device.counters

    def sync(self, engine: ExtensionSpec, lora: LoraState | None) -> SyncReport:
        """See ``Worker.sync``."""
        return self._device.sync(engine, lora)

    def record(self, engine: ExtensionSpec) -> EngineRecord:
        """See ``Worker.record``."""
        return self._device.record(engine)

    def rollout(self, job: RolloutJob, blocks: Iterable[Work]) -> Results:
        """See ``Worker.rollout``."""
        return self._device.rollout(job, blocks)

    def fitting_chunk(self, job: RolloutJob, beside: Iterable[ExtensionSpec] = ()) -> int:
        """See ``Worker.fitting_chunk``."""
        return self._device.fitting_chunk(job, beside)

    def memory(self) -> dict[str, int]:
        """See ``Worker.memory``."""
        return self._device.memory()

    def decode(self, latents: torch.Tensor) -> np.ndarray:
        """See ``Worker.decode``."""
        return self._device.decode(latents)[0]

    def initial_policy(self, rank: int, alpha: float, targets: str, seed: int) -> PolicyState:
        """See ``Worker.initial_policy``."""
        return self._device.initial_policy(rank, alpha, targets, seed)

    def train(self, job: TrainJob, policy: PolicyState) -> tuple[PolicyState, TrainResult]:
        """See ``Worker.train``."""
        return self._device.train(job, policy)
