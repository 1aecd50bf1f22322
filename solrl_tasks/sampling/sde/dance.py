"""The step of DanceGRPO (arXiv 2505.07818)."""

import math
from collections.abc import Sequence
from typing import ClassVar

from solrl_tasks.sampling.sde.base import Affine


class Dance:
    """Euler-Maruyama of the SDE with the same noise everywhere, ``sigma = eta``.

        mean = x + dt (v + eta^2 / 2 (x + (1 - t) v) / t)        std = eta sqrt(|dt|)

    (x + (1 - t) v) / t is the negative score, which grows towards t = 0: large eta and few steps overshoot there.
    """

    name: ClassVar[str] = "dance"
    version: ClassVar[str] = "1"

    def transition(self, eta: float, t: float, following: float, sigmas: Sequence[float]) -> Affine:  # noqa: ARG002
        """See ``SdeStep.transition``."""
        dt = following - t
        pull = eta**2 / (2.0 * t)
        return Affine(x=1.0 + pull * dt, v=(1.0 + pull * (1.0 - t)) * dt, std=eta * math.sqrt(-dt))


STEP = Dance
