"""Rewards of a user's own, as tests need them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch


def darkness(images: np.ndarray, prompts: Sequence[str], metadata: Sequence[Mapping[str, Any]]) -> list[float]:
    """One minus the mean brightness."""
    return [1.0 - float(image.mean()) / 255.0 for image in images]


def constant(images: np.ndarray, prompts: Sequence[str], metadata: Sequence[Mapping[str, Any]]) -> list[float]:
    """The same for everything."""
    return [0.5] * len(images)


def broken(images: np.ndarray, prompts: Sequence[str], metadata: Sequence[Mapping[str, Any]]) -> list[float]:
    """Never a number."""
    return [float("nan")] * len(images)


def flaky(images: np.ndarray, prompts: Sequence[str], metadata: Sequence[Mapping[str, Any]]) -> list[float]:
    """Infinite for the darker half of the images, brightness for the rest."""
    values = images.reshape(len(images), -1).mean(axis=1) / 255.0
    return [float("inf") if value < np.median(values) else float(value) for value in values]


def darkness_in_thousands(
    images: np.ndarray, prompts: Sequence[str], metadata: Sequence[Mapping[str, Any]]
) -> list[float]:
    """Darkness in another unit, from another zero."""
    return [1000.0 * value - 7.0 for value in darkness(images, prompts, metadata)]


def number(images: np.ndarray, prompts: Sequence[str], metadata: Sequence[Mapping[str, Any]]) -> list[float]:
    """The number that stands beside the prompt."""
    return [float(item["n"]) for item in metadata]


class DeviceDarkness:
    """Darkness, computed where it is told to."""

    version = "1"

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def __call__(
        self, images: np.ndarray, prompts: Sequence[str], metadata: Sequence[Mapping[str, Any]]
    ) -> list[float]:
        """One minus the mean brightness, in integers: the same on every device."""
        bright = torch.from_numpy(images).to(self._device).flatten(1).long().sum(dim=1)
        return [1.0 - value / images[0].size / 255.0 for value in bright.tolist()]
