"""SANA (diffusers' SanaPipeline): linear attention, a deep-compression autoencoder, Gemma-2 as the text encoder."""

import inspect
from typing import Any, ClassVar

from torch import Tensor, nn

from solrl_tasks.models.families.base import Conditioning
from solrl_tasks.models.families.pipeline import PipelineFamily
from solrl_tasks.models.scope import LayerScope

TRAINING_LEVELS = 1000
"""What the network is told is the noise level times this, and times its own timestep scale."""
CONVOLUTIONS = r"transformer_blocks\..*\.ff\.(conv_inverted|conv_point)"

SCOPE = LayerScope(
    # The second rule covers nothing new: it is there to fail where the convolutions are not found.
    include=(r"transformer_blocks\..*", CONVOLUTIONS),
    skip=(
        (r"(patch_embed\.proj|time_embed\..*|caption_projection\..*)", "embedder"),
        (r"proj_out", "final projection"),
    ),
)
_PROJECTION = r"(to_q|to_k|to_v|to_out\.0)"


class Sana(PipelineFamily):
    """See ``Family``. Half of the quantisable work is in the 1x1 convolutions of the feed-forward parts."""

    name: ClassVar[str] = "sana"
    version: ClassVar[str] = "1"
    pipeline_class: ClassVar[str] = "SanaPipeline"
    scope = SCOPE
    convolutions: ClassVar[str] = CONVOLUTIONS
    lora_presets: ClassVar[dict[str, str]] = {
        "attention": rf".*\.attn[12]\.{_PROJECTION}",
        "paper": rf".*\.attn[12]\.{_PROJECTION}",
    }
    options: ClassVar[frozenset[str]] = frozenset({"complex_human_instruction"})
    max_text_tokens: ClassVar[int] = 1024
    gives_levels: ClassVar[bool] = False

    @classmethod
    def _cell(cls, vae: dict[str, Any]) -> int:
        return int(2 ** (len(vae["encoder_block_out_channels"]) - 1))

    def _encode(self, text: str, negative: bool) -> Conditioning:
        """``embeds`` [1, tokens, width]; ``mask`` [1, tokens], 1 for the tokens of the prompt and 0 for padding."""
        instruct = self.spec.complex_human_instruction and not negative
        embeds, mask, _, _ = self._pipeline.encode_prompt(
            text,
            do_classifier_free_guidance=False,
            device=self.device,
            max_sequence_length=self.spec.max_sequence_length,
            complex_human_instruction=self._instruction() if instruct else None,
        )
        return Conditioning({"embeds": embeds, "mask": mask})

    def _instruction(self) -> list[str]:
        """The pipeline's own instruction."""
        parameters = inspect.signature(type(self._pipeline).__call__).parameters
        return list(parameters["complex_human_instruction"].default)

    def pipeline_arguments(self, conditioning: Conditioning) -> dict[str, Any]:
        """See ``PipelineFamily``."""
        return {
            "prompt_embeds": self._computed(conditioning, "embeds"),
            "prompt_attention_mask": conditioning.tensors["mask"],
            "guidance_scale": 1.0,
            # It would sample at the nearest size that the checkpoint was trained for, and shrink the images.
            "use_resolution_binning": False,
        }

    def _predict(self, module: nn.Module, x: Tensor, sigma: Tensor, conditioning: Conditioning) -> Tensor:
        config = self._pipeline.transformer.config
        (velocity,) = module(
            x.to(self.compute_dtype),
            encoder_hidden_states=self._computed(conditioning, "embeds"),
            encoder_attention_mask=conditioning.tensors["mask"],
            timestep=sigma * TRAINING_LEVELS * config.timestep_scale,
            return_dict=False,
        )
        # Some checkpoints predict a variance too, in as many channels again.
        predicted: Tensor = velocity.float()[:, : x.shape[1]]
        return predicted


FAMILY = Sana
