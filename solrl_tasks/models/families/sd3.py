"""Stable Diffusion 3.5 Large and Medium (diffusers' StableDiffusion3Pipeline), with or without T5."""

from typing import Any, ClassVar

from torch import Tensor, nn

from solrl_tasks.config.recipe import ModelSpec
from solrl_tasks.models.families.base import Conditioning, FamilyError
from solrl_tasks.models.families.pipeline import PipelineFamily
from solrl_tasks.models.scope import LayerScope

T5 = "text_encoder_3"
TRAINING_LEVELS = 1000
"""What the network is told is the noise level times this."""

SCOPE = LayerScope(
    include=(r"transformer_blocks\..*",),
    skip=(
        (r".*norm.*", "adaptive layer norm: few rows, sensitive"),
        (r"(context_embedder|time_text_embed\..*)", "embedder"),
        (r"proj_out", "final projection"),
    ),
)
_ATTENTION = r"(to_q|to_k|to_v|to_out\.0|add_q_proj|add_k_proj|add_v_proj|to_add_out)"


class Sd3(PipelineFamily):
    """See ``Family``.

    Medium has a second attention (``attn2``) in its first blocks, and the last block of either drops the text stream:
    the rules follow from what layers there are.
    """

    name: ClassVar[str] = "sd3"
    version: ClassVar[str] = "1"
    pipeline_class: ClassVar[str] = "StableDiffusion3Pipeline"
    scope = SCOPE
    lora_presets: ClassVar[dict[str, str]] = {
        "attention": rf".*\.attn2?\.{_ATTENTION}",
        "paper": rf".*\.attn\.{_ATTENTION}",
    }
    options: ClassVar[frozenset[str]] = frozenset({"t5"})
    max_text_tokens: ClassVar[int] = 512
    gives_levels: ClassVar[bool] = False

    @classmethod
    def _check_side(cls, spec: ModelSpec, side: int, transformer: dict[str, Any]) -> None:
        most, tokens = int(transformer["pos_embed_max_size"]), side // cls._patch(transformer)
        if tokens > most:
            raise FamilyError(
                f"model.resolution is {spec.resolution}: {spec.source!r} has positions for at most "
                f"{spec.resolution * most // tokens}"
            )

    @classmethod
    def _text_encoders(cls, spec: ModelSpec) -> tuple[str, ...]:
        names = super()._text_encoders(spec)
        return names if spec.t5 else tuple(name for name in names if name != T5)

    def _encode(self, text: str, negative: bool) -> Conditioning:  # noqa: ARG002
        """``embeds`` [1, CLIP tokens + T5 tokens, width], zeros in place of T5's without it; ``pooled`` [1, width]."""
        embeds, _, pooled, _ = self._pipeline.encode_prompt(
            text,
            None,
            None,
            device=self.device,
            do_classifier_free_guidance=False,
            max_sequence_length=self.spec.max_sequence_length,
        )
        return Conditioning({"embeds": embeds, "pooled": pooled})

    def pipeline_arguments(self, conditioning: Conditioning) -> dict[str, Any]:
        """See ``PipelineFamily``."""
        return {
            "prompt_embeds": self._computed(conditioning, "embeds"),
            "pooled_prompt_embeds": self._computed(conditioning, "pooled"),
            "guidance_scale": 1.0,
        }

    def _predict(self, module: nn.Module, x: Tensor, sigma: Tensor, conditioning: Conditioning) -> Tensor:
        (velocity,) = module(
            hidden_states=x.to(self.compute_dtype),
            timestep=sigma * TRAINING_LEVELS,
            encoder_hidden_states=self._computed(conditioning, "embeds"),
            pooled_projections=self._computed(conditioning, "pooled"),
            return_dict=False,
        )
        predicted: Tensor = velocity.float()
        return predicted


FAMILY = Sd3
