"""How many images a device can compute together, found by computing some."""

from contextlib import AbstractContextManager
from dataclasses import replace

import torch

from solrl_tasks.config.recipe import RewardSpec
from solrl_tasks.workers.counters import Counters
from solrl_tasks.workers.jobs import RolloutJob, Shown, Work
from solrl_tasks.workers.memory import SHARE, Meter, give_back, largest_fit
from solrl_tasks.workers.resident import Resident
from solrl_tasks.workers.rollout import Rollout


def fitting_chunk(resident: Resident, job: RolloutJob, meter: Meter) -> int | None:
    """The largest of ``memory.SIZES`` of which a block fits; None if none does.

    Measured are this process's own tensors against the whole device, so that the answer does not depend on what
    happens to run beside it. Sampling and finishing are measured one after the other and added up, as they overlap.
    Engines are to be in place, and to hold a policy; blocks are sampled for one step.
    """
    trial = _Trial(resident, job)
    with _uncompiled():
        found = largest_fit(lambda size: trial.need(size, meter), int(SHARE * meter.total))
    give_back()
    return found


def try_block(resident: Resident, job: RolloutJob, size: int) -> None:
    """Sample, for one step, decode and score a block of so many images, for the sake of its memory alone.

    Raises:
        torch.OutOfMemoryError: it does not fit.
    """
    with _uncompiled():
        _Trial(resident, job).run(size)


def _uncompiled() -> AbstractContextManager[None]:
    # Each size would cost a compilation; operation by operation takes no less memory.
    stance: AbstractContextManager[None] = torch.compiler.set_stance("force_eager")
    return stance


class _Trial:
    """Blocks of a job, one step each, that are counted nowhere and kept nowhere."""

    def __init__(self, resident: Resident, job: RolloutJob) -> None:
        self._resident = resident
        self._job = replace(job, steps=1, noise=None)
        self._row = job.rows[0] if job.rows else 0
        # The other rewards need no memory here, and may cost something elsewhere.
        self._rewards = tuple(spec for spec in job.rewards if _holds_memory(resident, spec))

    def run(self, size: int) -> None:
        """One block, on the current stream."""
        stages, work = self._block(size)
        stages.finish(self._shown(stages, work))

    def need(self, size: int, meter: Meter) -> int:
        """Bytes that a block and the scoring of the one before take together, and all that is held besides."""
        stages, work = self._block(size)
        shown: list[Shown] = []
        sampling = meter.peak(lambda: shown.append(self._shown(stages, work)))
        held = meter.held()
        return sampling + meter.peak(lambda: stages.finish(shown.pop())) - held

    @staticmethod
    def _shown(stages: Rollout, work: Work) -> Shown:
        return stages.show(work, stages.sample(work, stages.draw(work)))

    def _block(self, size: int) -> tuple[Rollout, Work]:
        stages = Rollout(self._resident, replace(self._job, chunk=size), Counters())
        work = Work(None, self._row, tuple(range(size)), self._rewards)
        stages.prepare(work)
        return stages, work


def _holds_memory(resident: Resident, spec: RewardSpec) -> bool:
    reward = resident.reward(spec)
    reward.prepare()
    return reward.memory() > 0
