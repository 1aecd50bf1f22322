"""The step of Flow-GRPO (arXiv 2505.05470)."""

import math
from collections.abc import Sequence
from typing import ClassVar

from solrl_tasks.sampling.sde.base import Affine


class FlowSde:
    """Euler-Maruyama of the SDE with ``sigma_t = eta sqrt(t / (1 - t))``, whose marginals are those of the ODE.

        mean = x (1 + sigma_t^2 dt / (2 t)) + v (1 + sigma_t^2 (1 - t) / (2 t)) dt        std = sigma_t sqrt(|dt|)

    sigma_t is infinite at t = 1, and huge where a grid begins just below. The first step has the second level of the
    grid in place of the t below the root, as in the released code: its noise is then eta on every grid that begins at
    1, and it is no step of the SDE. In between the coefficient of v is ``(1 + eta^2 / 2) dt``. With eta = sqrt(2) the
    SDE forgets where it began.
    """

    name: ClassVar[str] = "flow-sde"
    version: ClassVar[str] = "1"

    def transition(self, eta: float, t: float, following: float, sigmas: Sequence[float]) -> Affine:
        """See ``SdeStep.transition``."""
        dt = following - t
        bounded = sigmas[1] if t == sigmas[0] else t
        variance = eta**2 * t / (1.0 - bounded)
        return Affine(
            x=1.0 + variance * dt / (2.0 * t),
            v=(1.0 + variance * (1.0 - t) / (2.0 * t)) * dt,
            std=math.sqrt(variance * -dt),
        )


STEP = FlowSde
