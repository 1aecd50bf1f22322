"""What an update trains on: the rows of each optimizer step, and the batches that objectives are given."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from solrl_tasks.objectives.adjoints import AdjointStates
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
        self._begun: dict[int, Tensor] = {}

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
            self._begun[number] = current.detach().cpu()
        return current.detach()

    def end(self, samples: Sequence[int]) -> "PathEnd":
        """The paths of some samples from their second step on; they are to be noisy in every step but the last."""
        index = torch.tensor(samples)
        return PathEnd(
            states=self._paths.states[index, 1:].to(self._device),
            x0=self._job.x0[index].to(self._device),
            steps=[(one.x, one.v) for one in self._transitions[1:]],
            levels=list(self._sigmas[1:-1]),
        )

    def _column(self, values: Sequence[float]) -> Tensor:
        return torch.tensor(values, dtype=torch.float32, device=self._device)


@dataclass(frozen=True)
class PathEnd:
    """Paths from their second step on.

    Attributes:
        states: [B, n, C, H, W] before each of the last n steps.
        x0: [B, C, H, W] behind the last.
        steps: coefficients of state and velocity in each of them.
        levels: noise level before each.
    """

    states: Tensor
    x0: Tensor
    steps: list[tuple[float, float]]
    levels: list[float]


class Adjoints:
    """States before the noisy steps of paths, each with its adjoint, computed once before the first optimizer step."""

    def __init__(self, steps: Steps, job: TrainJob, device: torch.device) -> None:
        assert job.paths is not None
        self._steps = steps
        self._device = device
        self._samples = len(job.texts)
        self._together = job.update.micro_batch
        # In host memory, as the paths: [M, noisy steps, C, H, W], at the states behind each of them.
        self._adjoints = torch.zeros_like(job.paths.states[:, 1:])

    def carry_back(self, adjoints: Callable[[Sequence[int], "PathEnd"], Tensor], wanted: set[int]) -> None:
        """Fill them, a micro-batch of samples at a time, where any of it is wanted.

        The batches are the same whatever is wanted, and so are the bits.
        """
        for start in range(0, self._samples, self._together):
            part = range(start, min(start + self._together, self._samples))
            if wanted.isdisjoint(part):
                continue
            self._adjoints[start : part.stop] = adjoints(part, self._steps.end(part)).cpu()

    def rows(self, inner: int) -> list[Row]:
        """As ``Steps.rows``."""
        return self._steps.rows(inner)

    def batch(self, part: Sequence[Row], inner: int) -> AdjointStates:
        """The states before the steps, with their adjoints."""
        taken = self._steps.batch(part, inner)
        samples = torch.tensor([sample for sample, _, _ in part])
        # Of states from the second on; the first has that of the second, see ``AdjointStates``.
        numbers = torch.tensor([max(number - 1, 0) for _, number, _ in part])
        first = torch.tensor([number == 0 for _, number, _ in part], device=self._device)
        return AdjointStates(
            state=taken.state,
            t=taken.t,
            adjoint=self._adjoints[samples, numbers].to(self._device),
            half_variance=torch.where(first, taken.std.square() / taken.of_v.abs(), taken.t / (1 - taken.t)),
        )

    def begun(self, inner: int, number: int, current: Tensor) -> None:
        """Nothing is compared with the policy that sampled."""
