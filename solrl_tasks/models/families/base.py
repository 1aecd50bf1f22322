"""What a model family is, and what every family speaks in."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import JsonValue
from torch import Tensor, nn

from solrl_tasks.config.recipe import ModelSpec
from solrl_tasks.models.scope import LayerScope


class FamilyError(ValueError):
    """A pipeline that the family cannot run as the recipe asks; the message names the field or file."""


@dataclass(frozen=True)
class Conditioning:
    """Encoded prompts: tensors whose first dimension is the prompt."""

    tensors: dict[str, Tensor]

    def take(self, rows: Sequence[int]) -> "Conditioning":
        """The prompts at ``rows``, which may repeat."""
        index = torch.tensor(rows, dtype=torch.long)
        return Conditioning({name: t.index_select(0, index.to(t.device)) for name, t in self.tensors.items()})

    def to(self, device: torch.device | None = None, dtype: torch.dtype | None = None) -> "Conditioning":
        """The same values on another device or in another precision."""
        return Conditioning({name: tensor.to(device, dtype) for name, tensor in self.tensors.items()})

    @classmethod
    def concatenate(cls, parts: Sequence["Conditioning"]) -> "Conditioning":
        """One row after another; the parts come from the same family."""
        return cls({name: torch.cat([part.tensors[name] for part in parts]) for name in parts[0].tensors})

    def __len__(self) -> int:
        """Number of prompts."""
        return len(next(iter(self.tensors.values())))


@dataclass(frozen=True)
class Decoded:
    """Images of a batch.

    Attributes:
        images: uint8 [B, H, W, 3]; black where not finite.
        finite: bool [B]; False where a latent or a pixel is NaN or infinite.
    """

    images: NDArray[np.uint8]
    finite: NDArray[np.bool_]


class Family(Protocol):
    """A loaded text-to-image pipeline of one architecture, reduced to what alignment needs.

    To add one: a module in this package with a class like this and ``FAMILY = <class>``; the module's name is
    the name in recipes. Times run from 1 (noise) to 0 (data), x_t = (1 - t) x0 + t eps, and the velocity is
    eps - x0.

    Attributes:
        spec: the recipe's model section.
        device: where everything lies.
        negative_prompt: what guidance leads away from; None without guidance.
        transformer: the base network, frozen, in evaluation mode; never changed.
        latent_shape: (C, H, W) of a latent.
        convolutions: regular expression of the paths of those of them that are 1x1 convolutions; "" is none.
        scope: the layers that a low-precision engine replaces.
        compute_dtype: what the transformer computes in.
    """

    name: ClassVar[str]
    version: ClassVar[str]
    convolutions: ClassVar[str]

    spec: ModelSpec
    device: torch.device
    negative_prompt: str | None
    transformer: nn.Module
    latent_shape: tuple[int, ...]
    scope: LayerScope
    compute_dtype: torch.dtype

    @classmethod
    def load(cls, spec: ModelSpec, device: torch.device) -> Self:
        """Load the pipeline.

        Raises:
            SourceError: it is absent, incomplete or not reachable.
            FamilyError: it is of another architecture, or does not fit the recipe.
        """
        ...

    @classmethod
    def numerics(cls, spec: ModelSpec, device_class: str) -> dict[str, str]:
        """Compute precision of ``text``, ``transformer`` and ``vae``, without loading anything."""
        ...

    @classmethod
    def latent_shape_of(cls, spec: ModelSpec) -> tuple[int, ...]:
        """(C, H, W) of a latent, from the pipeline's configuration files alone. Raises as ``load``."""
        ...

    @classmethod
    def grid_of(cls, spec: ModelSpec, steps: int) -> list[float]:
        """``sigmas`` of ``steps``, from the pipeline's configuration files alone. Raises as ``load``."""
        ...

    @classmethod
    def text_key(cls, spec: ModelSpec, device_class: str, cache_dir: Path | None = None) -> dict[str, JsonValue]:
        """All that decides how a text is encoded, besides the text; nothing is loaded.

        Args:
            cache_dir: where digests of files are remembered; None remembers them for this process only.

        Raises:
            SourceError: the source cannot be used.
        """
        ...

    def lora_targets(self, preset: str) -> tuple[str, ...]:
        """Dotted paths of the layers that a LoRA preset adapts.

        Raises:
            FamilyError: there is no such preset; the message lists them.
        """
        ...

    def encode(self, prompts: Sequence[str]) -> Conditioning:
        """Encode prompts, each by itself, so that its encoding does not depend on the others. float32.

        With guidance the negative prompt is in it too. Text encoders are loaded by the first call and stay until
        ``release_text``.
        """
        ...

    def encode_text(self, text: str, negative: bool = False) -> Conditioning:
        """One row, for one text alone; ``negative`` where it is encoded as a negative prompt. float32."""
        ...

    def release_text(self) -> None:
        """Let the text encoders leave the device, as ``spec.text_encoders`` says, until they are needed again."""
        ...

    def velocity(self, module: nn.Module, x: Tensor, sigma: float | Tensor, conditioning: Conditioning) -> Tensor:
        """The velocity that ``module`` (the transformer or a twin of it) predicts; gradients flow through.

        Args:
            x: float32 [B, C, H, W].
            sigma: one level for all rows, or float32 [B].
            conditioning: B rows.

        Returns:
            float32 [B, C, H, W].
        """
        ...

    def with_guidance(self, guidance: float, guidance_scale: float) -> Self:
        """The same networks under another guidance: what it encodes and predicts follows that one."""
        ...

    def at_resolution(self, resolution: int) -> Self:
        """The same networks for images of another side: latents, sigma grid and decoding are those of that size.

        Raises:
            FamilyError: the pipeline has no latents for it.
        """
        ...

    def sigmas(self, steps: int) -> list[float]:
        """The family's grid of ``steps`` + 1 noise levels, from 1 to 0."""
        ...

    def decode(self, x0: Tensor) -> Decoded:
        """Images of clean latents, float32 [B, C, H, W]."""
        ...

    def pixels(self, x0: Tensor) -> Tensor:
        """Pixels of clean latents [B, C, H, W], float32 [B, 3, H, W], mostly in [-1, 1]; gradients flow through."""
        ...

    def memory(self) -> dict[str, int]:
        """Bytes on the device of ``transformer``, ``vae`` and ``text``."""
        ...


def quantise_pixels(pixels: Tensor, finite: Tensor) -> Decoded:
    """Images of pixel values in [-1, 1], rounded to 256 levels.

    Args:
        pixels: [B, 3, H, W]; values outside are clipped.
        finite: bool [B]: rows known to be invalid already are False.
    """
    finite = finite & pixels.isfinite().flatten(1).all(dim=1)
    levels = ((pixels / 2 + 0.5).clamp(0, 1) * 255).round()
    levels = torch.where(finite[:, None, None, None], levels, torch.zeros((), device=levels.device))
    images: NDArray[np.uint8] = levels.permute(0, 2, 3, 1).to(torch.uint8).cpu().numpy()
    return Decoded(np.ascontiguousarray(images), finite.cpu().numpy())
