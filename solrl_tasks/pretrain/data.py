"""Training data: scenes as latents, and captions that are wrong now and then, as those of the web are.

A base that trusts noisy captions only in part never becomes perfect, however long it trains, and a seed comes out
right or wrong. That is the headroom which reinforcement learning is shown on.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from solrl_tasks.pretrain.tokenizers import MAX_TOKENS
from solrl_tasks.scenes.grammar import COLOURS, FORMS, HELDOUT_THINGS, RELATIONS, SHAPES, THINGS
from solrl_tasks.scenes.layout import CAPTIONS, Captions, arrange, draw_captions, prompt_at
from solrl_tasks.scenes.renderer import render

_FIRST_RELATION = FORMS.index(RELATIONS[0])


@dataclass(frozen=True)
class CaptionNoise:
    """How often each part of a caption is wrong (colour and shape: per object) or left out."""

    colour: float = 0.10
    shape: float = 0.15
    count: float = 0.25
    relation: float = 0.25
    second_missing: float = 0.12
    black_missing: float = 0.25


class Corrupter:
    """Applies `CaptionNoise` to whole batches on the device; a held-out pair is never written into a caption."""

    def __init__(self, noise: CaptionNoise, device: torch.device | str) -> None:
        self._noise = noise
        self._heldout = torch.tensor([thing in HELDOUT_THINGS for thing in THINGS], device=device)
        self._miscount = _form_map({"count two": "count three", "count three": "count two", "mixed": "two"}, device)
        drops = {"two": "single", "mixed": "count two", **dict.fromkeys(RELATIONS, "single")}
        self._dropped = _form_map(drops, device)
        self._two = torch.tensor([form in drops for form in FORMS], device=device)

    def __call__(self, captions: Captions) -> Captions:
        """The captions with fresh errors; draws from the global generator of the device."""
        noise, form = self._noise, captions.form
        first, second = self._mistake(captions.first), self._mistake(captions.second)
        form = torch.where(_chance(form, noise.count), self._miscount[form], form)
        turned = _FIRST_RELATION + (form - _FIRST_RELATION + torch.randint_like(form, 1, 4)) % len(RELATIONS)
        positioned = (form >= _FIRST_RELATION) & (form < _FIRST_RELATION + len(RELATIONS))
        form = torch.where(positioned & _chance(form, noise.relation), turned, form)
        form = torch.where(_chance(form, noise.second_missing), self._dropped[form], form)
        second = torch.where(self._two[form], second, torch.zeros_like(second))
        return Captions(form, first, second, captions.black & ~_chance(form, noise.black_missing))

    def _mistake(self, thing: Tensor) -> Tensor:
        colour, shape = thing // len(SHAPES), thing % len(SHAPES)
        other = (colour + torch.randint_like(colour, 1, len(COLOURS))) % len(COLOURS)
        colour = torch.where(_chance(colour, self._noise.colour), other, colour)
        other = (shape + torch.randint_like(shape, 1, len(SHAPES))) % len(SHAPES)
        shape = torch.where(_chance(shape, self._noise.shape), other, shape)
        changed = colour * len(SHAPES) + shape
        return torch.where(self._heldout[changed], thing, changed)


def _chance(like: Tensor, probability: float) -> Tensor:
    return torch.rand(like.shape, device=like.device) < probability


def _form_map(changes: dict[str, str], device: torch.device | str) -> Tensor:
    return torch.tensor([FORMS.index(changes.get(form, form)) for form in FORMS], device=device)


_TABLES: dict[str, Tensor] = {}


def token_table(tokenizer: Any) -> Tensor:
    """Token ids of every caption number, int64 [CAPTIONS, 16]: captions then cost nothing while training.

    Made once a process for tokenizers of one vocabulary.
    """
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    key = json.dumps({part: content[part] for part in sorted(content) if part not in ("padding", "truncation")})
    if key not in _TABLES:
        batch = tokenizer(list(_texts()), padding="max_length", max_length=MAX_TOKENS, return_tensors="pt")
        _TABLES[key] = batch.input_ids
    return _TABLES[key].clone()


@lru_cache(maxsize=1)
def _texts() -> tuple[str, ...]:
    return tuple(prompt_at(index).text for index in range(CAPTIONS))


def pack(latents: Tensor) -> Tensor:
    """Latents [B, C, H, W] as FLUX tokens of 2 x 2 cells, [B, H/2 * W/2, 4C]."""
    batch, channels, height, width = latents.shape
    cells = latents.reshape(batch, channels, height // 2, 2, width // 2, 2).permute(0, 2, 4, 1, 3, 5)
    return cells.reshape(batch, height * width // 4, channels * 4)


def unpack(tokens: Tensor) -> Tensor:
    """The reverse of `pack`, for square grids."""
    batch, count, width = tokens.shape
    side = int(count**0.5)
    cells = tokens.reshape(batch, side, side, width // 4, 2, 2).permute(0, 3, 1, 4, 2, 5)
    return cells.reshape(batch, width // 4, 2 * side, 2 * side)


def to_signal(images: Tensor) -> Tensor:
    """uint8 [B, H, W, 3] to float32 [B, 3, H, W] in -1..1."""
    return images.permute(0, 3, 1, 2).float() / 127.5 - 1.0


def to_images(signal: Tensor) -> Tensor:
    """The reverse of `to_signal`, clamped and rounded."""
    return ((signal.float() + 1.0) * 127.5).clamp(0, 255).round().to(torch.uint8).permute(0, 2, 3, 1)


def draw_images(count: int, size: int, generator: torch.Generator, chunk: int = 8192) -> tuple[Tensor, Captions]:
    """`count` scenes as uint8 images [B, size, size, 3] with their true captions, on the generator's device."""
    captions = draw_captions(count, generator)
    rows = torch.arange(count, device=generator.device)
    parts = [render(arrange(captions.pick(part), generator), size) for part in torch.split(rows, chunk)]
    return torch.cat(parts), captions


@dataclass(frozen=True)
class Latents:
    """Packed scaled latents [N, tokens, channels], their captions, and the noise they came from if known."""

    clean: Tensor
    captions: Captions
    noise: Tensor | None = None


@torch.no_grad()
def encode_scenes(
    vae: Any, count: int, size: int, generator: torch.Generator, say: Callable[[str], None] = print
) -> Latents:
    """Render `count` scenes and keep only their latents (posterior mean), chunk by chunk."""
    captions = draw_captions(count, generator)
    rows = torch.arange(count, device=generator.device)
    parts = []
    for part in torch.split(rows, 4096):
        images = render(arrange(captions.pick(part), generator), size)
        mean = vae.encode(to_signal(images)).latent_dist.mode()
        parts.append(pack((mean - vae.config.shift_factor) * vae.config.scaling_factor))
    say(f"{count} scenes as latents")
    return Latents(torch.cat(parts), captions)
