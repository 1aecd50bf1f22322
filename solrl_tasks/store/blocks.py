"""Blocks: what is computed, stored and marked as a whole."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from solrl_tasks.store.array_names import IMAGES, THUMBNAILS, feature_array, reward_array


@dataclass(frozen=True)
class Block:
    """One row (prompt) times one chunk of columns (candidates), and what it still lacks.

    ``start`` to ``stop`` are columns; a block is always computed whole. ``missing`` names the rewards that
    were asked for and are not done, ``features_missing`` the features; ``images_missing`` and
    ``thumbnails_missing`` say the same of pictures. ``needs_sampling`` is false where what is missing can be computed
    from verified images or latents of the whole block, which are in the store, without a forward pass of the model.
    """

    row: int
    index: int
    start: int
    stop: int
    missing: tuple[str, ...] = ()
    images_missing: bool = False
    needs_sampling: bool = True
    features_missing: tuple[str, ...] = ()
    thumbnails_missing: bool = False

    @property
    def columns(self) -> NDArray[np.int64]:
        """The columns of the block, [chunk]."""
        return np.arange(self.start, self.stop, dtype=np.int64)

    @property
    def lacks(self) -> frozenset[str]:
        """The arrays that it lacks of what was asked for."""
        rewards = {reward_array(name) for name in self.missing}
        features = {feature_array(name) for name in self.features_missing}
        pictures = {IMAGES: self.images_missing, THUMBNAILS: self.thumbnails_missing}
        return frozenset(rewards | features | {name for name, missing in pictures.items() if missing})
