"""FLUX.1 and every pipeline built like it (diffusers' FluxPipeline).

FLUX.1-dev and -schnell, and the tiny embedded model, load through the same code. What differs between them,
the guidance embedding, the shift of the sigma grid by resolution and the latent scaling, is read from their
configuration.
"""

import re
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from solrl_tasks.config.recipe import ModelSpec
from solrl_tasks.models import dtypes
from solrl_tasks.models.families.base import Conditioning, Decoded, FamilyError, quantise_pixels
from solrl_tasks.models.pipelines import load_pipeline
from solrl_tasks.models.scope import LayerScope
from solrl_tasks.models.sources import fetch, read_config
from solrl_tasks.sampling import sigmas as grids

PATCH = 2
"""Latent cells along each side of an image token."""
MAX_TEXT_TOKENS = 512
_DECODE_PIXELS = 2**22

SCOPE = LayerScope(
    include=(r"transformer_blocks\..*", r"single_transformer_blocks\..*"),
    skip=(
        (r".*norm.*", "adaptive layer norm: few rows, sensitive"),
        (r"(x_embedder|context_embedder|time_text_embed\..*)", "embedder"),
        (r"proj_out", "final projection"),
    ),
)
_LORA_TARGETS = {
    "all": r".*",
    "attention": r".*\.attn\.(to_q|to_k|to_v|to_out\.0|add_q_proj|add_k_proj|add_v_proj|to_add_out)",
}
_GRID_OPTIONS = frozenset(
    {"shift", "use_dynamic_shifting", "base_shift", "max_shift", "base_image_seq_len", "max_image_seq_len"}
    | {"time_shift_type", "num_train_timesteps"}
)


