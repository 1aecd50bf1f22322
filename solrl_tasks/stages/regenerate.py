"""Regenerate: the chosen seeds again, precisely, scored again. Only these rewards are trained on."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from solrl_tasks.config.recipe import RewardSpec, SamplingSpec
from solrl_tasks.rewards.base import reward_id
from solrl_tasks.rewards.scoring import make_reward
from solrl_tasks.sampling.prompts import PromptSet
from solrl_tasks.stages.outcome import StageOutcome
from solrl_tasks.stages.session import Session
from solrl_tasks.stages.specs import PolicyChoice, samples_spec
from solrl_tasks.store.blocks import Block
from solrl_tasks.store.keys import digest
from solrl_tasks.store.records import environment_record
from solrl_tasks.store.samples import Samples
from solrl_tasks.workers.jobs import RolloutJob, Work


@dataclass(frozen=True)
class SamplesJob:
    """Candidates to sample precisely and keep with their clean latents.

    Attributes:
        indices: candidate indices, int64, [P, K]; a row of -1 is left out.
    """

    step: int
    stage: str
    prompts: PromptSet
    policy: PolicyChoice
    exploration_seed: int
    sampling: SamplingSpec
    rewards: tuple[RewardSpec, ...]
    indices: NDArray[np.int64]
    store_images: bool = False

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
                "base": session.base_digest,
                "policy": self.policy.digest,
                "exploration_seed": self.exploration_seed,
                "prompts": list(self.prompts.keys),
                "indices": self.indices.tolist(),
            }
        )
        chunk = self.sampling.chunk
        if chunk == "auto":
            raise ValueError("a chunk must be fixed before samples are opened: prepare the recipe first")
        spec = samples_spec(session, chosen, self.sampling)
        shape = session.latent_shape
        return Samples.open(session.store, spec, self.indices, shape, chunk)

    def reward_ids(self) -> list[str]:
        """ "name@version" of each reward."""
        return [reward_id(make_reward(reward)) for reward in self.rewards]

    def rollout(self, session: Session) -> RolloutJob:
        """What the worker is asked; reads the policy from the store."""
        return RolloutJob(
            engine=self.sampling.engine,
            lora=self.policy.load(session),
            sampler=self.sampling.sampler,
            steps=self.sampling.steps,
            prompts=self.prompts,
            exploration_seed=self.exploration_seed,
            rewards=self.rewards,
        )


def regenerate(session: Session, job: SamplesJob) -> StageOutcome:
    """Sample, decode and score what is missing of the chosen seeds."""
    started = time.perf_counter()
    kept = int(job.kept.sum())
    what = f"{kept} prompts x {job.indices.shape[1]} seeds"
    session.reporter.stage_started(job.step, job.stage, what)
    samples = job.open(session)
    with samples.lock():
        blocks = samples.missing(job.reward_ids(), images=job.store_images)
        spent, failures = _fill(session, job, samples, blocks)
    outcome = StageOutcome(
        stage=job.stage,
        state="Completed" if blocks else "Reused",
        ref=samples.ref(job.reward_ids()),
        message=f"{what}: {len(blocks)} blocks computed",
        seconds=time.perf_counter() - started,
        device_seconds=spent,
        attributed_seconds=samples.seconds(job.reward_ids()),
        details={"blocks_computed": len(blocks), "failures": list(failures[:20])},
    )
    session.reporter.stage_finished(job.step, outcome)
    return outcome


def _fill(
    session: Session, job: SamplesJob, samples: Samples, blocks: Sequence[Block]
) -> tuple[float, list[str]]:
    if not blocks:
        return 0.0, []
    record = environment_record(str(session.device))
    samples.admit(record, blocks)
    spent, failures, done = 0.0, list[str](), 0
    for result in session.worker.rollout(job.rollout(session), _work(job, samples, blocks)):
        block = result.work.token
        assert isinstance(block, Block)
        fresh = result.work.latents is None
        latents = result.latents.numpy() if fresh and result.latents is not None else None
        images = result.images if block.images_missing else None
        samples.write(block, latents, result.rewards, images, result.seconds, record)
        session.run.journal.append({"iteration": job.step, "stage": job.stage, "seconds": result.seconds})
        spent += result.seconds
        failures += result.failures
        done += 1
        session.reporter.progress(job.step, job.stage, done, len(blocks), "blocks")
    return spent, failures


def _work(job: SamplesJob, samples: Samples, blocks: Sequence[Block]) -> Iterator[Work]:
    by_id = dict(zip(job.reward_ids(), job.rewards, strict=True))
    for block in blocks:
        latents = None if block.needs_sampling else torch.from_numpy(samples.block_latents(block))
        yield Work(
            token=block,
            row=block.row,
            candidates=tuple(int(index) for index in samples.candidates(block)),
            rewards=tuple(by_id[name] for name in block.missing),
            latents=latents,
        )
