"""Explore: a reward for every candidate of every prompt, in the store, block by block."""

import time
from collections.abc import Iterator, Sequence
from contextlib import closing

from solrl_tasks.config.words import counted
from solrl_tasks.stages.filled import Filled
from solrl_tasks.stages.jobs import PoolJob
from solrl_tasks.stages.outcome import StageOutcome, failure_note, shown_actors
from solrl_tasks.stages.session import Session
from solrl_tasks.stages.thumbnails import make_thumbnails
from solrl_tasks.store.blocks import Block
from solrl_tasks.store.pool import Pool
from solrl_tasks.workers.jobs import Work


def explore(session: Session, job: PoolJob) -> StageOutcome:
    """Fill what is missing of a pool.

    Returns:
        The pool's reference; ``Reused`` where nothing was missing, in which case no weights were loaded.
    """
    started = time.perf_counter()
    pool = job.open(session)
    what = f"{counted(len(job.prompts), 'prompt')} x {counted(job.candidates, 'candidate')}" + (
        f" of {job.about}" if job.about else ""
    )
    session.reporter.stage_started(job.step, job.stage, what)
    session.run.note_ref(job.step, f"{job.stage}_begun", pool.place())
    with pool.lock(f"run {session.run.run_id}"):
        pool.ensure_columns(job.candidates)
        blocks = job.lacking(pool)
        total = job.count_blocks()
        filled = _fill(session, job, pool, blocks, total)
    outcome = StageOutcome(
        stage=job.stage,
        state="Completed" if blocks else "Reused",
        ref=pool.ref(job.reward_ids(), job.candidates),
        message=f"{what}: {len(blocks)} of {counted(total, 'block')} computed{shown_actors(filled.actors)}",
        seconds=time.perf_counter() - started,
        device_seconds=filled.seconds,
        attributed_seconds=job.seconds(pool),
        details={
            "blocks_computed": len(blocks),
            "blocks_sampled": filled.sampled,
            "blocks_reused": total - len(blocks),
            "failures": list(filled.failures[:20]),
            "actors": {**filled.actors},
            "pool": pool.key,
        },
    )
    session.reporter.stage_finished(job.step, outcome)
    if filled.failures:
        session.reporter.note(failure_note(job.stage, filled.failures))
    return outcome


def _fill(session: Session, job: PoolJob, pool: Pool, blocks: Sequence[Block], total: int) -> Filled:
    filled = Filled()
    if not blocks:
        return filled
    record = session.worker.site.environment()
    pool.admit(record, blocks)
    done = total - len(blocks)
    session.reporter.progress(job.step, job.stage, done, total, "blocks")
    rollout = session.worker.rollout(job.rollout(session, blocks), _work(job, pool, blocks))
    with closing(rollout) as results:
        for result in results:
            block = result.work.token
            assert isinstance(block, Block)
            images = result.images if block.images_missing else None
            thumbnails = make_thumbnails(result.images) if block.thumbnails_missing else None
            # Noted first: a block that a kill takes from between the two is done, and paid for, twice.
            session.run.journal.append({"iteration": job.step, "stage": job.stage, "seconds": result.seconds})
            pool.write(block, result.rewards, images, result.seconds, record, thumbnails, result.features)
            filled.add(result)
            done += 1
            session.reporter.progress(job.step, job.stage, done, total, "blocks")
    return filled


def _work(job: PoolJob, pool: Pool, blocks: Sequence[Block]) -> Iterator[Work]:
    for block in blocks:
        yield Work(
            token=block,
            row=block.row,
            candidates=tuple(range(block.start, block.stop)),
            rewards=job.rewards_named(block.missing),
            features=job.features_named(block.features_missing),
            images=None if block.needs_sampling else pool.images(block.row, range(block.start, block.stop)),
        )
