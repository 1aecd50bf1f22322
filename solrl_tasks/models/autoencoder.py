"""From clean latents to images."""

import copy
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from solrl_tasks.config.recipe import ModelSpec
from solrl_tasks.models.families.base import Decoded, quantise_pixels
from solrl_tasks.models.twin import share

_PIXELS = 2**21
"""Pixels decoded at a time: two images of 1024 x 1024."""
_COMPILED_FROM = 256
"""Side in pixels below which compiling costs more than it saves."""
Execution = Literal["compiled", "eager"]


def decode_execution(spec: ModelSpec, device_class: str) -> Execution:
    """How images are decoded: compiled on accelerators, but for small images, unless the recipe says otherwise.

    Args:
        device_class: ``cpu``, or ``sm_90`` and the like.
    """
    if spec.vae_execution != "auto":
        return spec.vae_execution
    return "compiled" if device_class.startswith("sm_") and spec.resolution >= _COMPILED_FROM else "eager"


class Decoder:
    """An autoencoder of diffusers, decoding in a precision of its own.

    A row that comes out of a lower precision with a pixel that is not finite is decoded again in float32. Compiled, it
    is always given the same number of rows, so that one graph serves batches of every size.
    """

    def __init__(self, vae: Any, resolution: int, execution: Execution = "eager", backend: str = "inductor") -> None:
        """
        Args:
            vae: frozen; its dtype is what it computes in.
            resolution: side of an image in pixels.
            backend: of ``torch.compile``.
        """
        self.vae = vae
        self._rows = max(1, _PIXELS // resolution**2)
        self._compiled = execution == "compiled"
        self._backend = backend
        self._shift = vae.config.get("shift_factor") or 0.0

    @cached_property
    def _exact(self) -> Any:
        return copy.deepcopy(self.vae).float()

    @cached_property
    def _network(self) -> Any:
        """What decodes: the autoencoder, or a twin of it whose decoder is compiled; the autoencoder stays as it is."""
        if not self._compiled:
            return self.vae
        twin: Any = share(self.vae)
        twin.decoder.compile(fullgraph=True, dynamic=False, backend=self._backend)
        return twin

    def networks(self) -> list[Any]:
        """What it holds."""
        return [self.vae, *([self._exact] if "_exact" in self.__dict__ else [])]

    @torch.no_grad()
    def decode(self, x0: Tensor) -> Decoded:
        """Images of clean latents, [B, C, H, W]; black where a latent or a pixel is not finite."""
        finite = x0.isfinite().flatten(1).all(dim=1)
        clean = torch.where(finite[:, None, None, None], x0, torch.zeros((), device=x0.device))
        latents = clean.float() / self.vae.config.scaling_factor + self._shift
        pixels = self._run(self._network, latents, self._compiled)
        if self.vae.dtype != torch.float32:
            overflowed = ~pixels.isfinite().flatten(1).all(dim=1)
            if bool(overflowed.any()):
                pixels[overflowed] = self._run(self._exact, latents[overflowed])
        return quantise_pixels(pixels, finite)

    def pixels(self, x0: Tensor) -> Tensor:
        """Pixels of clean latents [B, C, H, W], float32 [B, 3, H, W], mostly in [-1, 1]; gradients flow through."""
        return self._run(self.vae, x0.float() / self.vae.config.scaling_factor + self._shift)

    def _run(self, vae: Any, latents: Tensor, whole: bool = False) -> Tensor:
        """Pixels, some rows at a time; ``whole`` fills the last part up with its last row."""
        parts = list(torch.split(latents.to(vae.dtype), self._rows))
        short = self._rows - len(parts[-1]) if whole and parts else 0
        if short:
            parts[-1] = torch.cat([parts[-1], parts[-1][-1:].expand(short, *latents.shape[1:])])
        pixels = torch.cat([vae.decode(part, return_dict=False)[0].float() for part in parts])
        return pixels[: len(latents)]
