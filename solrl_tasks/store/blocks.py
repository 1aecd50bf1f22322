"""Arrays filled block by block, each block with a ledger entry that says whether its values can be trusted."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Block:
    """One row (prompt) times one chunk of columns (candidates), and what it still lacks.

    ``start`` to ``stop`` are columns; a block is always computed whole. ``missing`` names the rewards that were
    asked for and are not done, ``images_missing`` says the same of images. ``images_kept`` and ``latents_kept``
    say that verified images or latents of the whole block are in the store. ``needs_sampling`` is false where
    what is missing can be computed from them without a forward pass of the model.
    """

    row: int
    index: int
    start: int
    stop: int
    missing: tuple[str, ...] = ()
    images_missing: bool = False
    images_kept: bool = False
    latents_kept: bool = False
    needs_sampling: bool = field(default=True)

    @property
    def columns(self) -> NDArray[np.int64]:
        """The columns of the block, [chunk]."""
        return np.arange(self.start, self.stop, dtype=np.int64)
