"""Second order, multistep, in the predicted data: DPM-Solver++(2M)."""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar

from torch import Tensor

from solrl_tasks.sampling import sigmas as grids
from solrl_tasks.sampling.samplers.base import Velocity

MAX_EXTRAPOLATION = 1.0
"""How far the last change of x0 may be carried on, in units of that change."""


class Dpm2:
    """DPM-Solver++(2M) (arXiv 2211.01095, algorithm 2) for x_t = (1 - t) x0 + t eps; one evaluation a step.

    A step extrapolates the predicted x0 linearly in lambda = log((1 - t) / t). lambda is infinite at both
    ends of the grid, so the steps that touch an end, and the one after a start at t = 1, take x0 as constant:
    the exact DDIM step, and what the formula tends to.

    A step that is long in lambda against the one before carries the last change far beyond what it knows. On grids
    that are shifted once that is at most 0.86 of the change. On the grid that SD3's scheduler makes by itself
    (``shifted_twice``) the step to its tiny last level carries on 1.7 to 2.3 times, and the variance of samples of a
    Gaussian comes out 2.1 times too large with 6 steps, 1.9 times with 10: such grids are refused.
    """

    name: ClassVar[str] = "dpm2"
    version: ClassVar[str] = "1"

    def check(self, sigmas: Sequence[float]) -> None:
        """Refuse a grid that cannot be walked, or not well.

        Raises:
            ValueError: it does not fall strictly to 0, or a step would carry the last change on too far.
        """
        grids.check(sigmas)
        reach = [_extrapolation(sigmas, i) for i in range(len(sigmas) - 1)]
        if max(reach) > MAX_EXTRAPOLATION:
            i = reach.index(max(reach))
            raise ValueError(
                f"dpm2 on this sigma grid of {len(sigmas) - 1} steps: the step from {sigmas[i]:.4f} to "
                f"{sigmas[i + 1]:.4f} is so long that the last change of x0 would be carried on {reach[i]:.2f} times "
                f"(at most {MAX_EXTRAPOLATION:g}), which spoils the samples: set model.shift (SD3 and SANA: 3) for a "
                "grid that is shifted once, or take the euler sampler"
            )

    def sample(self, velocity: Velocity, x: Tensor, sigmas: Sequence[float]) -> Tensor:
        """One evaluation a step; see ``Sampler.sample``."""
        self.check(sigmas)
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
