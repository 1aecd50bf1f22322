"""How colourful an image looks: a reward with no model behind it, and a template for one's own."""

import math
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue


class Colourfulness:
    """The measure M3 of Hasler and Süsstrunk (2003), in units of the full 8-bit scale; grey images score
    0."""

    name: ClassVar[str] = "colourfulness"
    version: ClassVar[str] = "1"
    range: ClassVar[tuple[float, float]] = (0.0, math.sqrt(1.25 * 1.09))

    def __call__(
        self,
        images: NDArray[np.uint8],
        prompts: Sequence[str],  # noqa: ARG002
        metadata: Sequence[Mapping[str, JsonValue]],  # noqa: ARG002
    ) -> list[float]:
        """One score an image of uint8 ``[B, H, W, 3]``."""
        return [_measure(image.astype(np.float64) / 255) for image in images]


def _measure(image: NDArray[np.float64]) -> float:
    red, green, blue = np.moveaxis(image, -1, 0)
    opponents = np.stack([red - green, (red + green) / 2 - blue]).reshape(2, -1)
    spread, mean = opponents.std(axis=1), opponents.mean(axis=1)
    return float(np.hypot(*spread) + 0.3 * np.hypot(*mean))


REWARD = Colourfulness
