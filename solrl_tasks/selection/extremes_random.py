"""Half of the kept seeds from the two ends of a group, the rest by lot from between."""

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from solrl_tasks.selection.order import best_first, require, scramble


class ExtremesRandom:
    """Half the kept seeds as ``best_worst`` would keep them, the other half by the hash of the seed from what is left.

    An odd seed goes to the ends, and an odd one of those to the best. The middle of the group is in what is trained on,
    so that it is not made of extremes alone.
    """

    name: ClassVar[str] = "extremes_random"
    version: ClassVar[str] = "1"

    def select(self, scores: NDArray[np.float64], keep: int, seeds: NDArray[np.uint64]) -> NDArray[np.int64]:
        """See ``SelectionRule.select``."""
        order = best_first(scores, seeds)
        require(len(order), keep)
        by_lot = keep // 2
        worst = (keep - by_lot) // 2
        best = keep - by_lot - worst
        places = np.arange(len(order))
        between = places[best : len(order) - worst]
        drawn = between[np.argsort(scramble(seeds[order[between]]), kind="stable")[:by_lot]]
        kept: NDArray[np.int64] = order[np.sort(np.concatenate([places[:best], drawn, places[len(order) - worst :]]))]
        return kept


RULE = ExtremesRandom
