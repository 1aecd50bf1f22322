"""Explore: a reward for every candidate of every prompt, in the store, block by block."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from solrl_tasks.config.recipe import RewardSpec, SamplingSpec
from solrl_tasks.rewards.base import reward_id
from solrl_tasks.rewards.scoring import make_reward
from solrl_tasks.sampling.prompts import PromptSet
from solrl_tasks.stages.outcome import StageOutcome
from solrl_tasks.stages.session import Session
from solrl_tasks.stages.specs import PolicyChoice, pool_spec
from solrl_tasks.store.blocks import Block
from solrl_tasks.store.pool import Pool
from solrl_tasks.store.records import environment_record
from solrl_tasks.workers.jobs import RolloutJob, Work


@dataclass(frozen=True)
class PoolJob:
    """A pool to fill: explored candidates, held-out evaluation images, or a study's reference.

    Attributes:
        step: iteration it belongs to, for reports only.
        stage: name shown, for reports and costs only.
        candidates: per prompt.
    """

    step: int
    stage: str
    prompts: PromptSet
    policy: PolicyChoice
    exploration_seed: int
    sampling: SamplingSpec
    candidates: int
    rewards: tuple[RewardSpec, ...]
    store_images: bool = False
    reuse: Literal["exact", "compatible"] = "exact"

    def open(self, session: Session) -> Pool:
        """The pool in the store, made if it is new. Its key does not depend on candidates or rewards."""
        spec = pool_spec(session, self.policy, self.prompts.digest, self.exploration_seed, self.sampling)
        return Pool.open(session.store, spec, self.prompts.keys, self.chunk, self.reuse)

    def count_blocks(self) -> int:
        """Blocks of the whole pool: one prompt times one chunk each."""
        return len(self.prompts) * -(-self.candidates // self.chunk)

    @property
    def chunk(self) -> int:
        """Candidates computed together."""
        if self.sampling.chunk == "auto":
            raise ValueError("a chunk must be fixed before a pool is opened: prepare the recipe first")
        return self.sampling.chunk

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


def explore(session: Session, job: PoolJob) -> StageOutcome:
    """Fill what is missing of a pool.

    Returns:
        The pool's reference; ``Reused`` where nothing was missing, in which case no weights were loaded.
    """
    started = time.perf_counter()
    pool = job.open(session)
    what = f"{len(job.prompts)} prompts x {job.candidates} candidates"
    session.reporter.stage_started(job.step, job.stage, what)
    with pool.lock():
        pool.ensure_columns(job.candidates)
        blocks = pool.missing(job.reward_ids(), job.candidates, images=job.store_images)
        total = job.count_blocks()
        spent, failures, sampled = _fill(session, job, pool, blocks, total)
    outcome = StageOutcome(
        stage=job.stage,
        state="Completed" if blocks else "Reused",
        ref=pool.ref(job.reward_ids(), job.candidates),
        message=f"{what}: {len(blocks)} of {total} blocks computed",
        seconds=time.perf_counter() - started,
        device_seconds=spent,
        attributed_seconds=pool.seconds(job.reward_ids(), job.candidates),
        details={
            "blocks_computed": len(blocks),
            "blocks_sampled": sampled,
            "blocks_reused": total - len(blocks),
            "failures": list(failures[:20]),
            "pool": pool.key,
        },
    )
    session.reporter.stage_finished(job.step, outcome)
    return outcome


def _fill(
    session: Session, job: PoolJob, pool: Pool, blocks: Sequence[Block], total: int
) -> tuple[float, list[str], int]:
    if not blocks:
        return 0.0, [], 0
    record = environment_record(str(session.device))
    pool.admit(record, blocks)
    spent, failures, sampled, done = 0.0, list[str](), 0, total - len(blocks)
    session.reporter.progress(job.step, job.stage, done, total, "blocks")
    for result in session.worker.rollout(job.rollout(session), _work(job, pool, blocks)):
        block = result.work.token
        assert isinstance(block, Block)
        images = result.images if job.store_images and result.work.images is None else None
        pool.write(block, result.rewards, images, result.seconds, record)
        session.run.journal.append({"iteration": job.step, "stage": job.stage, "seconds": result.seconds})
        spent += result.seconds
        sampled += int(result.work.images is None)
        failures += result.failures
        done += 1
        session.reporter.progress(job.step, job.stage, done, total, "blocks")
    return spent, failures, sampled


def _work(job: PoolJob, pool: Pool, blocks: Sequence[Block]) -> Iterator[Work]:
    by_id = dict(zip(job.reward_ids(), job.rewards, strict=True))
    for block in blocks:
        yield Work(
            token=block,
            row=block.row,
            candidates=tuple(range(block.start, block.stop)),
            rewards=tuple(by_id[name] for name in block.missing),
            images=None if block.needs_sampling else pool.images(block.row, range(block.start, block.stop)),
        )
