"""One score from several rewards, each on a scale of its own or on a common one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Over = Literal["group", "pool"]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Scale:
    """How raw rewards of P prompts become comparable with others: ``(reward - centre) / spread``, prompt by prompt.

    Attributes:
        centre: [P].
        spread: [P]; 0 where the reward does not vary, and then says nothing.
    """

    centre: Floats
    spread: Floats

    def take(self, rows: Sequence[int]) -> "Scale":
        """The scale of some prompts."""
        return Scale(self.centre[list(rows)], self.spread[list(rows)])

    def apply(self, rewards: NDArray[np.floating]) -> Floats:
        """Standardised rewards, [P, N]: 0 where there is no spread, non-finite where the reward is not finite."""
        values = rewards.astype(np.float64)
        flat = self.spread[:, None] == 0
        scaled = (values - self.centre[:, None]) / np.where(flat, 1.0, self.spread[:, None])
        return np.where(flat & np.isfinite(values), 0.0, scaled)


def measure_scale(rewards: NDArray[np.floating], over: Over) -> Scale:
    """Mean and population standard deviation of finite rewards, [P, N].

    Args:
        over: ``group`` measures every prompt by itself, ``pool`` all prompts together.

    Where the finite rewards are all equal, or there are none, the spread is 0: a tiny one that rounding makes of equal
    numbers would blow noise up.
    """
    values = rewards.astype(np.float64)
    if over == "group":
        measured = [_centre_and_spread(row) for row in values]
    else:
        measured = [_centre_and_spread(values)] * len(values)
    centre, spread = np.array(measured, dtype=np.float64).reshape(-1, 2).T
    return Scale(centre, spread)


def weighted_scores(
    rewards: Mapping[str, NDArray[np.floating]],
    weights: Mapping[str, float],
    scales: Mapping[str, Scale] | None = None,
) -> Floats:
    """The weighted sum of rewards; it does not depend on the order in which rewards are named.

    Args:
        rewards: arrays of one shape, such as ``[P, N]``, by reward name; non-finite where invalid.
        weights: by the same names. A reward of weight 0 is watched, not used: its invalid values do no harm.
        scales: what some of the rewards are put on before the sum; the others enter raw.

    Returns:
        float64 of that shape, NaN where any reward in use is not finite.

    Raises:
        ValueError: names differ, shapes differ, or no weight differs from 0.
    """
    if set(rewards) != set(weights):
        raise ValueError(f"rewards {sorted(rewards)} and weights {sorted(weights)} must have the same names")
    used = sorted(name for name, weight in weights.items() if weight != 0)
    if not used:
        raise ValueError(f"every weight of {sorted(weights)} is 0: at least one reward must count")
    shapes = {name: rewards[name].shape for name in used}
    if len(set(shapes.values())) > 1:
        raise ValueError(f"rewards must have one shape, found {shapes}")
    total = np.zeros(next(iter(shapes.values())))
    valid = np.ones(total.shape, dtype=np.bool_)
    for name in used:
        finite = np.isfinite(rewards[name])
        valid &= finite
        values = np.where(finite, rewards[name].astype(np.float64), 0.0)
        scaled = scales[name].apply(values) if scales is not None and name in scales else values
        total += weights[name] * np.where(finite, scaled, 0.0)
    return np.where(valid, total, np.nan)


def _centre_and_spread(values: Floats) -> tuple[float, float]:
    finite = values[np.isfinite(values)]
    if not len(finite):
        return 0.0, 0.0
    return float(finite.mean()), 0.0 if finite.min() == finite.max() else float(finite.std())
