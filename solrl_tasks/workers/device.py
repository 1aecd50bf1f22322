"""One device, holding its models for life."""

import time
from collections import Counter
from collections.abc import Iterable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
import torch

from solrl_tasks.config.extensions import find_extension
from solrl_tasks.config.recipe import ExtensionSpec, ModelSpec
from solrl_tasks.engines.attention import prefer_cudnn
from solrl_tasks.engines.base import Engine, EngineRecord, SyncReport, hardware_name
from solrl_tasks.models.families.base import Conditioning, Family
from solrl_tasks.models.lora import LoraState, init_lora
from solrl_tasks.rewards.gradients import DifferentiableScorer
from solrl_tasks.workers.counters import Counters
from solrl_tasks.workers.fitting import fitting_chunk, try_block
from solrl_tasks.workers.gradients import RewardGradient
from solrl_tasks.workers.jobs import RolloutJob, TrainJob, TrainResult
from solrl_tasks.workers.memory import (
    CudaMeter,
    DeviceMemoryError,
    Meter,
    explained,
    give_back,
    halving,
    listed,
    told,
)
from solrl_tasks.workers.numerics import host_threads
from solrl_tasks.workers.pipeline import Blocks, Lane, Results, SideStream, in_turn, overlapped
from solrl_tasks.workers.reduction import ALONE, Ranks
from solrl_tasks.workers.resident import Resident
from solrl_tasks.workers.rollout import Rollout
from solrl_tasks.workers.state import PolicyState, initial_state
from solrl_tasks.workers.tally import Tally
from solrl_tasks.workers.training import Trainer


