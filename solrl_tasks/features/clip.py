"""What an image shows, by the image tower of CLIP."""

from collections.abc import Sequence
from typing import Any, ClassVar, Final

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import JsonValue
from torch import Tensor

from solrl_tasks.features.base import Metric
from solrl_tasks.rewards.architectures import CLIP
from solrl_tasks.rewards.clip_model import VIT_L, build_clip_vision, unit
from solrl_tasks.rewards.loading import Build
from solrl_tasks.rewards.model_reward import ModelReward, WeightOptions
from solrl_tasks.rewards.pixels import resize_and_crop

NOT_FOR_IMAGES: Final = (r"text_model\..+", r"text_projection\.weight", "logit_scale")


class _Tower(ModelReward):
    """Has the life of a reward with weights, and gives a vector where those give a number."""

    name = "clip"
    version = "1"
    range = (-1.0, 1.0)
    pinned = VIT_L
    architectures = CLIP
    preprocess = resize_and_crop

    def builder(self) -> tuple[Build, tuple[str, ...]]:
        """See ``ModelReward``."""
        return build_clip_vision, NOT_FOR_IMAGES

    def side(self, module: Any) -> int:
        """See ``ModelReward``."""
        return int(module.config.image_size)

    def score(self, module: Any, pixels: Tensor, prompts: Sequence[str]) -> Tensor:
        """Vectors [batch, D]."""
        del prompts
        return unit(module(pixel_values=pixels).image_embeds)


class Clip:
    """Embeddings of length one from CLIP ViT-L/14, or from another CLIP that ``source`` names; compared by cosine.

    Preprocessing and options are those of the reward ``clipscore``; the text tower is not loaded. A vector does not
    depend on the other images: blocks of ``batch`` are filled up by repeating the last one.
    """

    name: ClassVar[str] = "clip"
    version: ClassVar[str] = "1"
    metric: ClassVar[Metric] = "cosine"
    Options: ClassVar[type[WeightOptions]] = WeightOptions

    def __init__(self, options: WeightOptions, device: torch.device) -> None:
        self._tower = _Tower(options, device)

    @classmethod
    def identity(cls, options: WeightOptions) -> dict[str, JsonValue]:
        """What of the options decides vectors."""
        return _Tower.identity(options)

    def __call__(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        """float32 [B, D] of uint8 [B, H, W, 3]."""
        return np.asarray(self._tower(images, [""] * len(images)), dtype=np.float32)

    def load(self) -> None:
        """Have the weights on the device."""
        self._tower.load()

    def unload(self) -> None:
        """Give their memory back."""
        self._tower.unload()

    def memory(self) -> int:
        """Bytes of the weights on the device."""
        return self._tower.memory()


FEATURE = Clip
