"""One device, holding its models for life."""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from solrl_tasks.config.extensions import build, find_extension
from solrl_tasks.config.recipe import ExtensionSpec, ModelSpec, RewardSpec
from solrl_tasks.engines.base import Engine, EngineRecord, SyncReport, require_engine
from solrl_tasks.features.base import NamedFeature, feature_id, make_feature
from solrl_tasks.models.families.base import Conditioning, Family
from solrl_tasks.models.lora import LoraState, init_lora
from solrl_tasks.rewards.base import Reward, reward_id
from solrl_tasks.rewards.scoring import make_reward, score
from solrl_tasks.sampling.identity import initial_noise
from solrl_tasks.workers.jobs import RolloutJob, TrainJob, TrainResult, Work, WorkResult
from solrl_tasks.workers.state import PolicyState, initial_state
from solrl_tasks.workers.training import Trainer


@dataclass
class Counters:
    """What a device did so far; tests and cost reports read it.

    Attributes:
        loads: times base weights were loaded.
        syncs: times an engine received new weights.
        forwards: transformer evaluations while sampling, counted per image.
        decoded: images decoded.
        scored: images scored, counted per reward.
        updates: optimizer steps.
    """

    loads: int = 0
    syncs: int = 0
    forwards: int = 0
    decoded: int = 0
    scored: int = 0
    updates: int = 0


class Device:
    """Family, engines, samplers, rewards and objective on one torch device.

    Nothing is loaded before it is needed. The base weights are loaded once and never changed; every engine is a twin
    that shares them.
    """

    def __init__(self, model: ModelSpec, device: torch.device, cache: Path | None = None) -> None:
        """
        Args:
            cache: folder in which encoded prompts are kept; None keeps them in memory only.
        """
        self.model = model
        self.cache = cache
        self.device = device
        self.counters = Counters()
        self._engines: dict[str, Engine] = {}
        self._rewards: dict[str, Reward] = {}
        self._features: dict[str, NamedFeature] = {}
        self._conditioning: dict[str, Conditioning] = {}
        self._trainers: dict[str, Trainer] = {}

    @cached_property
    def family(self) -> Family:
        """The loaded pipeline."""
        self.counters.loads += 1
        family: Family = find_extension("family", self.model.family).load(self.model, self.device)
        return family

    def engine(self, spec: ExtensionSpec) -> Engine:
        """The engine of a spec, attached to the base on first use.

        Raises:
            EngineError: the device cannot run it; the message names the engines that it can.
        """
        key = spec.model_dump_json()
        if key not in self._engines:
            require_engine(spec.name, self.device)
            engine: Engine = build("engine", spec.name, dict(spec.options), self.device)
            engine.attach(self.family.transformer, self.family.scope)
            self._engines[key] = engine
        return self._engines[key]

    def sync(self, spec: ExtensionSpec, lora: LoraState | None) -> SyncReport:
        """Put weights into an engine; it does nothing if it holds them already."""
        report = self.engine(spec).sync(lora)
        self.counters.syncs += int(report.synced > 0)
        return report

    def record(self, spec: ExtensionSpec) -> EngineRecord:
        """What an engine really is: real or emulated, on what, which layers."""
        return self.engine(spec).record()

    def rollout(self, job: RolloutJob, blocks: Iterable[Work]) -> Iterator[WorkResult]:
        """Sample, decode and score blocks, in the order given.

        Blocks that bring images or latents are only scored; the engine is touched when the first block needs it.
        """
        for work in blocks:
            if work.latents is None and work.images is None:
                self.engine(job.engine)  # loading is not what a block costs
            started = self._clock()
            latents, images, finite = self._images(job, work)
            rewards, failures = self._score(job, work, images, finite)
            features = self._embed(work, images, finite)
            seconds = self._clock() - started
            yield WorkResult(work, latents, images, rewards, failures, seconds, features)

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
        """One update: ``optimizer_steps`` steps on the kept samples, then the lagged roles."""
        trainer = self._trainer(policy.current)
        started = self._clock()
        conditioning = Conditioning.concatenate([self._encode(text) for text in job.texts])
        state, metrics = trainer.update(job, policy, conditioning)
        self.counters.updates += job.update.optimizer_steps
        return state, TrainResult(metrics, self._clock() - started)

    def _trainer(self, lora: LoraState) -> Trainer:
        key = f"{lora.rank}/{lora.alpha}/{lora.paths}"
        if key not in self._trainers:
            self._trainers[key] = Trainer(self.family, lora)
        return self._trainers[key]

    def _images(self, job: RolloutJob, work: Work) -> tuple[torch.Tensor | None, np.ndarray, np.ndarray]:
        if work.images is not None:
            return None, work.images, np.ones(len(work.images), dtype=bool)
        latents = work.latents if work.latents is not None else self._sample(job, work)
        images, finite = self.decode(latents)
        return latents, images, finite

    @torch.no_grad()
    def _sample(self, job: RolloutJob, work: Work) -> torch.Tensor:
        engine = self.engine(job.engine)
        self.sync(job.engine, job.lora)
        family = self.family
        count = len(work.candidates)
        conditioning = self._encode(job.prompts[work.row].text).take([0] * count)
        sampler = build("sampler", job.sampler, {})

        def velocity(x: torch.Tensor, sigma: float) -> torch.Tensor:
            self.counters.forwards += count
            return family.velocity(engine.module, x, sigma, conditioning)

        noise = initial_noise(job.seeds(work.row, work.candidates), family.latent_shape).to(self.device)
        latents: torch.Tensor = sampler.sample(velocity, noise, family.sigmas(job.steps))
        return latents.float().cpu()

    def _encode(self, text: str) -> Conditioning:
        # One prompt at a time: an embedding must not depend on which other prompts happen to be missing.
        if text not in self._conditioning:
            with torch.no_grad():
                self._conditioning[text] = self.family.encode([text])
        return self._conditioning[text]

    def _score(
        self, job: RolloutJob, work: Work, images: np.ndarray, finite: np.ndarray
    ) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
        prompt = job.prompts[work.row]
        prompts, metadata = [prompt.text] * len(images), [prompt.metadata] * len(images)
        rewards: dict[str, np.ndarray] = {}
        failures = _undecoded(finite)
        for spec in work.rewards:
            reward = self._reward(spec)
            scores = score(reward, images, prompts, metadata, spec.timeout)
            rewards[reward_id(reward)] = np.where(finite, scores.values, np.nan).astype(np.float32)
            failures += list(scores.failures)
            self.counters.scored += len(images)
        return rewards, tuple(failures)

    def _embed(self, work: Work, images: np.ndarray, finite: np.ndarray) -> dict[str, np.ndarray]:
        vectors = {}
        for spec in work.features:
            feature = self._features.setdefault(spec.model_dump_json(), make_feature(spec, self.device))
            vectors[feature_id(feature)] = np.where(finite[:, None], feature(images), np.float32(np.nan))
        return vectors

    def _reward(self, spec: RewardSpec) -> Reward:
        key = spec.model_dump_json(exclude={"weight", "timeout"})
        if key not in self._rewards:
            self._rewards[key] = make_reward(spec, self.device)
        return self._rewards[key]

    def _clock(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


def _undecoded(finite: np.ndarray) -> list[str]:
    rows: Sequence[Any] = np.flatnonzero(~finite).tolist()
    return [f"image {row} of the block has non-finite pixels" for row in rows]
