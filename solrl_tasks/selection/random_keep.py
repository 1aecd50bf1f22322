"""Seeds kept at random: the control that any use of scores must beat."""

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from solrl_tasks.selection.order import best_first, require, scramble


class RandomKeep:
    """The valid seeds whose hashes are smallest, whatever their scores; scores only order the result."""

    name: ClassVar[str] = "random_keep"
    version: ClassVar[str] = "1"

    def select(self, scores: NDArray[np.float64], keep: int, seeds: NDArray[np.uint64]) -> NDArray[np.int64]:
        """See ``SelectionRule.select``."""
        order = best_first(scores, seeds)
        require(len(order), keep)
        place = np.argsort(scramble(seeds[order]), kind="stable")
        return order[np.sort(place[:keep])]


RULE = RandomKeep
