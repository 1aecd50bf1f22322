"""Rescore: another reward for a pool that is there, from the images that it keeps."""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Protocol

import torch

from solrl_tasks.config.recipe import ExtensionSpec, RewardSpec
from solrl_tasks.config.words import counted
from solrl_tasks.rewards.base import reward_id
from solrl_tasks.rewards.scoring import make_reward
from solrl_tasks.sampling.prompts import Prompt, PromptSet
from solrl_tasks.stages.thumbnails import SIDE
from solrl_tasks.store.array_names import THUMBNAILS
from solrl_tasks.store.blocks import Block
from solrl_tasks.store.pool import Pool
from solrl_tasks.store.records import environment_record
from solrl_tasks.workers.base import Worker
from solrl_tasks.workers.jobs import RolloutJob, Work


class RescoreError(ValueError):
    """A pool that a reward cannot be added to; the message says what it lacks and what to do."""


class Progress(Protocol):
    """Told how many of all blocks are scored."""

    def __call__(self, done: int, total: int) -> None: ...


@dataclass
class Rescored:
    """What came of it.

    Attributes:
        reward: "name@version".
        total: blocks that were explored.
        scored: those of them that were scored now; the others were before.
        unexplored: blocks that nobody has sampled yet, which have nothing to score.
        seconds: device-seconds; they are charged to whoever uses the reward later, and to no run's own spending.
        failures: what went wrong with single images.
    """

    reward: str
    total: int
    scored: int = 0
    unexplored: int = 0
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)


def rescore(
    pool: Pool, spec: RewardSpec, worker: Worker, device: torch.device, progress: Progress | None = None
) -> Rescored:
    """Add a reward to every explored candidate of a pool. Nothing is sampled or decoded; no base weights are loaded.

    Blocks that have the reward are left alone, so that a call that was killed goes on where it stopped.

    Args:
        worker: scores; that of any model will do.
        device: where it computes.

    Raises:
        RescoreError: images of some explored block are not kept as they were, or the prompts are not noted.
        RecordMismatchError: the reward has blocks of another environment.
    """
    name = reward_id(make_reward(spec))
    prompts = _prompts(pool)
    record = environment_record(str(device))
    with pool.lock(f"scoring {name}"):
        explored = pool.explored(pool.columns)
        blocks = [block for block in pool.missing([name], pool.columns) if explored[block.row, block.index]]
        _require_images(pool, blocks)
        pool.admit(record, blocks)
        done = Rescored(name, int(explored.sum()), unexplored=int((~explored).sum()))
        with closing(worker.rollout(_job(pool, prompts, spec), _work(pool, spec, blocks))) as results:
            for result in results:
                block = result.work.token
                assert isinstance(block, Block)
                pool.write(block, result.rewards, None, result.seconds, record)
                done.scored += 1
                done.seconds += result.seconds
                done.failures += result.failures
                if progress is not None:
                    progress(done.total - len(blocks) + done.scored, done.total)
    return done


def _prompts(pool: Pool) -> PromptSet:
    noted = pool.noted_prompts()
    if fault := pool.prompts_fault():
        raise RescoreError(f"pool {pool.key} cannot be scored again: {fault}. Start a run that uses it")
    if noted is None:
        raise RescoreError(
            f"pool {pool.key} does not know its prompts, which a reward needs: start a run that uses it again, which "
            "notes them"
        )
    prompts = tuple(Prompt(item["text"], item["metadata"]) for item in noted)
    contents = [key.rpartition("-")[0] for key in PromptSet(prompts).keys]
    if contents != [key.rpartition("-")[0] for key in pool.rows]:
        raise RescoreError(f"prompts noted beside pool {pool.key} are not those of its rows: start a run that uses it")
    return PromptSet(prompts, pool.rows)


def _require_images(pool: Pool, blocks: Sequence[Block]) -> None:
    lacking = [block for block in blocks if block.needs_sampling]
    if not lacking:
        return
    kept = f"it keeps no images of {len(lacking)} of {counted(len(blocks), 'block')}"
    if THUMBNAILS in pool.arrays():
        kept = f"it keeps thumbnails of {SIDE} px only, and a reward of a smaller image is another reward"
    raise RescoreError(
        f"pool {pool.key} cannot be scored again: {kept}. Run what made it with `store_images: lossless` (explore or "
        "evaluate) under another run id: that samples the images again and leaves its rewards as they are"
    )


def _job(pool: Pool, prompts: PromptSet, spec: RewardSpec) -> RolloutJob:
    # Only prompts and rewards are looked at: every block brings its images.
    return RolloutJob(
        engine=ExtensionSpec(name=str(pool.spec["engine"]["name"])),
        lora=None,
        sampler=str(pool.spec["sampler"]["name"]),
        steps=int(pool.spec["steps"]),
        prompts=prompts,
        exploration_seed=int(pool.spec["exploration_seed"]),
        rewards=(spec,),
        chunk=pool.chunk,
        scored_at=pool.spec.get("lowered", {}).get("from"),
    )


def _work(pool: Pool, spec: RewardSpec, blocks: Sequence[Block]) -> Iterator[Work]:
    for block in blocks:
        yield Work(
            token=block,
            row=block.row,
            candidates=tuple(range(block.start, block.stop)),
            rewards=(spec,),
            images=pool.images(block.row, range(block.start, block.stop)),
        )
