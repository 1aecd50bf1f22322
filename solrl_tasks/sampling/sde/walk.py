"""Paths with noise in some steps."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from solrl_tasks.config.stochastic import Stochastic, Window
from solrl_tasks.sampling.identity import stream
from solrl_tasks.sampling.samplers.base import Velocity
from solrl_tasks.sampling.sde.base import Affine, euler, transitions


def window_starts(window: Window, seeds: Sequence[int]) -> list[int]:
    """The first noisy step of each candidate: a function of its seed alone.

    Args:
        window: settled.
    """
    assert window.stop is not None
    places = window.stop - window.size - window.start + 1
    if places == 1:
        return [window.start] * len(seeds)
    return [window.start + int(stream("window", seed).integers(places)) for seed in seeds]


def step_noise(window: Window, seeds: Sequence[int], shape: tuple[int, ...]) -> Tensor:
    """The fresh noise of each step at which some candidate may have noise: [steps, candidates, *shape].

    float32 on the CPU. Each value is a function of candidate seed and step alone; it is 0 where the candidate's own
    window is elsewhere.

    Args:
        window: settled; its steps are ``start`` to ``stop``.
    """
    assert window.stop is not None
    noise = np.zeros((window.stop - window.start, len(seeds), *shape), dtype=np.float32)
    for row, (seed, start) in enumerate(zip(seeds, window_starts(window, seeds), strict=True)):
        for step in range(start, start + window.size):
            stream("step-noise", seed, step).standard_normal(dtype=np.float32, out=noise[step - window.start, row])
    return torch.from_numpy(noise)


@dataclass(frozen=True)
class Path:
    """What a walk leaves.

    Attributes:
        end: clean latents, [B, ...].
        states: [B, size + 1, ...], before the first noisy step of each row and after each of them.
    """

    end: Tensor
    states: Tensor


@dataclass(frozen=True)
class Walk:
    """A settled path for a batch of candidates on one grid.

    Attributes:
        sigmas: from 1 to 0.
        starts: first noisy step of each row.
    """

    noise: Stochastic
    sigmas: Sequence[float]
    starts: Sequence[int]

    def table(self) -> NDArray[np.float32]:
        """Coefficients of every step and row: of x, of v, and the standard deviation; [steps, 3, B]."""
        noisy = transitions(self.noise, self.sigmas)
        plain = [euler(t, following) for t, following in pairwise(self.sigmas)]
        size = self.noise.window.size
        rows = [
            [_numbers(noisy[i] if start <= i < start + size else plain[i]) for start in self.starts]
            for i in range(len(plain))
        ]
        return np.asarray(rows, dtype=np.float32).transpose(0, 2, 1)

    def run(self, velocity: Velocity, x: Tensor, fresh: Tensor) -> Path:
        """Walk ``x`` [B, ...] (float32, pure noise) to the end.

        Where no row has noise, a step is that of the ``euler`` sampler bit for bit. Nothing in the loop waits for the
        device.

        Args:
            fresh: noise, [steps that may have it, B, ...], from ``step_noise``.
        """
        table = torch.from_numpy(self.table())
        if x.is_cuda:
            table = table.pin_memory()
        coefficients = table.to(x.device, non_blocking=True).reshape(*table.shape, *[1] * (x.ndim - 1))
        first, last = min(self.starts), max(self.starts) + self.noise.window.size
        kept = []
        for i, sigma in enumerate(self.sigmas[:-1]):
            if first <= i <= last:
                kept.append(x)
            of_x, of_v, std = coefficients[i]
            x = of_x * x + of_v * velocity(x, sigma)
            if first <= i < last:
                x = x + std * fresh[i - (self.noise.window.start)]
        return Path(x, self._own(torch.stack(kept, dim=1), first))

    def _own(self, states: Tensor, first: int) -> Tensor:
        places = [[start - first + offset for offset in range(self.noise.states)] for start in self.starts]
        index = torch.tensor(places)
        if states.is_cuda:
            index = index.pin_memory()
        index = index.to(states.device, non_blocking=True)
        return states.gather(1, index.reshape(*index.shape, *[1] * (states.ndim - 2)).expand(-1, -1, *states.shape[2:]))


def _numbers(step: Affine) -> tuple[float, float, float]:
    return step.x, step.v, step.std