class Device:
    """Family, engines, samplers, rewards and objective on one torch device.

    Nothing is loaded before it is needed. The base weights are loaded once and never changed; every engine is a twin
    that shares them.

    Attributes:
        lane: where blocks are finished beside the sampling of others; None finishes each before the next.
    """

    def __init__(self, model: ModelSpec, device: torch.device, cache: Path | None = None) -> None:
        """
        Args:
            cache: folder in which encoded prompts are kept; None keeps them in memory only.
        """
        self.model = model
        self.device = device
        self.resident = Resident(model, device, cache)
        if device.type == "cuda":
            prefer_cudnn()
            torch.set_num_threads(host_threads(device, torch.get_num_threads()))
        self.lane: Lane | None = SideStream(device) if device.type == "cuda" else None
        self._trainers: dict[str, Trainer] = {}

    @property
    def counters(self) -> Counters:
        """What was done so far."""
        return self.resident.counters

    @property
    def family(self) -> Family:
        """The loaded pipeline."""
        with self._explained(f"model.source {self.model.source}"):
            return self.resident.family

    def engine(self, spec: ExtensionSpec) -> Engine:
        """The engine of a spec, attached to the base on first use.

        Raises:
            EngineError: the device cannot run it; the message names the engines that it can.
            DeviceMemoryError: it does not fit.
        """
        with self._explained(f"engine {spec.name}"):
            return self.resident.engine(spec)

    def sync(self, spec: ExtensionSpec, lora: LoraState | None) -> SyncReport:
        """Put weights into an engine; it does nothing if it holds them already."""
        engine = self.engine(spec)
        with self._explained(f"engine {spec.name}"):
            report = engine.sync(lora)
        self.counters.syncs += int(report.synced > 0)
        return report

    def record(self, spec: ExtensionSpec) -> EngineRecord:
        """What an engine really is: real or emulated, on what, which layers."""
        return self.engine(spec).record()

    def rollout(self, job: RolloutJob, blocks: Blocks) -> Results:
        """Sample, decode and score blocks, in the order given.

        Blocks that bring images or latents are only scored; the engine is touched when the first block needs it.
        On CUDA the end of a block runs beside the beginning of the next. Close the generator to stop early.

        Raises:
            DeviceMemoryError: a block does not fit; the message names a chunk that does.
        """
        stages, shortage = Rollout(self.resident, job, explained=self._explained), None
        try:
            yield from in_turn(stages, blocks) if self.lane is None else overlapped(stages, blocks, self.lane)
        except torch.OutOfMemoryError as error:
            shortage = told(error)
        if shortage is not None:
            raise DeviceMemoryError(self._chunk_advice(job, shortage))

    def fitting_chunk(self, job: RolloutJob, beside: Iterable[ExtensionSpec] = (), meter: Meter | None = None) -> int:
        """How many images can be computed together, found by trying; see ``fitting.fitting_chunk``.

        Args:
            job: the first of its prompts is sampled, one step, from the base.
            beside: engines that the run will hold besides.
            meter: of the device's memory; that of CUDA by default.

        Raises:
            DeviceMemoryError: not even one.
        """
        for spec in (*beside, job.engine):
            self.sync(spec, None)
        found = fitting_chunk(self.resident, job, meter or CudaMeter(self.device))
        if found is None:
            raise DeviceMemoryError(
                f"not even one image of {job.resolution or self.model.resolution} px at a time can be sampled by "
                f"{job.engine.name} on {hardware_name(self.device)}: lower model.resolution. "
                f"Held: {listed(self.memory())}"
            )
        return found

    def decode(self, latents: torch.Tensor) -> tuple[np.ndarray, np.ndarray]:
        """Images of clean latents [B, C, H, W]: uint8 [B, H, W, 3], and which are finite, bool [B]."""
        decoded = self.family.decode(latents.to(self.device))
        self.counters.decoded += len(latents)
        return decoded.images, decoded.finite

    def initial_policy(self, rank: int, alpha: float, targets: str, seed: int) -> PolicyState:
        """The policy before any update: a LoRA that changes nothing yet, in every role."""
        paths = self.family.lora_targets(targets)
        return initial_state(init_lora(self.family.transformer, paths, rank, alpha, seed))

    def train(self, job: TrainJob, policy: PolicyState) -> tuple[PolicyState, TrainResult]:
        """One update: ``optimizer_steps`` steps on the kept samples, then the lagged roles.

        Raises:
            TrainingError: the loss or the gradient is not finite.
            DeviceMemoryError: a micro-batch does not fit; the message names a size that does.
        """
        state, tally, seconds = self.train_part(job, policy)
        return state, TrainResult(tally.metrics(), seconds)

    def train_part(self, job: TrainJob, policy: PolicyState, ranks: Ranks = ALONE) -> tuple[PolicyState, Tally, float]:
        """This device's part of an update that several make together: the whole new state, what its own micro-batches
        came to, and the seconds that it took. Raises as ``train`` does."""
        trainer = self._trainer(policy.current)
        started, shortage = self._clock(), None
        with self._explained("encoding prompts"):
            conditioning = self.resident.embeddings.get(job.distinct_texts)
        try:
            state, tally = trainer.update(job, policy, conditioning, self._gradient(job), ranks)
        except torch.OutOfMemoryError as error:
            shortage = told(error)
        if shortage is not None:
            raise DeviceMemoryError(self._batch_advice(trainer, job, policy, conditioning, shortage))
        self.counters.updates += job.update.optimizer_steps
        return state, tally, self._clock() - started

    def memory(self) -> dict[str, int]:
        """Bytes on the device by who holds them; of CUDA also what torch holds now, held at most, and could hold."""
        resident = self.resident
        report = dict(resident.family.memory()) if "family" in vars(resident) else {}
        held: Counter[str] = Counter()
        for engine in resident.engines.values():
            held[f"engine {engine.name}"] += sum(engine.memory().values())
        for reward in resident.rewards.values():
            held[f"reward {reward.name}"] += reward.memory()
        for feature in resident.features.values():
            held[f"feature {feature.name}"] += feature.memory()
        held["trainer"] = sum(trainer.memory() for trainer in self._trainers.values())
        report |= held
        if self.device.type == "cuda":
            report["allocated"] = torch.cuda.memory_allocated(self.device)
            report["peak"] = torch.cuda.max_memory_allocated(self.device)
            report["total"] = torch.cuda.get_device_properties(self.device).total_memory
        return report

    def _trainer(self, lora: LoraState) -> Trainer:
        key = f"{lora.rank}/{lora.alpha}/{lora.paths}"
        if key not in self._trainers:
            self._trainers[key] = Trainer(self.family, lora)
        return self._trainers[key]

    def _gradient(self, job: TrainJob) -> RewardGradient | None:
        if find_extension("objective", job.update.objective.name).needs != "adjoints":
            return None
        used = [spec for spec in job.rewards if spec.weight]
        scorers = [(cast(DifferentiableScorer, self.resident.reward(spec).prepare()), spec.weight) for spec in used]
        return RewardGradient(self.family, tuple(scorers))

    def _explained(self, what: str) -> AbstractContextManager[None]:
        return explained(what, self.device, self.memory)

    def _chunk_advice(self, job: RolloutJob, shortage: str) -> str:
        give_back()
        fits = halving(partial(try_block, self.resident, job), job.chunk)
        advice = f"{fits} fit: set {job.field} to {fits}" if fits else "Not even one fits: free the device"
        return self._shortage(f"{job.field} is {job.chunk}: so many images at a time", shortage, advice)

    def _batch_advice(
        self, trainer: Trainer, job: TrainJob, policy: PolicyState, conditioning: Conditioning, shortage: str
    ) -> str:
        give_back()
        update = job.update
        rows = min(update.micro_batch, len(job.texts) * update.times_per_sample)
        fits = halving(partial(trainer.attempt, job, policy, conditioning), rows)
        advice = f"{fits} fit: set update.micro_batch to {fits}" if fits else "Not even one fits: free the device"
        if not update.gradient_checkpointing:
            advice += ", or set update.gradient_checkpointing to true"
        return self._shortage(f"update.micro_batch is {update.micro_batch}: so many rows at a time", shortage, advice)

    def _shortage(self, what: str, shortage: str, advice: str) -> str:
        return (
            f"{what} do not fit in the memory of {hardware_name(self.device)} ({shortage}). {advice}; as a run keeps "
            f"its recipe, under another run id, which uses again what both share. Held: {listed(self.memory())}"
        )

    def _clock(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()
