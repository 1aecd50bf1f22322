"""First order: straight along the velocity."""

from collections.abc import Sequence
from itertools import pairwise
from typing import ClassVar

from torch import Tensor

from solrl_tasks.sampling import sigmas as grids
from solrl_tasks.sampling.samplers.base import Velocity


class Euler:
    """x <- x + (sigma_next - sigma) v: what a flow-matching pipeline does by default."""

    name: ClassVar[str] = "euler"
    version: ClassVar[str] = "1"

    def check(self, sigmas: Sequence[float]) -> None:
        """Refuse a grid that does not fall strictly to 0."""
        grids.check(sigmas)

    def sample(self, velocity: Velocity, x: Tensor, sigmas: Sequence[float]) -> Tensor:
        """One evaluation a step; see ``Sampler.sample``."""
        self.check(sigmas)
        for sigma, following in pairwise(sigmas):
            x = x + (following - sigma) * velocity(x, sigma)
        return x


SAMPLER = Euler
