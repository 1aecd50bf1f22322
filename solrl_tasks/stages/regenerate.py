"""Regenerate: the chosen seeds again, precisely, scored again. Only these rewards are trained on."""

import time
from collections.abc import Iterator, Sequence
from contextlib import closing

import torch

from solrl_tasks.config.words import counted
from solrl_tasks.stages.filled import Filled
from solrl_tasks.stages.jobs import SamplesJob
from solrl_tasks.stages.outcome import StageOutcome, failure_note, shown_actors
from solrl_tasks.stages.session import Session
from solrl_tasks.store.blocks import Block
from solrl_tasks.store.samples import Samples
from solrl_tasks.workers.jobs import Work


def regenerate(session: Session, job: SamplesJob) -> StageOutcome:
    """Sample, decode and score what is missing of the chosen seeds."""
    started = time.perf_counter()
    kept = int(job.kept.sum())
    what = f"{counted(kept, 'prompt')} x {counted(job.indices.shape[1], 'seed')}"
    session.reporter.stage_started(job.step, job.stage, what)
    samples = job.open(session)
    session.run.note_ref(job.step, f"{job.stage}_begun", samples.place())
    with samples.lock(f"run {session.run.run_id}"):
        blocks = samples.missing(job.reward_ids(), images=job.images)
        filled = _fill(session, job, samples, blocks)
    outcome = StageOutcome(
        stage=job.stage,
        state="Completed" if blocks else "Reused",
        ref=samples.ref(job.reward_ids()),
        message=f"{what}: {counted(len(blocks), 'block')} computed{shown_actors(filled.actors)}",
        seconds=time.perf_counter() - started,
        device_seconds=filled.seconds,
        attributed_seconds=samples.seconds(job.reward_ids()),
        details={
            "blocks_computed": len(blocks),
            "failures": list(filled.failures[:20]),
            "actors": {**filled.actors},
        },
    )
    session.reporter.stage_finished(job.step, outcome)
    if filled.failures:
        session.reporter.note(failure_note(job.stage, filled.failures))
    return outcome


def _fill(session: Session, job: SamplesJob, samples: Samples, blocks: Sequence[Block]) -> Filled:
    filled = Filled()
    if not blocks:
        return filled
    record = session.worker.site.environment()
    samples.admit(record, blocks)
    rollout = session.worker.rollout(job.rollout(session, blocks), _work(job, samples, blocks))
    with closing(rollout) as results:
        for done, result in enumerate(results, start=1):
            block = result.work.token
            assert isinstance(block, Block)
            fresh = result.work.latents is None
            latents = result.latents.numpy() if fresh and result.latents is not None else None
            images = result.images if block.images_missing else None
            paths = result.paths.numpy() if samples.states and result.paths is not None else None
            session.run.journal.append({"iteration": job.step, "stage": job.stage, "seconds": result.seconds})
            samples.write(block, latents, result.rewards, images, result.seconds, record, paths)
            filled.add(result)
            session.reporter.progress(job.step, job.stage, done, len(blocks), "blocks")
    return filled


def _work(job: SamplesJob, samples: Samples, blocks: Sequence[Block]) -> Iterator[Work]:
    for block in blocks:
        latents = None if block.needs_sampling else torch.from_numpy(samples.block_latents(block))
        yield Work(
            token=block,
            row=block.row,
            candidates=tuple(int(index) for index in samples.candidates(block)),
            rewards=job.rewards_named(block.missing),
            latents=latents,
        )
