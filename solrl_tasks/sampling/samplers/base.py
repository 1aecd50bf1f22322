"""What a sampler is."""

from collections.abc import Callable, Sequence
from typing import ClassVar, Protocol

from torch import Tensor

Velocity = Callable[[Tensor, float], Tensor]
"""(x [B, ...], sigma) to v = eps - x0, [B, ...], both float32."""


class Sampler(Protocol):
    """A deterministic solver of dx / dsigma = v(x, sigma), from noise to data.

    To add one: a module in this package with a class like this and ``SAMPLER = <class>``; the module's name
    is the name in recipes. ``version`` is part of a pool's key: change it whenever a result changes. A sampler that
    some grids do not suit has a method ``check(sigmas)``, which raises a ValueError before a run begins.
    """

    name: ClassVar[str]
    version: ClassVar[str]

    def sample(self, velocity: Velocity, x: Tensor, sigmas: Sequence[float]) -> Tensor:
        """Walk ``x`` [B, ...] (float32, at level ``sigmas[0]``) along the grid: the clean latents [B, ...].

        Rows do not influence each other except through ``velocity``. Sigma is passed on as a float, never
        rounded.

        Raises:
            ValueError: the grid does not fall strictly to 0.
        """
        ...
