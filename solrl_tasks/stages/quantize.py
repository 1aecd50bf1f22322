"""Quantize: put the sampling weights into an engine, if anything is left to sample with them."""

import time

from solrl_tasks.config.words import counted
from solrl_tasks.stages.jobs import PoolJob
from solrl_tasks.stages.outcome import StageOutcome
from solrl_tasks.stages.session import Session
from solrl_tasks.workers.memory import listed


def quantize(session: Session, job: PoolJob) -> StageOutcome:
    """An effect on the device, never a cache hit: nothing is stored but what is reported.

    Its seconds are spent by this run and attributed to nothing: a pool that is used again needed no sync of its own.

    Returns:
        ``Skipped`` where every block that the job wants is in the store: then no weights are loaded at all.
    """
    started = time.perf_counter()
    session.reporter.stage_started(job.step, "quantize", job.sampling.engine.name)
    if not any(block.needs_sampling for block in job.missing(session)):
        outcome = StageOutcome(stage="quantize", state="Skipped", message="nothing to sample, no weights needed")
    else:
        report = session.worker.sync(job.sampling.engine, job.policy.load(session))
        record = session.worker.record(job.sampling.engine)
        memory = session.worker.memory()
        session.run.journal.append({"iteration": job.step, "stage": "quantize", "seconds": report.seconds})
        outcome = StageOutcome(
            stage="quantize",
            state="Completed",
            message=(
                f"{record.name} ({record.kind}): {counted(report.synced, 'tensor')} synced, "
                f"{counted(report.replaced, 'layer')} replaced"
            )
            + (f"; held: {listed(memory)}" if "total" in memory else ""),
            seconds=time.perf_counter() - started,
            device_seconds=report.seconds,
            details={
                "sync": report.model_dump(mode="json"),
                "engine": record.model_dump(mode="json"),
                "memory": dict(memory),
            },
        )
    session.reporter.stage_finished(job.step, outcome)
    return outcome
