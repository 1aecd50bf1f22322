"""FLUX.1 and every pipeline built like it (diffusers' FluxPipeline).

FLUX.1-dev and -schnell, and the tiny embedded model, load through the same code. What differs between them,
the guidance embedding, the shift of the sigma grid by resolution and the latent scaling, is read from their
configuration.
"""

from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from solrl_tasks.models.families.base import Conditioning
from solrl_tasks.models.families.pipeline import PipelineFamily
from solrl_tasks.models.scope import LayerScope

PATCH = 2
"""Latent cells along each side of an image token."""

SCOPE = LayerScope(
    include=(r"transformer_blocks\..*", r"single_transformer_blocks\..*"),
    skip=(
        (r".*norm.*", "adaptive layer norm: few rows, sensitive"),
        (r"(x_embedder|context_embedder|time_text_embed\..*)", "embedder"),
        (r"proj_out", "final projection"),
    ),
)


class Flux(PipelineFamily):
    """See ``Family``. Guidance above 1 is true guidance, beside the embedded one of FLUX.1-dev."""

    name: ClassVar[str] = "flux"
    version: ClassVar[str] = "2"
    pipeline_class: ClassVar[str] = "FluxPipeline"
    scope = SCOPE
    lora_presets: ClassVar[dict[str, str]] = {
        "attention": r".*\.attn\.(to_q|to_k|to_v|to_out\.0|add_q_proj|add_k_proj|add_v_proj|to_add_out)",
        "paper": r".*\.attn\.(to_q|to_k|to_v|to_out\.0)",
    }
    max_text_tokens: ClassVar[int] = 512
    gives_levels: ClassVar[bool] = True

    @classmethod
    def _patch(cls, transformer: dict[str, Any]) -> int:  # noqa: ARG003
        return PATCH

    @classmethod
    def _channels(cls, transformer: dict[str, Any]) -> int:
        return int(transformer["in_channels"]) // PATCH**2

    def _encode(self, text: str, negative: bool) -> Conditioning:  # noqa: ARG002
        """``embeds`` [1, tokens, width] from T5, ``pooled`` [1, width] from CLIP."""
        embeds, pooled, _ = self._pipeline.encode_prompt(
            text, device=self.device, max_sequence_length=self.spec.max_sequence_length
        )
        return Conditioning({"embeds": embeds, "pooled": pooled})

    def _predict(self, module: nn.Module, x: Tensor, sigma: Tensor, conditioning: Conditioning) -> Tensor:
        embeds = self._computed(conditioning, "embeds")
        image_ids, text_ids = self._positions(embeds.shape[1])
        (packed,) = module(
            hidden_states=pack(x).to(self.compute_dtype),
            timestep=sigma,
            guidance=torch.full_like(sigma, self.spec.guidance) if self._guided else None,
            pooled_projections=self._computed(conditioning, "pooled"),
            encoder_hidden_states=embeds,
            txt_ids=text_ids,
            img_ids=image_ids,
            return_dict=False,
        )
        return unpack(packed.float(), self.latent_shape)

    def pipeline_arguments(self, conditioning: Conditioning) -> dict[str, Any]:
        """See ``PipelineFamily``."""
        return {
            "prompt_embeds": self._computed(conditioning, "embeds"),
            "pooled_prompt_embeds": self._computed(conditioning, "pooled"),
            "guidance_scale": self.spec.guidance,
        }

    @cached_property
    def _guided(self) -> bool:
        return bool(self._pipeline.transformer.config.guidance_embeds)

    def _positions(self, text_tokens: int) -> tuple[Tensor, Tensor]:
        """Positions of image tokens (0, row, column) and of text tokens (all 0), float32."""
        sizes = (text_tokens, self.latent_shape)
        if sizes not in self._position_cache:
            _, height, width = (size // PATCH for size in self.latent_shape)
            rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
            image = torch.stack([torch.zeros_like(rows), rows, columns], dim=-1).reshape(-1, 3)
            text = torch.zeros(text_tokens, 3, device=self.device)
            self._position_cache[sizes] = (image.to(self.device, torch.float32), text)
        return self._position_cache[sizes]

    @cached_property
    def _position_cache(self) -> dict[tuple[int, tuple[int, ...]], tuple[Tensor, Tensor]]:
        return {}


def pack(x: Tensor) -> Tensor:
    """[B, C, H, W] to tokens [B, H/2 * W/2, 4 C]: the 2 x 2 cells of a token lie within a channel."""
    rows, channels, height, width = x.shape
    cells = x.reshape(rows, channels, height // PATCH, PATCH, width // PATCH, PATCH)
    return cells.permute(0, 2, 4, 1, 3, 5).reshape(rows, -1, channels * PATCH * PATCH)


def unpack(tokens: Tensor, latent_shape: tuple[int, ...]) -> Tensor:
    """The inverse of ``pack``."""
    channels, height, width = latent_shape
    cells = tokens.reshape(len(tokens), height // PATCH, width // PATCH, channels, PATCH, PATCH)
    return cells.permute(0, 3, 1, 4, 2, 5).reshape(len(tokens), channels, height, width)


FAMILY = Flux
