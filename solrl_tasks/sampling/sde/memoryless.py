"""The step of Adjoint Matching (arXiv 2409.08861)."""

import math
from collections.abc import Sequence
from typing import ClassVar

from solrl_tasks.sampling.sde.base import Affine


class Memoryless:
    """The exact transition of the noising process, backwards, if the predicted x0 were the true one (DDIM, eta = 1).

        mean = q t'^2 / t^2 x + (1 - t') k / t^2 x0        variance = k t'^2 / t^2
        q = (1 - t) / (1 - t')        k = t^2 - q^2 t'^2

    It is the SDE with ``sigma_t^2 = 2 t / (1 - t)``, under which a sample does not depend on the noise it began from;
    unlike an Euler step of that SDE it is finite at t = 1, and right with few steps. The amount of noise is not free,
    so eta is not read. The last step has no noise.
    """

    name: ClassVar[str] = "memoryless"
    version: ClassVar[str] = "1"

    def transition(self, eta: float, t: float, following: float, sigmas: Sequence[float]) -> Affine:  # noqa: ARG002
        """See ``SdeStep.transition``."""
        q = (1.0 - t) / (1.0 - following)
        renewed = t**2 - (q * following) ** 2
        data = (1.0 - following) * renewed / t**2
        return Affine(x=q * (following / t) ** 2 + data, v=-data * t, std=math.sqrt(renewed) * following / t)


STEP = Memoryless
