"""One score from several rewards."""

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray


def weighted_scores(rewards: Mapping[str, NDArray[np.floating]], weights: Mapping[str, float]) -> NDArray[np.float64]:
    """The weighted sum of raw rewards; it does not depend on the order in which rewards are named.

    Args:
        rewards: arrays of one shape, such as ``[P, N]``, by reward name; non-finite where invalid.
        weights: by the same names. A reward of weight 0 is watched, not used: its invalid values do no harm.

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
        values = rewards[name].astype(np.float64)
        finite = np.isfinite(values)
        valid &= finite
        total += weights[name] * np.where(finite, values, 0.0)
    return np.where(valid, total, np.nan)
