"""The two ends of a group: what Sol-RL keeps (arXiv 2604.06916)."""

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from solrl_tasks.selection.order import best_first, require


class BestWorst:
    """Half the kept seeds from the best end, half from the worst; an odd one goes to the best.

    Both ends come from one sort, so that a seed cannot stand at both even where every score ties.
    """

    name: ClassVar[str] = "best_worst"
    version: ClassVar[str] = "1"

    def select(self, scores: NDArray[np.float64], keep: int, seeds: NDArray[np.uint64]) -> NDArray[np.int64]:
        """See ``SelectionRule.select``."""
        order = best_first(scores, seeds)
        require(len(order), keep)
        worst = keep // 2
        return np.concatenate([order[: keep - worst], order[len(order) - worst :]])


RULE = BestWorst
