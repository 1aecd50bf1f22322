"""How far images are from each other, by vectors that stand for them."""

from itertools import combinations
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Metric = Literal["rms", "cosine"]
Floats = NDArray[np.float64]


def distances(one: NDArray[np.floating], other: NDArray[np.floating], metric: Metric) -> Floats:
    """Distance of each vector of ``one`` to that of ``other``, [..., D] each: [...].

    ``rms`` is the root of the mean squared difference, ``cosine`` 1 minus the cosine of the angle. NaN where a vector
    has a value that is not finite, and by cosine where one has no length.
    """
    a, b = np.asarray(one, dtype=np.float64), np.asarray(other, dtype=np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        if metric == "rms":
            return np.asarray(np.sqrt(np.square(a - b).mean(axis=-1)))
        lengths = np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1)
        # Rounding makes the cosine of equal vectors a little more than 1.
        return np.asarray(1.0 - np.clip((a * b).sum(axis=-1) / lengths, -1.0, 1.0))


def diversity(vectors: NDArray[np.floating], metric: Metric) -> Floats:
    """Mean distance over all pairs of a prompt's images, [P] of [P, N, D]; NaN where fewer than two can be seen."""
    pairs = list(combinations(range(vectors.shape[1]), 2))
    if not pairs:
        return np.full(len(vectors), np.nan)
    return _mean_of_finite(np.stack([distances(vectors[:, i], vectors[:, j], metric) for i, j in pairs], axis=1))


def paired_distance(after: NDArray[np.floating], before: NDArray[np.floating], metric: Metric) -> Floats:
    """Mean distance between a prompt's images and those at the same seeds before, [P] of [P, N, D] each."""
    return _mean_of_finite(distances(after, before, metric))


def _mean_of_finite(values: Floats) -> Floats:
    finite = np.isfinite(values)
    count = finite.sum(axis=1)
    total = np.where(finite, values, 0.0).sum(axis=1)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)