class Flux:
    """See ``Family``."""

    name: ClassVar[str] = "flux"
    version: ClassVar[str] = "1"

    def __init__(self, spec: ModelSpec, device: torch.device, pipeline: Any, compute_dtype: torch.dtype) -> None:
        self.spec = spec
        self.device = device
        self.compute_dtype = compute_dtype
        self.transformer: nn.Module = pipeline.transformer
        self.scope = SCOPE
        self.latent_shape = _latent_shape(spec, dict(pipeline.vae.config), dict(pipeline.transformer.config))
        self._pipeline = pipeline
        self._guided = bool(pipeline.transformer.config.guidance_embeds)
        self._grid = _grid(dict(pipeline.scheduler.config), self.latent_shape)

    @classmethod
    def load(cls, spec: ModelSpec, device: torch.device) -> Self:
        """See ``Family.load``."""
        if spec.max_sequence_length > MAX_TEXT_TOKENS:
            raise FamilyError(
                f"model.max_sequence_length {spec.max_sequence_length}: flux takes at most {MAX_TEXT_TOKENS}"
            )
        cls.latent_shape_of(spec)
        chosen = dtypes.choose(spec.dtype, dtypes.device_class(device))
        return cls(spec, device, load_pipeline("FluxPipeline", spec, chosen, device), chosen.transformer)

    @classmethod
    def numerics(cls, spec: ModelSpec, device_class: str) -> dict[str, str]:
        """See ``Family.numerics``."""
        return dtypes.choose(spec.dtype, device_class).describe()

    @classmethod
    def latent_shape_of(cls, spec: ModelSpec) -> tuple[int, ...]:
        """See ``Family.latent_shape_of``."""
        folder = fetch(spec)
        return _latent_shape(spec, read_config(folder, "vae"), read_config(folder, "transformer"))

    @cached_property
    def _adaptable(self) -> tuple[str, ...]:
        return self.scope.resolve(self.transformer).replaced

    def lora_targets(self, preset: str) -> tuple[str, ...]:
        """``attention``: attention projections; ``all``: every Linear in the blocks but adaptive norms."""
        if preset not in _LORA_TARGETS:
            raise FamilyError(f"unknown LoRA targets {preset!r} for flux: there is {' and '.join(_LORA_TARGETS)}")
        return tuple(path for path in self._adaptable if re.fullmatch(_LORA_TARGETS[preset], path))

    @torch.no_grad()
    def encode(self, prompts: Sequence[str]) -> Conditioning:
        """``embeds`` [P, tokens, width] from T5, ``pooled`` [P, width] from CLIP; see ``Family``."""
        length = self.spec.max_sequence_length
        pairs = [self._pipeline.encode_prompt(text, max_sequence_length=length)[:2] for text in prompts]
        embeds, pooled = (torch.cat(parts).float() for parts in zip(*pairs, strict=True))
        return Conditioning({"embeds": embeds, "pooled": pooled})

    def velocity(self, module: nn.Module, x: Tensor, sigma: float | Tensor, conditioning: Conditioning) -> Tensor:
        """See ``Family``. In bfloat16 the network itself rounds sigma, as in diffusers' pipeline."""
        rows = len(x)
        if len(conditioning) != rows:
            raise ValueError(f"{rows} latents have {len(conditioning)} rows of conditioning")
        embeds = conditioning.tensors["embeds"].to(self.compute_dtype)
        sigma = torch.as_tensor(sigma, dtype=torch.float32, device=x.device).expand(rows)
        image_ids, text_ids = self._positions(embeds.shape[1])
        (packed,) = module(
            hidden_states=pack(x).to(self.compute_dtype),
            timestep=sigma,
            guidance=torch.full_like(sigma, self.spec.guidance) if self._guided else None,
            pooled_projections=conditioning.tensors["pooled"].to(self.compute_dtype),
            encoder_hidden_states=embeds,
            txt_ids=text_ids,
            img_ids=image_ids,
            return_dict=False,
        )
        return unpack(packed.float(), self.latent_shape)

    def _positions(self, text_tokens: int) -> tuple[Tensor, Tensor]:
        """Positions of image tokens (0, row, column) and of text tokens (all 0), float32."""
        if text_tokens not in self._position_cache:
            _, height, width = (size // PATCH for size in self.latent_shape)
            rows, columns = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
            image = torch.stack([torch.zeros_like(rows), rows, columns], dim=-1).reshape(-1, 3)
            text = torch.zeros(text_tokens, 3, device=self.device)
            self._position_cache[text_tokens] = (image.to(self.device, torch.float32), text)
        return self._position_cache[text_tokens]

    @cached_property
    def _position_cache(self) -> dict[int, tuple[Tensor, Tensor]]:
        return {}

    def sigmas(self, steps: int) -> list[float]:
        """The scheduler's shift applied to equal steps; see ``Family.sigmas``."""
        return self._grid(steps)

    @torch.no_grad()
    def decode(self, x0: Tensor) -> Decoded:
        """See ``Family.decode``."""
        finite = x0.isfinite().flatten(1).all(dim=1)
        clean = torch.where(finite[:, None, None, None], x0, torch.zeros((), device=x0.device))
        config = self._pipeline.vae.config
        latents = clean.float() / config.scaling_factor + (config.shift_factor or 0.0)
        rows = max(1, _DECODE_PIXELS // self.spec.resolution**2)
        parts = [self._pipeline.vae.decode(part, return_dict=False)[0] for part in latents.split(rows)]
        return quantise_pixels(torch.cat(parts), finite)


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


def _latent_shape(spec: ModelSpec, vae: dict[str, Any], transformer: dict[str, Any]) -> tuple[int, ...]:
    cell = 2 ** (len(vae["block_out_channels"]) - 1)
    if spec.resolution % (cell * PATCH):
        raise FamilyError(f"model.resolution is {spec.resolution}: {spec.source!r} needs a multiple of {cell * PATCH}")
    side = spec.resolution // cell
    return (int(transformer["in_channels"]) // PATCH**2, side, side)


def _grid(scheduler: dict[str, Any], latent_shape: tuple[int, ...]) -> Callable[[int], list[float]]:
    """The scheduler's sigma grid as a function of the number of steps.

    Raises:
        FamilyError: the scheduler is set to something that our grids do not have.
    """
    others = {k: v for k, v in scheduler.items() if k not in _GRID_OPTIONS and not k.startswith("_") and v}
    if others:
        raise FamilyError(f"scheduler_config.json sets {others}, which the flux family does not know: remove it")
    if not scheduler["use_dynamic_shifting"]:
        return lambda steps: grids.shifted(steps, scheduler["shift"])
    tokens = latent_shape[1] * latent_shape[2] // PATCH**2
    return lambda steps: grids.dynamic(
        steps,
        tokens,
        base_shift=scheduler["base_shift"],
        max_shift=scheduler["max_shift"],
        base_tokens=scheduler["base_image_seq_len"],
        max_tokens=scheduler["max_image_seq_len"],
        shift_type=scheduler["time_shift_type"],
    )


FAMILY = Flux
