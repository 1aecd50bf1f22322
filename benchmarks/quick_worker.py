"""A worker that computes nothing: pictures, rewards and policies follow from seeds at once.

What a run then costs is the store, the trackers and our own code, at sizes that no model of a CPU would reach.
"""

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch

from solrl_tasks.config.extensions import find_extension
from solrl_tasks.config.recipe import ExtensionSpec, ModelSpec
from solrl_tasks.engines.base import EngineRecord, SyncReport
from solrl_tasks.features.base import feature_id, make_feature
from solrl_tasks.models.lora import LoraState
from solrl_tasks.rewards.base import reward_id
from solrl_tasks.rewards.scoring import make_reward
from solrl_tasks.workers.counters import Counters
from solrl_tasks.workers.jobs import RolloutJob, TrainJob, TrainResult, Work, WorkResult
from solrl_tasks.workers.pipeline import Results
from solrl_tasks.workers.site import LocalSite, Site
from solrl_tasks.workers.state import PolicyState, initial_state

LAYER = "transformer_blocks.0.attn.to_q"
WIDTH = 8


class QuickWorker:
    """Stands in for ``InlineWorker``. The same seeds give the same values, as with a model."""

    def __init__(self, model: ModelSpec, device: torch.device, cache: Path | None = None) -> None:  # noqa: ARG002
        self.site: Site = LocalSite(device)
        self.counters = Counters()
        self._latent = tuple(find_extension("family", model.family).latent_shape_of(model))
        self._side = model.resolution

    def sync(self, engine: ExtensionSpec, lora: LoraState | None) -> SyncReport:
        """Nothing to put anywhere."""
        digest = "base" if lora is None else lora.digest
        return SyncReport(
            engine=engine.name, policy_digest=digest, synced=1, replaced=0, skipped={}, seconds=0.0, note="none"
        )

    def record(self, engine: ExtensionSpec) -> EngineRecord:
        """An engine that computes nothing."""
        return EngineRecord(
            name=engine.name,
            version="0",
            kind="emulated",
            compute="nothing",
            hardware=self.site.hardware,
            replaced=(),
            skipped={},
            execution="eager",
        )

    def rollout(self, job: RolloutJob, blocks: Iterable[Work]) -> Results:
        """One colour a picture, and one number a reward, by the seed."""
        for work in blocks:
            started = time.perf_counter()
            seeds = np.array(job.seeds(work.row, work.candidates), dtype=np.uint64)
            values = (seeds >> np.uint64(40)).astype(np.float32) / np.float32(1 << 24)
            rewards = {
                reward_id(make_reward(reward)): (values + np.float32(place)) % np.float32(1)
                for place, reward in enumerate(work.rewards)
            }
            images = np.repeat((seeds & np.uint64(255)).astype(np.uint8), 3 * self._side**2)
            latents = torch.from_numpy(values).view(-1, *[1] * len(self._latent)).expand(-1, *self._latent)
            features = {
                feature_id(make_feature(feature)): np.stack([values, values**2], axis=1) for feature in work.features
            }
            self.counters.scored += len(seeds) * len(rewards)
            yield WorkResult(
                work=work,
                latents=latents.contiguous(),
                images=images.reshape(-1, self._side, self._side, 3),
                rewards=rewards,
                failures=(),
                seconds=time.perf_counter() - started,
                features=features,
            )

    def fitting_chunk(self, job: RolloutJob, beside: Iterable[ExtensionSpec] = ()) -> int:  # noqa: ARG002
        """Whatever was asked for."""
        return job.chunk

    def memory(self) -> dict[str, int]:
        """Nothing is held."""
        return {}

    def decode(self, latents: torch.Tensor) -> np.ndarray:
        """Black."""
        return np.zeros((len(latents), self._side, self._side, 3), dtype=np.uint8)

    def initial_policy(self, rank: int, alpha: float, targets: str, seed: int) -> PolicyState:  # noqa: ARG002
        """One layer."""
        weights = {f"{LAYER}.lora_A": torch.ones(rank, WIDTH), f"{LAYER}.lora_B": torch.zeros(WIDTH, rank)}
        return initial_state(LoraState(rank, alpha, weights))

    def train(self, job: TrainJob, policy: PolicyState) -> tuple[PolicyState, TrainResult]:
        """Every iteration another policy."""
        weights = dict(policy.current.weights)
        weights[f"{LAYER}.lora_B"] = weights[f"{LAYER}.lora_B"] + 1.0 / (1 + job.iteration)
        lora = LoraState(policy.current.rank, policy.current.alpha, weights)
        steps = policy.optimizer_step + job.update.optimizer_steps
        self.counters.updates += job.update.optimizer_steps
        state = replace(policy, current=lora, old=lora, ema=lora, iteration=job.iteration, optimizer_step=steps)
        return state, TrainResult(metrics={"train/loss": 1.0 / (1 + job.iteration)}, seconds=0.0)


@contextmanager
def quick_workers() -> Iterator[None]:
    """Every session opened in the block has a quick worker."""
    with patch("solrl_tasks.stages.session.InlineWorker", QuickWorker):
        yield
