"""The blocks of FLUX."""

from typing import Any, ClassVar, Final

import torch
from diffusers.models.transformers.transformer_flux import FluxSingleTransformerBlock, FluxTransformerBlock
from torch import Tensor, nn

from solrl_tasks.engines.fusions.parts import activate, feed_forward, lacking, modulate, part

Rotary = tuple[Tensor, Tensor]

_SHIFT, _SCALE, _GATE, _MLP_SHIFT, _MLP_SCALE, _MLP_GATE = range(6)
_PROJECTIONS: Final = ("attn.to_q", "attn.to_k", "attn.to_v")


class FusedFluxSingleTransformerBlock(FluxSingleTransformerBlock):  # type: ignore[misc]
    """Attention and feed-forward side by side, on text and image tokens together.

    Attention output and activated hidden units are quantised as one row, never put together at full precision.
    """

    block: ClassVar[type[nn.Module]] = FluxSingleTransformerBlock

    @staticmethod
    def obstacle(block: nn.Module) -> str | None:
        """See ``FusedBlock``."""
        if not isinstance(block.act_mlp, nn.GELU) or block.act_mlp.approximate != "tanh":
            return "act_mlp is not gelu in its tanh approximation"
        return lacking(block, (*_PROJECTIONS, "proj_mlp", "proj_out"), ("norm.norm",))

    def forward(
        self,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor,
        temb: Tensor,
        image_rotary_emb: Rotary | None = None,
        joint_attention_kwargs: dict[str, Any] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """As in the class that it derives from."""
        text = encoder_hidden_states.shape[1]
        x = torch.cat([encoder_hidden_states, hidden_states], dim=1)
        modulation = self.norm.linear(self.norm.silu(temb))
        normed = modulate(x, modulation, _SHIFT, _SCALE, self.norm.norm)
        hidden = self.proj_mlp(normed)
        attended = self.attn(hidden_states=normed, image_rotary_emb=image_rotary_emb, **(joint_attention_kwargs or {}))
        x = x + part(modulation, _GATE, x.shape[-1]) * self.proj_out(activate(hidden, prefix=attended))
        return x[:, :text], x[:, text:]


class FusedFluxTransformerBlock(FluxTransformerBlock):  # type: ignore[misc]
    """Text and image tokens with weights of their own, attending to each other."""

    block: ClassVar[type[nn.Module]] = FluxTransformerBlock

    @staticmethod
    def obstacle(block: nn.Module) -> str | None:
        """See ``FusedBlock``."""
        layers = (*_PROJECTIONS, "attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj")
        norms = ("norm1.norm", "norm1_context.norm", "norm2", "norm2_context")
        return lacking(block, layers, norms, ("ff", "ff_context"))

    def forward(
        self,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor,
        temb: Tensor,
        image_rotary_emb: Rotary | None = None,
        joint_attention_kwargs: dict[str, Any] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """As in the class that it derives from."""
        image, text = hidden_states, encoder_hidden_states
        of_image = self.norm1.linear(self.norm1.silu(temb))
        of_text = self.norm1_context.linear(self.norm1_context.silu(temb))
        attended, attended_text = self.attn(
            hidden_states=modulate(image, of_image, _SHIFT, _SCALE, self.norm1.norm),
            encoder_hidden_states=modulate(text, of_text, _SHIFT, _SCALE, self.norm1_context.norm),
            image_rotary_emb=image_rotary_emb,
            **(joint_attention_kwargs or {}),
        )
        columns = image.shape[-1]
        image = image + part(of_image, _GATE, columns) * attended
        normed = modulate(image, of_image, _MLP_SHIFT, _MLP_SCALE, self.norm2)
        image = image + part(of_image, _MLP_GATE, columns) * feed_forward(self.ff, normed)
        text = text + part(of_text, _GATE, columns) * attended_text
        normed = modulate(text, of_text, _MLP_SHIFT, _MLP_SCALE, self.norm2_context)
        text = text + part(of_text, _MLP_GATE, columns) * feed_forward(self.ff_context, normed)
        return text, image


FUSED = (FusedFluxSingleTransformerBlock, FusedFluxTransformerBlock)
