"""What a noisy step is."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar, Protocol

from solrl_tasks.config.extensions import find_extension
from solrl_tasks.config.stochastic import Stochastic


@dataclass(frozen=True)
class Affine:
    """A Gaussian transition, linear in what is known before it: ``N(x * state + v * velocity, std^2)``.

    Every step of a sampling path has this form; ``std`` 0 is a step without noise.
    """

    x: float
    v: float
    std: float


class SdeStep(Protocol):
    """From one noise level to the next, with fresh noise.

    To add one: a module in this package with a class like this and ``STEP = <class>``; the module's name is the name in
    recipes. ``version`` is part of the key of samples: change it whenever a result changes.
    """

    name: ClassVar[str]
    version: ClassVar[str]

    def transition(self, eta: float, t: float, following: float, sigmas: Sequence[float]) -> Affine:
        """The step from level t down to the following one.

        Args:
            eta: how much noise; 0 is a step along the velocity for every kind that depends on it.
            sigmas: the whole grid, from 1 to 0.
        """
        ...


def euler(t: float, following: float) -> Affine:
    """The step without noise: straight along the velocity."""
    return Affine(1.0, following - t, 0.0)


def transitions(noise: Stochastic, sigmas: Sequence[float]) -> list[Affine]:
    """The noisy transition of every step of a grid, whether or not noise is put there."""
    step: SdeStep = find_extension("sde step", noise.step)()
    return [step.transition(noise.eta, t, following, sigmas) for t, following in pairwise(sigmas)]
