"""What the sampling stages are asked to do."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from solrl_tasks.config.recipe import ExtensionSpec, Keep, RewardSpec, SamplingSpec
from solrl_tasks.config.stochastic import Stochastic
from solrl_tasks.features.base import feature_id, make_feature
from solrl_tasks.rewards.base import reward_id
from solrl_tasks.rewards.scoring import make_reward
from solrl_tasks.sampling.prompts import PromptSet
from solrl_tasks.stages.resolutions import lowered
from solrl_tasks.stages.session import Session
from solrl_tasks.stages.specs import PolicyChoice, Spec, pool_spec, samples_spec
from solrl_tasks.store.blocks import Block
from solrl_tasks.store.keys import digest
from solrl_tasks.store.pool import Pool
from solrl_tasks.store.samples import Samples
from solrl_tasks.workers.jobs import Guidance, RolloutJob

CHUNK_FIELDS: Final = {
    "audit": "regenerate.chunk",
    "evaluate": "evaluate.sampling.chunk",
    "reference": "evaluate.sampling.chunk",
}
"""Stages whose chunk is not ``<stage>.chunk``."""


@dataclass(frozen=True, kw_only=True)
class SamplingJob:
    """Candidates to sample with one policy, and how.

    Attributes:
        step: iteration it belongs to, for reports only.
        stage: name shown, for reports and costs only.
        rewards: scored on every image.
        keep: which pictures are kept.
        guidance: None is the model's own.
        noise: put into the steps; None is the path that the sampler walks alone.
        about: what tells it apart from others of its step and stage, for messages only.
    """

    step: int
    stage: str
    prompts: PromptSet
    policy: PolicyChoice
    exploration_seed: int
    sampling: SamplingSpec
    rewards: tuple[RewardSpec, ...]
    keep: Keep = "none"
    guidance: Guidance | None = None
    noise: Stochastic | None = None
    reuse: Literal["exact", "compatible"] = "exact"
    about: str = ""

    @property
    def chunk(self) -> int:
        """Candidates computed together."""
        if self.sampling.chunk == "auto":
            raise ValueError("a chunk must be fixed before anything is sampled: prepare the recipe first")
        return self.sampling.chunk

    def reward_ids(self) -> list[str]:
        """ "name@version" of each reward."""
        return [reward_id(make_reward(reward)) for reward in self.rewards]

    def rewards_named(self, ids: tuple[str, ...]) -> tuple[RewardSpec, ...]:
        """The rewards of some of those ids."""
        by_id = dict(zip(self.reward_ids(), self.rewards, strict=True))
        return tuple(by_id[name] for name in ids)

    def rollout(self, session: Session, blocks: Sequence[Block]) -> RolloutJob:
        """What the worker is asked for these blocks; reads the policy from the store."""
        model = session.recipe.model
        side = lowered(model, self.sampling)
        return RolloutJob(
            engine=self.sampling.engine,
            lora=self.policy.load(session),
            sampler=self.sampling.sampler,
            steps=self.sampling.steps,
            prompts=self.prompts,
            exploration_seed=self.exploration_seed,
            rewards=self.rewards,
            chunk=self.chunk,
            rows=tuple(sorted({block.row for block in blocks if block.needs_sampling})),
            guidance=self.guidance,
            noise=self.noise,
            field=CHUNK_FIELDS.get(self.stage, f"{self.stage}.chunk"),
            resolution=side,
            scored_at=None if side is None else model.resolution,
        )


@dataclass(frozen=True, kw_only=True)
class PoolJob(SamplingJob):
    """A pool to fill: explored candidates, held-out evaluation images, or a study's reference.

    Attributes:
        candidates: per prompt, from 0.
        features: seen on every image.
    """

    candidates: int
    features: tuple[ExtensionSpec, ...] = ()

    def feature_ids(self) -> list[str]:
        """ "name@version" of each feature."""
        return [feature_id(make_feature(feature)) for feature in self.features]

    def features_named(self, ids: tuple[str, ...]) -> tuple[ExtensionSpec, ...]:
        """The features of some of those ids."""
        by_id = dict(zip(self.feature_ids(), self.features, strict=True))
        return tuple(by_id[name] for name in ids)

    def spec(self, session: Session) -> Spec:
        """What the pool's key is made of: neither candidates nor rewards."""
        return pool_spec(
            session,
            self.policy,
            self.prompts.digest,
            self.exploration_seed,
            self.sampling,
            self.guidance,
            self.noise,
        )

    def open(self, session: Session) -> Pool:
        """The pool in the store, made if it is new. Its key does not depend on candidates or rewards.

        Prompts that are noted beside it and damaged are noted anew, which is told.
        """
        pool = Pool.open(session.store, self.spec(session), self.prompts.keys, self.chunk, self.reuse)
        fault = pool.note_prompts([{"text": p.text, "metadata": dict(p.metadata)} for p in self.prompts.prompts])
        if fault:
            session.reporter.note(f"{fault}: done now")
        return pool

    def missing(self, session: Session) -> list[Block]:
        """Blocks that the pool in the store lacks, verified; loads no weights and computes nothing."""
        pool = self.open(session)
        with pool.lock():
            pool.ensure_columns(self.candidates)
            return self.lacking(pool)

    def lacking(self, pool: Pool) -> list[Block]:
        """Blocks of the open pool that lack something that the job asks for."""
        return pool.missing(
            self.reward_ids(),
            self.candidates,
            images=self.keep == "lossless",
            thumbnails=self.keep == "thumbnails",
            features=self.feature_ids(),
        )

    def seconds(self, pool: Pool) -> float:
        """Device seconds that all it asks for cost, whoever paid."""
        return pool.seconds(
            self.reward_ids(),
            self.candidates,
            images=self.keep == "lossless",
            thumbnails=self.keep == "thumbnails",
            features=self.feature_ids(),
        )

    def count_blocks(self) -> int:
        """Blocks of the whole pool: one prompt times one chunk each."""
        return len(self.prompts) * -(-self.candidates // self.chunk)


@dataclass(frozen=True, kw_only=True)
class SamplesJob(SamplingJob):
    """Chosen candidates to sample and keep with their clean latents, and their images where they are kept losslessly:
    smaller ones can be made of the latents at any time.

    Attributes:
        indices: candidate indices, int64, [P, K]; a row of -1 is left out.
        keep_paths: whether the states of noisy paths are kept.
    """

    indices: NDArray[np.int64]
    keep_paths: bool = False

    @property
    def states(self) -> int:
        """Latents of each path that are kept besides the clean ones."""
        return self.noise.states if self.noise is not None and self.keep_paths else 0

    @property
    def images(self) -> bool:
        """Whether images are kept."""
        return self.keep == "lossless"

    @property
    def kept(self) -> NDArray[np.bool_]:
        """Groups that were not left out, bool [P]."""
        kept: NDArray[np.bool_] = self.indices[:, 0] >= 0
        return kept

    def open(self, session: Session) -> Samples:
        """The samples in the store, made if they are new.

        The key holds which seeds of which policy are sampled, not how they were chosen: two selections that agree
        share their samples.
        """
        chosen = digest(
            {
                "policy": self.policy.digest,
                "exploration_seed": self.exploration_seed,
                "prompts": list(self.prompts.keys),
                "indices": self.indices.tolist(),
            }
        )
        spec = samples_spec(session, chosen, self.sampling, self.noise, self.keep_paths)
        shape = session.latent_shape
        return Samples.open(session.store, spec, self.indices, shape, self.chunk, self.reuse, self.states)
