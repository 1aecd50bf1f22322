"""Coefficients-preserving sampling, the step of Flow-GRPO-Fast (arXiv 2509.05952)."""

import math
from collections.abc import Sequence
from typing import ClassVar

from solrl_tasks.sampling.sde.base import Affine


class Cps:
    """A share of the predicted noise is exchanged for fresh noise, so that the amount of noise stays what t says.

        mean = (1 - t') x0 + t' cos(eta pi / 2) eps        std = t' sin(eta pi / 2)

    with the predicted ``x0 = x - t v`` and ``eps = x + (1 - t) v``. The share does not shrink with the step, so this is
    no discretisation of an SDE: many steps do not converge to the marginals of the ODE. The last step has no noise.
    """

    name: ClassVar[str] = "cps"
    version: ClassVar[str] = "1"

    def transition(self, eta: float, t: float, following: float, sigmas: Sequence[float]) -> Affine:  # noqa: ARG002
        """See ``SdeStep.transition``. eta is 0 to 1, all of the predicted noise being exchanged at 1."""
        kept = following * math.cos(eta * math.pi / 2.0)
        data = 1.0 - following
        return Affine(x=data + kept, v=kept * (1.0 - t) - data * t, std=following * math.sin(eta * math.pi / 2.0))


STEP = Cps
