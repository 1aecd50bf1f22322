"""What a selection rule is."""

from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray


class SelectionRule(Protocol):
    """Picks the kept candidates of one prompt."""

    name: ClassVar[str]
    version: ClassVar[str]

    def select(self, scores: NDArray[np.float64], keep: int, seeds: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The kept candidates, best first.

        Args:
            scores: ``[N]``, higher is better; a non-finite score marks an invalid candidate, never picked.
            keep: how many are kept, at least 1.
            seeds: ``[N]`` distinct candidate seeds; they decide between equal scores.

        Returns:
            ``[keep]`` distinct candidate indices.

        Raises:
            ValueError: fewer than ``keep`` scores are finite, or the shapes differ.
        """
        ...
