"""A tiny FluxPipeline from nothing: every part is a diffusers or transformers class, only the sizes are ours.

Sizes follow what was measured on the scene data: see the model card in `solrl_tasks/models/embedded/README.md`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel
from transformers import CLIPTextConfig, CLIPTextModel, T5Config, T5EncoderModel

from solrl_tasks.pretrain.tokenizers import MAX_TOKENS, clip_tokenizer, t5_tokenizer, vocabulary_size


@dataclass(frozen=True)
class PipelineSize:
    """The numbers that fix a pipeline. `rope_axes` must add up to `head_dim`; widths are multiples of 16."""

    name: str
    image: int
    vae_channels: tuple[int, ...]
    latent_channels: int
    double_blocks: int
    single_blocks: int
    heads: int
    head_dim: int
    rope_axes: tuple[int, int, int]
    text_width: int
    text_layers: int
    text_heads: int

    def __post_init__(self) -> None:
        if sum(self.rope_axes) != self.head_dim:
            raise ValueError(f"{self.name}: the rope axes {self.rope_axes} must add up to {self.head_dim}")
        if self.image % (2 * self.reduction):
            raise ValueError(f"{self.name}: {self.image} pixels do not divide by {2 * self.reduction}")
        for width in (self.heads * self.head_dim, self.text_width):
            if width % 16:
                raise ValueError(f"{self.name}: the width {width} is no multiple of 16, the NVFP4 block")

    @property
    def reduction(self) -> int:
        """Pixels to a latent cell, along one side."""
        return int(2 ** (len(self.vae_channels) - 1))

    @property
    def grid(self) -> int:
        """Image tokens along one side: 2 x 2 latent cells make a token."""
        return self.image // self.reduction // 2

    @property
    def packed_channels(self) -> int:
        """Numbers in an image token."""
        return 4 * self.latent_channels


EMBEDDED = PipelineSize(
    name="embedded",
    image=64,
    vae_channels=(8, 16, 32, 64),
    latent_channels=16,
    double_blocks=2,
    single_blocks=4,
    heads=4,
    head_dim=32,
    rope_axes=(8, 12, 12),
    text_width=64,
    text_layers=2,
    text_heads=4,
)
MICRO = PipelineSize(
    name="micro",
    image=32,
    vae_channels=(4, 4, 8, 8),
    latent_channels=4,
    double_blocks=1,
    single_blocks=1,
    heads=1,
    head_dim=16,
    rope_axes=(4, 6, 6),
    text_width=16,
    text_layers=1,
    text_heads=1,
)
SIZES = {size.name: size for size in (EMBEDDED, MICRO)}


def _autoencoder(size: PipelineSize) -> Any:
    levels = len(size.vae_channels)
    return AutoencoderKL(
        block_out_channels=size.vae_channels,
        down_block_types=("DownEncoderBlock2D",) * levels,
        up_block_types=("UpDecoderBlock2D",) * levels,
        layers_per_block=1,
        latent_channels=size.latent_channels,
        norm_num_groups=4,
        sample_size=size.image,
        mid_block_add_attention=False,
        use_quant_conv=False,
        use_post_quant_conv=False,
        scaling_factor=1.0,
        shift_factor=0.0,
    )


def _transformer(size: PipelineSize) -> Any:
    return FluxTransformer2DModel(
        patch_size=1,
        in_channels=size.packed_channels,
        num_layers=size.double_blocks,
        num_single_layers=size.single_blocks,
        attention_head_dim=size.head_dim,
        num_attention_heads=size.heads,
        joint_attention_dim=size.text_width,
        pooled_projection_dim=size.text_width,
        guidance_embeds=False,
        axes_dims_rope=size.rope_axes,
    )


def _clip(size: PipelineSize, rows: int) -> Any:
    model = CLIPTextModel(
        CLIPTextConfig(
            vocab_size=rows,
            hidden_size=size.text_width,
            intermediate_size=2 * size.text_width,
            projection_dim=size.text_width,
            num_hidden_layers=size.text_layers,
            num_attention_heads=size.text_heads,
            max_position_embeddings=MAX_TOKENS,
            hidden_act="gelu",
            bos_token_id=0,
            eos_token_id=1,
            pad_token_id=1,
        )
    )
    # The default spread of 0.02 makes all prompts look alike for the first thousands of steps.
    torch.nn.init.normal_(model.get_input_embeddings().weight, std=0.3)
    return model


def _t5(size: PipelineSize, rows: int) -> Any:
    return T5EncoderModel(
        T5Config(
            vocab_size=rows,
            d_model=size.text_width,
            d_kv=size.text_width // size.text_heads,
            d_ff=2 * size.text_width,
            num_layers=size.text_layers,
            num_heads=size.text_heads,
            feed_forward_proj="gated-gelu",
            dropout_rate=0.0,
            relative_attention_num_buckets=16,
            relative_attention_max_distance=16,
            tie_word_embeddings=False,
        )
    )


def build_pipeline(size: PipelineSize, seed: int = 0) -> Any:
    """A FluxPipeline of this size with random float32 weights, on the CPU, in evaluation mode.

    The weights are a function of `size` and `seed`; the global random state is left as it was. Call the pipeline
    with `max_sequence_length=16`, and `guidance_scale=0.0`.
    """
    clip_words, t5_words = clip_tokenizer(), t5_tokenizer()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        pipeline = FluxPipeline(
            scheduler=FlowMatchEulerDiscreteScheduler(shift=1.0),
            vae=_autoencoder(size).eval(),
            text_encoder=_clip(size, vocabulary_size(clip_words)).eval(),
            tokenizer=clip_words,
            text_encoder_2=_t5(size, vocabulary_size(t5_words)).eval(),
            tokenizer_2=t5_words,
            transformer=_transformer(size).eval(),
        )
    pipeline.set_progress_bar_config(disable=True)
    return pipeline
