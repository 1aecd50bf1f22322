"""One total order of a prompt's candidates."""

import numpy as np
from numpy.typing import NDArray

from solrl_tasks.config.words import counted


def scramble(seeds: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """A hash of each 64-bit seed (the SplitMix64 finaliser, Steele et al. 2014).

    It is a bijection, so that distinct seeds never collide.

    Args:
        seeds: any shape.
    """
    with np.errstate(over="ignore"):
        z = seeds.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def best_first(scores: NDArray[np.float64], seeds: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Finite candidates in order of falling score.

    Ties follow the hash of the seed: an order by index would favour low indices wherever rewards are 0 or 1.

    Args:
        scores: ``[N]``; candidates with a non-finite score are left out.
        seeds: ``[N]``.

    Returns:
        Indices of the finite candidates, at most N.

    Raises:
        ValueError: the two are not vectors of one length.
    """
    if scores.ndim != 1 or scores.shape != seeds.shape:
        raise ValueError(f"scores {scores.shape} and seeds {seeds.shape} must be vectors of one length")
    finite = np.flatnonzero(np.isfinite(scores))
    order = np.lexsort((scramble(seeds[finite]), -scores[finite]))
    return finite[order].astype(np.int64)


def require(found: int, keep: int) -> None:
    """Refuse to pick more candidates than there are.

    Raises:
        ValueError: ``keep`` is below 1 or above ``found``.
    """
    if not 1 <= keep <= found:
        raise ValueError(f"keep is {keep}, but the group has {counted(found, 'candidate')} with a finite score")
