"""Downsampled pixels: where colours are in an image. Cheap, deterministic, and blind to what is shown."""

from typing import Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import Field

from solrl_tasks.config.base import Frozen
from solrl_tasks.features.base import Metric


class PixelOptions(Frozen):
    """``side`` of the small square image, in pixels."""

    side: Annotated[int, Field(ge=1, le=256)] = 16


class Pixels:
    """Mean colours of ``side`` x ``side`` areas, 0 to 1. The distance is the root mean square difference, 0 to 1.

    Two images of one thing in two places are far apart, and two things of one colour in one place near: it tells that
    images vary, not that meanings do.
    """

    name: ClassVar[str] = "pixels"
    version: ClassVar[str] = "1"
    metric: ClassVar[Metric] = "rms"
    Options: ClassVar[type[Frozen]] = PixelOptions

    def __init__(self, options: PixelOptions) -> None:
        self._side = options.side

    def __call__(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        """float32 [B, side * side * 3] of uint8 images [B, H, W, 3]."""
        return np.stack([self._vector(image) for image in images])

    def _vector(self, image: NDArray[np.uint8]) -> NDArray[np.float32]:
        # Channel by channel in float: resizing 8-bit colours would round the means.
        planes = [Image.fromarray(np.ascontiguousarray(image[..., channel], dtype=np.float32)) for channel in range(3)]
        small = [np.asarray(plane.resize((self._side, self._side), Image.Resampling.BOX)) for plane in planes]
        return np.asarray(np.stack(small, axis=-1).reshape(-1) / 255, dtype=np.float32)


FEATURE = Pixels
