"""Scenes to pixels: anti-aliased flat shapes on white or black, batched, the same bits for the same input."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from solrl_tasks.scenes.grammar import COLOURS, SHAPES, parse
from solrl_tasks.scenes.layout import CANVAS, SLOTS, Scenes, arrange, captions_of
from solrl_tasks.scenes.shapes import distance

_CHUNK = 2048


def render(scenes: Scenes, size: int = 64) -> Tensor:
    """Draw the scenes, uint8 [B, size, size, 3], on the device of the scenes.

    Raises ValueError for a size that is not positive.
    """
    if size <= 0:
        raise ValueError(f"an image needs a positive size, not {size}")
    count = scenes.thing.shape[0]
    chunk = _CHUNK if scenes.thing.is_cuda else 64
    parts = [_render(_rows(scenes, start, start + chunk), size) for start in range(0, count, chunk)]
    return torch.cat(parts) if parts else torch.zeros((0, size, size, 3), dtype=torch.uint8, device=scenes.thing.device)


def _rows(scenes: Scenes, start: int, stop: int) -> Scenes:
    part = slice(start, stop)
    return Scenes(scenes.thing[part], scenes.centre[part], scenes.radius[part], scenes.black[part])


def _render(scenes: Scenes, size: int) -> Tensor:
    device = scenes.thing.device
    pixel = CANVAS / size
    axis = (torch.arange(size, device=device, dtype=torch.float32) + 0.5) * pixel
    palette = torch.tensor(list(COLOURS.values()), device=device, dtype=torch.float32)
    ground = torch.where(scenes.black, 0.0, 255.0)[:, None, None, None]
    image = ground.expand(-1, size, size, 3)
    for slot in range(SLOTS):
        thing, radius = scenes.thing[:, slot], scenes.radius[:, slot, None, None]
        x = (axis[None, None, :] - scenes.centre[:, slot, 0, None, None]) / radius
        y = (axis[None, :, None] - scenes.centre[:, slot, 1, None, None]) / radius
        shape = thing.clamp(min=0) % len(SHAPES)
        cover = (0.5 - distance(shape[:, None, None], x, y) * radius / pixel).clamp(0, 1)
        cover = torch.where((thing >= 0)[:, None, None], cover, torch.zeros_like(cover))[..., None]
        colour = palette[thing.clamp(min=0) // len(SHAPES)][:, None, None, :]
        image = image + (colour - image) * cover
    return image.round().to(torch.uint8)


def draw_prompts(prompts: Sequence[str], seed: int, size: int = 64) -> Tensor:
    """One true picture of every prompt, uint8 [B, size, size, 3] on the CPU; the same seed gives the same pictures.

    Raises ValueError for a prompt that the grammar cannot read.
    """
    generator = torch.Generator().manual_seed(seed)
    return render(arrange(captions_of([parse(text) for text in prompts]), generator), size)
