"""What an update trains on: the rows of each optimizer step, and the batches that objectives are given."""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from solrl_tasks.objectives.base import MicroBatch, Objective
from solrl_tasks.objectives.times import draw_times
from solrl_tasks.objectives.transitions import Transitions
from solrl_tasks.sampling.identity import stream, training_noise
from solrl_tasks.sampling.sde.base import transitions
from solrl_tasks.workers.jobs import Paths, TrainJob

Row = tuple[int, int, float]
"""Sample, slot among those of the sample, noise level."""


class Lesson(Protocol):
    """An update's samples as something to train on. Batches come to the device a micro-batch at a time."""

    def rows(self, inner: int) -> list[Row]:
        """All rows of an optimizer step of the update, from 0."""
        ...

    def batch(self, part: Sequence[Row], inner: int) -> Any:
        """Some rows, as the objective wants them."""
        ...

    def begun(self, inner: int, number: int, current: Tensor) -> Tensor | None:
        """The velocity with which the update began, of a micro-batch by number.

        None leaves the old policy to be evaluated as any other role.
        """
        ...


class Endpoints:
    """Clean latents with fresh noise, at fresh noise levels in every optimizer step."""

    def __init__(self, job: TrainJob, objective: Objective[Any], sigmas: Sequence[float], device: torch.device) -> None:
        self._job = job
        self._density = objective.times
        self._levels = sigmas[:-1]
        self._device = device

    def rows(self, inner: int) -> list[Row]:
        """``times_per_sample`` of every sample."""
        job = self._job
        rows = []
        for sample, (key, candidate) in enumerate(zip(job.prompt_keys, job.candidates, strict=True)):
            random = stream("training-times", job.run_seed, job.iteration, inner, key, candidate)
            times = draw_times(self._density, job.update.times_per_sample, self._levels, random)
            rows += [(sample, slot, float(time)) for slot, time in enumerate(times)]
        return rows

    def batch(self, part: Sequence[Row], inner: int) -> MicroBatch:
        """See ``Lesson.batch``."""
        samples = torch.tensor([sample for sample, _, _ in part])
        return MicroBatch(
            x0=self._job.x0[samples].to(self._device),
            eps=self._noises(part, inner).to(self._device),
            t=torch.tensor([time for _, _, time in part], dtype=torch.float32, device=self._device),
            advantage=torch.from_numpy(self._job.advantage)[samples].float().to(self._device),
        )

    def begun(self, inner: int, number: int, current: Tensor) -> None:  # noqa: ARG002
        """The old policy is one of its own."""
        return

    def _noise(self, sample: int, inner: int) -> Tensor:
        job = self._job
        shape = (job.update.times_per_sample, *job.x0.shape[1:])
        return training_noise(
            job.run_seed, job.iteration, inner, job.prompt_keys[sample], job.candidates[sample], shape
        )

    def _noises(self, part: Sequence[Row], inner: int) -> Tensor:
        drawn = {sample: self._noise(sample, inner) for sample in {sample for sample, _, _ in part}}
        return torch.stack([drawn[sample][slot] for sample, slot, _ in part])


class Steps:
    """Noisy steps of paths, the same in every optimizer step of the update.

    The velocities with which the update began are those of its first optimizer step: the very same forward passes, so
    that no other kernel or rounding comes between them and a ratio of 1. Where there are more steps they wait in host
    memory.
    """

    def __init__(self, job: TrainJob, paths: Paths, sigmas: Sequence[float], device: torch.device) -> None:
        self._job = job
        self._paths = paths
        self._sigmas = sigmas
        self._transitions = transitions(paths.noise, sigmas)
        self._device = device
        self._begun: list[Tensor] = []

    def rows(self, inner: int) -> list[Row]:  # noqa: ARG002
        """``times_per_sample`` of the noisy steps of every sample, drawn without repetition."""
        job, paths = self._job, self._paths
        rows = []
        for sample, (key, candidate) in enumerate(zip(job.prompt_keys, job.candidates, strict=True)):
            random = stream("training-steps", job.run_seed, job.iteration, key, candidate)
            chosen = random.choice(paths.noise.window.size, size=job.update.times_per_sample, replace=False)
            rows += [(sample, step, self._sigmas[paths.starts[sample] + step]) for step in sorted(map(int, chosen))]
        return rows

    def batch(self, part: Sequence[Row], inner: int) -> Transitions:  # noqa: ARG002
        """The steps as they were taken."""
        samples = torch.tensor([sample for sample, _, _ in part])
        numbers = torch.tensor([number for _, number, _ in part])
        places = [self._paths.starts[sample] + number for sample, number, _ in part]
        taken = [self._transitions[place] for place in places]
        return Transitions(
            state=self._paths.states[samples, numbers].to(self._device),
            following=self._paths.states[samples, numbers + 1].to(self._device),
            t=self._column([self._sigmas[place] for place in places]),
            length=self._column([self._sigmas[place] - self._sigmas[place + 1] for place in places]),
            of_x=self._column([one.x for one in taken]),
            of_v=self._column([one.v for one in taken]),
            std=self._column([one.std for one in taken]),
            advantage=torch.from_numpy(self._job.advantage)[samples].float().to(self._device),
        )

    def begun(self, inner: int, number: int, current: Tensor) -> Tensor:
        """See ``Lesson.begun``."""
        if inner > 0:
            return self._begun[number].to(self._device)
        if self._job.update.optimizer_steps > 1:
            self._begun.append(current.detach().cpu())
        return current.detach()

    def _column(self, values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32, device=self._device)
