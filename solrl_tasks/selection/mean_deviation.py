"""The seeds farthest from their group's mean, whichever side they are on."""

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from solrl_tasks.selection.order import best_first, require, scramble


class MeanDeviation:
    """The kept seeds are those with the largest absolute advantage, ``|score - mean of the group|``.

    The mean is over finite scores. A skewed group gives more seeds of its long end than of the other, where
    ``best_worst`` takes as many of both; a group that is symmetric gives both rules the same.
    """

    name: ClassVar[str] = "mean_deviation"
    version: ClassVar[str] = "1"

    def select(self, scores: NDArray[np.float64], keep: int, seeds: NDArray[np.uint64]) -> NDArray[np.int64]:
        """See ``SelectionRule.select``."""
        order = best_first(scores, seeds)
        require(len(order), keep)
        found = scores[order]
        far = np.lexsort((scramble(seeds[order]), -np.abs(found - found.mean())))
        return order[np.sort(far[:keep])]


RULE = MeanDeviation
