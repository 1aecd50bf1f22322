"""Pixels as vision towers take them: resized, cut or padded to a square, normalised.

Only PIL and torch: what torchvision would do is done here, to the same values.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any, Final

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import interpolate, pad

from solrl_tasks.rewards.base import Images

Preprocess = Callable[[Images, int], Tensor]
"""From images uint8 ``[B, H, W, 3]`` and a side S to float32 ``[B, 3, S, S]``."""

CLIP_MEAN: Final = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD: Final = (0.26862954, 0.26130258, 0.27577711)
"""Of the training images of CLIP, RGB in [0, 1]; taken over by all models here."""


def resize_and_crop(images: Images, side: int) -> Tensor:
    """The shorter side to ``side`` by PIL's bicubic filter on 8-bit pixels, then the middle square.

    As in the preprocessing of OpenAI's CLIP: the longer side is cut down to a whole number, and of a margin that is odd
    the half goes to the even number, as Python rounds.

    Args:
        images: uint8 ``[B, H, W, 3]``.
        side: S, in pixels.

    Returns:
        float32 ``[B, 3, S, S]``, normalised.
    """
    return normalise(np.stack(_each(images, partial(_cropped, side=side))))


def resize_and_pad(images: Images, side: int) -> Tensor:
    """The longer side to ``side`` by an antialiased bicubic filter in float32, the rest black.

    As HPSv2 does on tensors: nothing is rounded or clamped in between, and black is put around before normalising.

    Args:
        images: uint8 ``[B, H, W, 3]``.
        side: S, in pixels.

    Returns:
        float32 ``[B, 3, S, S]``, normalised.
    """
    height, width = images.shape[1:3]
    scale = side / max(height, width)
    size = (max(1, round(height * scale)), max(1, round(width * scale)))
    return torch.stack(_each(images, partial(_padded, size=size, side=side)))


ENLARGING: Final = "bicubic-v1"
"""Names what ``enlarge`` does; it is part of the key of a pool whose images are enlarged before they are scored."""


def enlarge(images: Images, side: int) -> Images:
    """Square images at another size, by PIL's bicubic filter on 8-bit pixels; of that size already, as they are.

    Args:
        images: uint8 ``[B, H, H, 3]``.
        side: S, in pixels.

    Returns:
        uint8 ``[B, S, S, 3]``.
    """
    if images.shape[1:3] == (side, side) or not len(images):
        return images
    return np.stack(_each(images, partial(_resized, side=side)))


def _resized(image: Images, side: int) -> Images:
    return np.asarray(Image.fromarray(image).resize((side, side), Image.Resampling.BICUBIC))


def normalise(images: Images) -> Tensor:
    """uint8 ``[B, S, S, 3]`` to float32 ``[B, 3, S, S]`` with CLIP's mean and deviation."""
    return _standardised(torch.from_numpy(images).permute(0, 3, 1, 2).float().div(255))


def _each(images: Images, work: Callable[[Images], Any]) -> list[Any]:
    """One result an image, each computed alone; several at a time, as PIL and torch let other threads run meanwhile."""
    return [work(image) for image in images] if len(images) < 2 else list(_pool().map(work, images))


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(8, os.cpu_count() or 1), thread_name_prefix="pixels")


os.register_at_fork(after_in_child=_pool.cache_clear)


def _standardised(pixels: Tensor) -> Tensor:
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (CLIP_MEAN, CLIP_STD))
    return pixels.sub(mean).div(std)


def _cropped(image: Images, side: int) -> Images:
    height, width = image.shape[:2]
    shorter = min(height, width)
    size = (int(side * width / shorter), int(side * height / shorter))
    picture = Image.fromarray(image)
    if size != (width, height):
        picture = picture.resize(size, Image.Resampling.BICUBIC)
    left, top = (round((length - side) / 2) for length in size)
    return np.asarray(picture.crop((left, top, left + side, top + side)))


def _padded(image: Images, size: tuple[int, int], side: int) -> Tensor:
    pixels = torch.from_numpy(image).permute(2, 0, 1).float().div(255)
    if size != tuple(pixels.shape[1:]):
        pixels = interpolate(pixels[None], size=size, mode="bicubic", align_corners=False, antialias=True)[0]
    above, left = (side - size[0]) // 2, (side - size[1]) // 2
    around = (left, side - size[1] - left, above, side - size[0] - above)
    return _standardised(pad(pixels, around))
