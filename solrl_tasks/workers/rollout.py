"""A block from seeds to scores."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import JsonValue
from torch import Tensor

from solrl_tasks.config.extensions import build
from solrl_tasks.config.recipe import RewardSpec
from solrl_tasks.engines.base import Engine
from solrl_tasks.features.base import feature_id
from solrl_tasks.models.families.base import Conditioning, Family
from solrl_tasks.models.lora import BASE_DIGEST
from solrl_tasks.rewards.base import Images, Reward, reward_id
from solrl_tasks.rewards.pixels import enlarge
from solrl_tasks.rewards.scoring import score
from solrl_tasks.sampling.identity import initial_noise, pool_noise
from solrl_tasks.sampling.sde.walk import Walk, step_noise, window_starts
from solrl_tasks.workers.counters import Counters
from solrl_tasks.workers.jobs import RolloutJob, Shown, Work, WorkResult
from solrl_tasks.workers.resident import Resident


class Rollout:
    """The stages of one job's blocks; see ``pipeline.Stages``."""

    def __init__(
        self,
        resident: Resident,
        job: RolloutJob,
        counters: Counters | None = None,
        explained: Callable[[str], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        """
        Args:
            explained: given what is done, says in words that memory is too short for it, where that is not for the
                number of images.
        """
        self._resident = resident
        self._explained = explained
        self._device = resident.device
        self._job = job
        self._counters = counters or resident.counters
        self._sampler = build("sampler", job.sampler, {})
        self._encoded: dict[str, Conditioning] = {}

    def prepare(self, work: Work) -> None:
        """Load the base and the engine, or the base alone, and what scores."""
        if work.images is None:
            _ = self._family
        if work.needs_sampling:
            self._resident.engine(self._job.engine)
        for spec in work.rewards:
            self._resident.reward(spec).prepare()

    def draw(self, work: Work) -> Tensor | None:
        """Noise [rows, C, H, W], a short block's last row repeated up to the chunk where shapes are static.

        Of a noisy path [1 + steps, rows, C, H, W]: what it begins with, and what each step adds.
        """
        if not work.needs_sampling:
            return None
        seeds, whole = self._job.seeds(work.row, work.candidates), self._resident.family.latent_shape
        noise = initial_noise(seeds, whole)
        if self._job.noise is not None:
            noise = torch.cat([noise[None], step_noise(self._job.noise.window, seeds, whole)])
        shape = self._family.latent_shape
        noise = pool_noise(noise, whole[-1] // shape[-1])
        short = self._job.chunk - len(seeds)
        if self._engine.static_shapes and short > 0:
            # Scales of quantised inputs are maxima over the batch: a repeated row brings none of its own.
            last = noise[..., -1:, :, :, :]
            noise = torch.cat([noise, last.expand(*noise.shape[:-4], short, *shape)], dim=-4)
        return noise.pin_memory() if self._device.type == "cuda" else noise

    @torch.no_grad()
    def sample(self, work: Work, noise: Tensor | None) -> Tensor | None:
        """Clean latents of the candidates. The steps are queued one after another: nothing in them waits.

        Of a noisy path [rows, states + 1, C, H, W]: the clean latents are last.
        """
        if noise is None:
            return None
        self._sync()
        family, module = self._family, self._engine.module
        rows, count = noise.shape[-4], len(work.candidates)
        conditioning = _repeated(self._condition(self._job.prompts[work.row].text), rows)

        def velocity(x: Tensor, sigma: float) -> Tensor:
            self._counters.forwards += count
            self._counters.padded += rows - count
            # Filled in on the device: a number that is copied to it would wait for all that is queued.
            level = torch.full((rows,), sigma, dtype=torch.float32, device=x.device)
            return family.velocity(module, x, level, conditioning)

        start = noise.to(self._device, non_blocking=True)
        sigmas = family.sigmas(self._job.steps)
        if self._job.noise is None:
            latents: Tensor = self._sampler.sample(velocity, start, sigmas)
        else:
            starts = window_starts(self._job.noise.window, self._job.seeds(work.row, work.candidates))
            padded = starts + [starts[-1]] * (rows - count)
            path = Walk(self._job.noise, sigmas, padded).run(velocity, start[0], start[1:])
            latents = torch.cat([path.states, path.end[:, None]], dim=1)
        return latents[:count].float()

    @torch.no_grad()
    def show(self, work: Work, latents: Tensor | None) -> Shown:
        """Decode what was sampled or brought, and bring it to host memory."""
        paths = None
        if latents is not None and self._job.noise is not None:
            paths, latents = latents[:, :-1].cpu(), latents[:, -1]
        images, finite, clean = self._images(work, latents)
        failures = tuple(f"image {row} of the block has non-finite pixels" for row in np.flatnonzero(~finite).tolist())
        return Shown(work, clean, images, finite, failures, paths)

    def finish(self, shown: Shown) -> WorkResult:
        """Score the images, and compute their features."""
        seen = shown.images if self._job.scored_at is None else enlarge(shown.images, self._job.scored_at)
        rewards, failures = self._score(shown, seen)
        features = self._embed(shown, seen)
        return WorkResult(
            shown.work, shown.latents, shown.images, rewards, failures, features=features, paths=shown.paths
        )

    @cached_property
    def _engine(self) -> Engine:
        return self._resident.engine(self._job.engine)

    @cached_property
    def _family(self) -> Family:
        return self._resident.family_for(self._job.guidance, self._job.resolution)

    @cached_property
    def _policy(self) -> str:
        return BASE_DIGEST if self._job.lora is None else self._job.lora.digest

    def _sync(self) -> None:
        # Asked anew for every block: whoever takes the results may have put other weights in between two of them.
        if self._engine.policy_digest != self._policy:
            self._counters.syncs += int(self._engine.sync(self._job.lora).synced > 0)

    def _condition(self, text: str) -> Conditioning:
        if text not in self._encoded:
            texts = tuple(dict.fromkeys((*self._job.texts, text)))
            with self._explained("encoding prompts"):
                rows = self._resident.embeddings_for(self._job.guidance).get(texts).to(self._device)
            self._encoded |= {one: _row(rows, index) for index, one in enumerate(texts)}
        return self._encoded[text]

    def _images(self, work: Work, latents: Tensor | None) -> tuple[Images, NDArray[np.bool_], Tensor | None]:
        if work.images is not None:
            return work.images, np.ones(len(work.images), dtype=bool), None
        sampled = work.latents if latents is None else latents
        assert sampled is not None
        decoded = self._family.decode(sampled.to(self._device))
        self._counters.decoded += len(sampled)
        return decoded.images, decoded.finite, sampled.cpu()

    def _score(self, shown: Shown, images: Images) -> tuple[dict[str, NDArray[np.float32]], tuple[str, ...]]:
        prompt = self._job.prompts[shown.work.row]
        prompts, metadata = [prompt.text] * len(images), [prompt.metadata] * len(images)
        rewards: dict[str, NDArray[np.float32]] = {}
        failures = list(shown.failures)
        for spec in shown.work.rewards:
            reward = self._resident.reward(spec)
            scores = score(self._here(reward, spec), images, prompts, metadata, spec.timeout)
            rewards[reward_id(reward)] = np.where(shown.finite, scores.values, np.nan).astype(np.float32)
            failures += list(scores.failures)
            self._counters.scored += len(images)
        return rewards, tuple(failures)

    def _embed(self, shown: Shown, images: Images) -> dict[str, NDArray[np.float32]]:
        features = (self._resident.feature(spec) for spec in shown.work.features)
        finite = shown.finite[:, None]
        return {feature_id(f): np.where(finite, f(images), np.float32(np.nan)) for f in features}

    def _here(self, reward: Reward, spec: RewardSpec) -> Reward:
        if self._device.type != "cuda" or spec.timeout is None:
            return reward
        return _OnStream(reward, torch.cuda.current_stream(self._device))


@dataclass(frozen=True)
class _OnStream:
    """A reward that computes on one stream in whatever thread it is called.

    One with a timeout is called in a thread of its own, whose current stream would be the one that samples: the scores
    would wait for the whole next block, and run out of time.
    """

    reward: Reward
    stream: torch.cuda.Stream

    @property
    def name(self) -> str:
        return self.reward.name

    @property
    def version(self) -> str:
        return self.reward.version

    @property
    def range(self) -> tuple[float, float]:
        return self.reward.range

    def __call__(
        self, images: Images, prompts: Sequence[str], metadata: Sequence[Mapping[str, JsonValue]]
    ) -> Sequence[float] | NDArray[np.floating[Any]]:
        with torch.cuda.stream(self.stream):
            return self.reward(images, prompts, metadata)


def _row(conditioning: Conditioning, index: int) -> Conditioning:
    return Conditioning({name: tensor[index : index + 1] for name, tensor in conditioning.tensors.items()})


def _repeated(one: Conditioning, rows: int) -> Conditioning:
    # Not ``take``: its list of rows would be copied to the device, and wait for all that is queued.
    return Conditioning({name: t.expand(rows, *t.shape[1:]).contiguous() for name, t in one.tensors.items()})
