"""The blocks of Stable Diffusion 3 and 3.5."""

from typing import Any, ClassVar

from diffusers.models.attention import JointTransformerBlock
from torch import Tensor, nn

from solrl_tasks.engines.fp8_layer import QuantizedRows
from solrl_tasks.engines.fusions.parts import feed_forward, lacking, modulate, part

_SHIFT, _SCALE, _GATE, _MLP_SHIFT, _MLP_SCALE, _MLP_GATE, _SHIFT_2, _SCALE_2, _GATE_2 = range(9)
_LAST_SCALE, _LAST_SHIFT = range(2)


class FusedJointTransformerBlock(JointTransformerBlock):  # type: ignore[misc]
    """Text and image tokens with weights of their own, attending to each other; in SD3.5-Medium some blocks attend
    among the image tokens too. The last block makes no text."""

    block: ClassVar[type[nn.Module]] = JointTransformerBlock

    @staticmethod
    def obstacle(block: nn.Module) -> str | None:
        """See ``FusedBlock``."""
        if block._chunk_size is not None:
            return "its feed-forward is computed in pieces"
        layers = [f"attn.{name}" for name in ("to_q", "to_k", "to_v", "add_q_proj", "add_k_proj", "add_v_proj")]
        norms, forwards = ["norm1.norm", "norm1_context.norm", "norm2"], ["ff"]
        if block.use_dual_attention:
            layers += ["attn2.to_q", "attn2.to_k", "attn2.to_v"]
        if not block.context_pre_only:
            norms.append("norm2_context")
            forwards.append("ff_context")
        return lacking(block, layers, norms, forwards)

    def forward(
        self,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor,
        temb: Tensor,
        joint_attention_kwargs: dict[str, Any] | None = None,
    ) -> tuple[Tensor | None, Tensor]:
        """As in the class that it derives from."""
        named = joint_attention_kwargs or {}
        image, columns = hidden_states, hidden_states.shape[-1]
        modulation = self.norm1.linear(self.norm1.silu(temb))
        normed_text, of_text = self._normed_text(encoder_hidden_states, temb)
        attended, attended_text = self.attn(
            hidden_states=modulate(image, modulation, _SHIFT, _SCALE, self.norm1.norm),
            encoder_hidden_states=normed_text,
            **named,
        )
        if self.use_dual_attention:
            normed = modulate(image, modulation, _SHIFT_2, _SCALE_2, self.norm1.norm)
            image = image + part(modulation, _GATE, columns) * attended
            image = image + part(modulation, _GATE_2, columns) * self.attn2(hidden_states=normed, **named)
        else:
            image = image + part(modulation, _GATE, columns) * attended
        normed = modulate(image, modulation, _MLP_SHIFT, _MLP_SCALE, self.norm2)
        image = image + part(modulation, _MLP_GATE, columns) * feed_forward(self.ff, normed)
        if self.context_pre_only:
            return None, image
        text = encoder_hidden_states + part(of_text, _GATE, columns) * attended_text
        normed = modulate(text, of_text, _MLP_SHIFT, _MLP_SCALE, self.norm2_context)
        return text + part(of_text, _MLP_GATE, columns) * feed_forward(self.ff_context, normed), image

    def _normed_text(self, text: Tensor, temb: Tensor) -> tuple[QuantizedRows, Tensor]:
        norm = self.norm1_context
        modulation = norm.linear(norm.silu(temb).to(text.dtype))
        shift, scale = (_LAST_SHIFT, _LAST_SCALE) if self.context_pre_only else (_SHIFT, _SCALE)
        return modulate(text, modulation, shift, scale, norm.norm), modulation


FUSED = (FusedJointTransformerBlock,)
