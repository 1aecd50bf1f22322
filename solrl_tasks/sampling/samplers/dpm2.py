"""Second order, multistep, in the predicted data: DPM-Solver++(2M)."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar

from torch import Tensor

from solrl_tasks.sampling import sigmas as grids
from solrl_tasks.sampling.samplers.base import Velocity


class Dpm2:
    """DPM-Solver++(2M) (arXiv 2211.01095, algorithm 2) for x_t = (1 - t) x0 + t eps; one evaluation a step.

    A step extrapolates the predicted x0 linearly in lambda = log((1 - t) / t). lambda is infinite at both
    ends of the grid, so the steps that touch an end, and the one after a start at t = 1, take x0 as constant:
    the exact DDIM step, and what the formula tends to.
    """

    name: ClassVar[str] = "dpm2"
    version: ClassVar[str] = "1"

    def sample(self, velocity: Velocity, x: Tensor, sigmas: Sequence[float]) -> Tensor:
        """One evaluation a step; see ``Sampler.sample``."""
        grids.check(sigmas)
        previous = x
        for i, (sigma, following) in enumerate(pairwise(sigmas)):
            x0 = x - sigma * velocity(x, sigma)
            weight = _extrapolation(sigmas, i)
            target = x0 + weight * (x0 - previous) if weight else x0
            ratio = following / sigma
            x = ratio * x + (1.0 - ratio) * target
            previous = x0
        return x


def _extrapolation(sigmas: Sequence[float], i: int) -> float:
    """How far step i carries the last change of x0 on: h_i / (2 h_(i-1)), zero where a lambda is infinite."""
    if i == 0 or sigmas[i - 1] == 1.0 or sigmas[i + 1] == 0.0:
        return 0.0
    before, here, after = (math.log((1.0 - s) / s) for s in sigmas[i - 1 : i + 2])
    return 0.5 * (after - here) / (here - before)


SAMPLER = Dpm2
