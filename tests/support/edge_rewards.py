"""Rewards that misbehave, each in one way. Prompt "… thing 0" is where a whole group is affected."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

Metadata = Sequence[Mapping[str, Any]]


def brightness(image: np.ndarray) -> float:
    """Mean of all pixels, 0 to 1."""
    return float(image.mean()) / 255.0


def odd(image: np.ndarray) -> bool:
    """True for about half of all images, by content."""
    return bool(int(image.astype(np.int64).sum()) % 2)


def not_a_number(images: np.ndarray, prompts: Sequence[str], metadata: Metadata) -> list[float]:
    """NaN for about a quarter of the images."""
    return [float("nan") if int(i.astype(np.int64).sum()) % 4 == 0 else brightness(i) for i in images]


def infinite(images: np.ndarray, prompts: Sequence[str], metadata: Metadata) -> list[float]:
    """Plus or minus infinity for about a quarter of the images."""
    odd_ones = {0: float("inf"), 4: float("-inf")}
    return [odd_ones.get(int(i.astype(np.int64).sum()) % 8, brightness(i)) for i in images]


def raising(images: np.ndarray, prompts: Sequence[str], metadata: Metadata) -> list[float]:
    """An exception whenever the batch holds one of about a quarter of the images."""
    for image in images:
        if int(image.astype(np.int64).sum()) % 4 == 0:
            raise ArithmeticError("this image cannot be scored")
    return [brightness(image) for image in images]


def too_short(images: np.ndarray, prompts: Sequence[str], metadata: Metadata) -> list[float]:
    """One score fewer than images."""
    return [brightness(image) for image in images][1:]


def flat_group(images: np.ndarray, prompts: Sequence[str], metadata: Metadata) -> list[float]:
    """The same for every image of thing 0."""
    return [0.5 if text.endswith("thing 0") else brightness(image) for image, text in zip(images, prompts, strict=True)]


def blind_group(images: np.ndarray, prompts: Sequence[str], metadata: Metadata) -> list[float]:
    """Never a number for thing 0."""
    return [
        float("nan") if text.endswith("thing 0") else brightness(image)
        for image, text in zip(images, prompts, strict=True)
    ]


def binary(images: np.ndarray, prompts: Sequence[str], metadata: Metadata) -> list[float]:
    """0 or 1, so that most candidates tie."""
    return [float(odd(image)) for image in images]
