"""How bright an image is: the smallest differentiable reward, and a template for one's own."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import JsonValue
from torch import Tensor

LUMA = (0.2126, 0.7152, 0.0722)
"""Weights of red, green and blue, ITU-R BT.709."""


class Brightness:
    """Mean luma of the encoded pixels, 0 (black) to 1 (white)."""

    name: ClassVar[str] = "brightness"
    version: ClassVar[str] = "1"
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)

    def __call__(
        self, images: NDArray[np.uint8], prompts: Sequence[str], metadata: Sequence[Mapping[str, JsonValue]]
    ) -> list[float]:
        """One score an image of uint8 ``[B, H, W, 3]``."""
        pixels = torch.from_numpy(images).permute(0, 3, 1, 2).double() / 255
        return [float(score) for score in self.differentiable(pixels, prompts, metadata)]

    def differentiable(
        self,
        pixels: Tensor,
        prompts: Sequence[str],  # noqa: ARG002
        metadata: Sequence[Mapping[str, JsonValue]],  # noqa: ARG002
    ) -> Tensor:
        """The same of pixels in 0 to 1, ``[B, 3, H, W]``: scores ``[B]`` through which gradients flow."""
        weights = torch.tensor(LUMA, dtype=pixels.dtype, device=pixels.device)
        return (pixels.mean(dim=(2, 3)) * weights).sum(dim=1)


REWARD = Brightness
