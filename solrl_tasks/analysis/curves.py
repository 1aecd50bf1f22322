"""Held-out reward of an arm against what it cost, and what can be said of it without a baseline."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

Floats = NDArray[np.float64]

ROUNDING: Final = 1e-9
"""Of the range of a curve: what is less is no difference."""


@dataclass(frozen=True)
class Curves:
    """Held-out reward of one arm.

    Attributes:
        seeds: of training; runs of two arms with one seed are a pair.
        places: iterations of the evaluations, increasing, ``[E]``; the first is the untrained model's.
        rewards: ``[S, E]``, finite.
        costs: spent by each run up to each evaluation, ``[S, E]``, in any one unit; increasing.
        prompt_errors: standard errors of the rewards over prompts, ``[S, E]``, or None where they are not known.
    """

    seeds: tuple[int, ...]
    places: Floats
    rewards: Floats
    costs: Floats
    prompt_errors: Floats | None = None

    def __post_init__(self) -> None:
        shape = (len(self.seeds), len(self.places))
        given = {"rewards": self.rewards, "costs": self.costs, "prompt_errors": self.prompt_errors}
        for name, values in given.items():
            if values is not None and np.shape(values) != shape:
                raise ValueError(f"{name} is {np.shape(values)}, but seeds and places make {shape}")
        if len(set(self.seeds)) < len(self.seeds) or not all(shape):
            raise ValueError(f"curves need distinct seeds and places, found seeds {self.seeds}, {shape[1]} places")
        if np.any(np.diff(self.places) <= 0) or np.any(np.diff(self.costs, axis=1) <= 0):
            raise ValueError("places and costs must increase from one evaluation to the next")
        if not np.all(np.isfinite(self.rewards)):
            raise ValueError("rewards must be finite: leave out evaluations that a run does not have")

    def paired(self, other: "Curves") -> tuple["Curves", "Curves"]:
        """Both with the seeds alone that both have, in one order.

        Raises:
            ValueError: they share none.
        """
        common = [seed for seed in self.seeds if seed in other.seeds]
        if not common:
            raise ValueError(f"no pair of runs: one arm has seeds {self.seeds}, the other {other.seeds}")
        return self.take(common), other.take(common)

    def take(self, seeds: Sequence[int]) -> "Curves":
        """The runs of some seeds."""
        rows = [self.seeds.index(seed) for seed in seeds]
        errors = None if self.prompt_errors is None else self.prompt_errors[rows]
        return Curves(tuple(seeds), self.places, self.rewards[rows], self.costs[rows], errors)


def isotonic(values: Floats) -> Floats:
    """The rising curve that is nearest in squares, ``[..., E]``.

    A running maximum would take the luckiest measurement for progress; a mean over neighbours would come to a level
    before the curve does. A curve that falls after a peak is levelled over both: it reached what it holds.
    """
    flat = np.reshape(values, (-1, np.shape(values)[-1]))
    fitted = np.array([optimize.isotonic_regression(row).x for row in flat], dtype=np.float64)
    return fitted.reshape(np.shape(values))


def curve_noise(curves: Curves) -> Floats:
    """Standard error of the mean curve, ``[E]``; NaN with one seed.

    All seeds are evaluated on the same prompts, so that the error over prompts is not less for more seeds.
    """
    count = len(curves.seeds)
    if count < 2:
        return np.full(len(curves.places), np.nan)
    seeds: Floats = curves.rewards.std(axis=0, ddof=1) / math.sqrt(count)
    prompts = 0.0 if curves.prompt_errors is None else np.nan_to_num(curves.prompt_errors).mean(axis=0)
    noise: Floats = np.hypot(seeds, prompts)
    return noise
