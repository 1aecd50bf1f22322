"""Small pictures of candidates, for people to look at."""

from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from solrl_tasks.config.recipe import Keep

SIDE: Final = 128
"""Longer side of a thumbnail in pixels: that of a picture in a grid."""


def resolved(keep: Keep, resolution: int) -> Keep:
    """What is really kept of square images: those that are no larger than a thumbnail are kept as they are."""
    return "lossless" if keep == "thumbnails" and resolution <= SIDE else keep


def make_thumbnails(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Mean colours of equal areas, uint8 [B, h, w, 3], of uint8 [B, H, W, 3]."""
    height, width = images.shape[1:3]
    scale = SIDE / max(height, width)
    size = max(1, round(width * scale)), max(1, round(height * scale))
    return np.stack([np.asarray(Image.fromarray(image).resize(size, Image.Resampling.BOX)) for image in images])
