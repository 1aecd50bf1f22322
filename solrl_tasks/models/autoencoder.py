"""From clean latents to images."""

import copy
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from solrl_tasks.models.families.base import Decoded, quantise_pixels

_PIXELS = 2**22
"""Pixels decoded at a time: four images of 1024 x 1024."""


class Decoder:
    """An autoencoder of diffusers, decoding in a precision of its own.

    A row that comes out of a lower precision with a pixel that is not finite is decoded again in float32.
    """

    def __init__(self, vae: Any, resolution: int) -> None:
        """
        Args:
            vae: frozen; its dtype is what it computes in.
            resolution: side of an image in pixels.
        """
        self.vae = vae
        self._rows = max(1, _PIXELS // resolution**2)
        self._shift = vae.config.get("shift_factor") or 0.0

    @cached_property
    def _exact(self) -> Any:
        return copy.deepcopy(self.vae).float()

    def networks(self) -> list[Any]:
        """What it holds."""
        return [self.vae, *([self._exact] if "_exact" in self.__dict__ else [])]

    @torch.no_grad()
    def decode(self, x0: Tensor) -> Decoded:
        """Images of clean latents, [B, C, H, W]; black where a latent or a pixel is not finite."""
        finite = x0.isfinite().flatten(1).all(dim=1)
        clean = torch.where(finite[:, None, None, None], x0, torch.zeros((), device=x0.device))
        latents = clean.float() / self.vae.config.scaling_factor + self._shift
        pixels = self._run(self.vae, latents)
        if self.vae.dtype != torch.float32:
            overflowed = ~pixels.isfinite().flatten(1).all(dim=1)
            if bool(overflowed.any()):
                pixels[overflowed] = self._run(self._exact, latents[overflowed])
        return quantise_pixels(pixels, finite)

    def _run(self, vae: Any, latents: Tensor) -> Tensor:
        parts = torch.split(latents.to(vae.dtype), self._rows)
        return torch.cat([vae.decode(part, return_dict=False)[0].float() for part in parts])
