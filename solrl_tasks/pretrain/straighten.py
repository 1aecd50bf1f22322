"""The straightening stage: teach the base its own noise-to-picture map, along straight lines (arXiv 2209.03003, §2.2).

A flow trained on independent noise bends where it decides what to draw, so few steps and many steps disagree on which
seeds are good. Trained once more on pairs of noise and the picture that it makes of that noise, it keeps its map, its
errors and its spread, and needs fewer steps to follow it. The price: every picture is tied to one noise, so objectives
that noise a picture afresh, as NFT does, work against it. The shipped model is therefore not straightened.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor

from solrl_tasks.pretrain.base import VelocityModel
from solrl_tasks.pretrain.curves import sigmas
from solrl_tasks.pretrain.data import Latents
from solrl_tasks.scenes.layout import draw_captions


@torch.no_grad()
def heun(model: VelocityModel, captions: Tensor, noise: Tensor, grid: Tensor) -> Tensor:
    """Integrate with Heun's second-order rule; the last step, to 0, is an Euler step. Arguments as `curves.euler`."""
    tokens, pooled = model.encode(captions)
    x = noise
    for now, then in pairwise(grid.tolist()):
        first = model.velocity(x, torch.full((len(x),), now, device=x.device), tokens, pooled)
        ahead = x + (then - now) * first
        if then > 0:
            second = model.velocity(ahead, torch.full((len(x),), then, device=x.device), tokens, pooled)
            ahead = x + 0.5 * (then - now) * (first + second)
        x = ahead
    return x


@torch.no_grad()
def make_pairs(
    model: VelocityModel, count: int, steps: int, batch: int, seed: int, say: Callable[[str], None] = print
) -> Latents:
    """`count` pairs (rounded up to whole batches) of noise and the latents that the model makes of it.

    The captions are those of pretraining: no held-out pair is named, and they are not corrupted.
    """
    generator = torch.Generator(model.device).manual_seed(seed)
    channels = int(model.transformer.config.in_channels)
    captions = draw_captions(-(-count // batch) * batch, generator)
    grid = sigmas(steps)
    clean, noise = [], []
    for part in torch.split(captions.index(), batch):
        start = torch.randn(batch, model.side**2, channels, generator=generator, device=model.device)
        clean.append(heun(model, part, start, grid))
        noise.append(start)
    say(f"{len(captions)} pairs made")
    return Latents(torch.cat(clean), captions, torch.cat(noise))
