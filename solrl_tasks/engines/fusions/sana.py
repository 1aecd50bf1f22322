"""The blocks of SANA."""

from typing import Any, ClassVar

from diffusers.models.transformers.sana_transformer import SanaTransformerBlock
from torch import Tensor, nn

from solrl_tasks.engines.fp8_layer import QuantizedRows
from solrl_tasks.engines.fusions.parts import lacking, modulate, part
from solrl_tasks.engines.kernels import rows

_SHIFT, _SCALE, _GATE, _MLP_SHIFT, _MLP_SCALE, _MLP_GATE = range(6)


class FusedSanaTransformerBlock(SanaTransformerBlock):  # type: ignore[misc]
    """Linear attention among image tokens, attention to text, and a feed-forward of convolutions.

    The 1x1 convolutions are given rows, one a position, as they lie in memory.
    """

    block: ClassVar[type[nn.Module]] = SanaTransformerBlock

    @staticmethod
    def obstacle(block: nn.Module) -> str | None:
        """See ``FusedBlock``."""
        module: Any = block.ff
        if module.norm_type is not None or module.residual_connection or not isinstance(module.nonlinearity, nn.SiLU):
            return "ff has a norm, a residual or another activation than silu"
        layers = ("attn1.to_q", "attn1.to_k", "attn1.to_v", "ff.conv_inverted", "ff.conv_point")
        return lacking(block, layers, ("norm1", "norm2"))

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,  # noqa: ARG002 (the class that it derives from ignores it too)
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        timestep: Tensor | None = None,
        height: int | None = None,
        width: int | None = None,
    ) -> Tensor:
        """As in the class that it derives from."""
        assert timestep is not None and height is not None and width is not None
        x, columns = hidden_states, hidden_states.shape[-1]
        table = self.scale_shift_table[None] + timestep.reshape(len(x), 6, -1)
        modulation = table.flatten(1)
        attended: Tensor = self.attn1(modulate(x, modulation, _SHIFT, _SCALE, self.norm1))
        x = x + part(modulation, _GATE, columns) * attended
        if self.attn2 is not None:
            attended = self.attn2(x, encoder_hidden_states=encoder_hidden_states, attention_mask=encoder_attention_mask)
            x = attended + x
        normed = modulate(x, modulation, _MLP_SHIFT, _MLP_SCALE, self.norm2)
        return x + part(modulation, _MLP_GATE, columns) * self._feed_forward(normed, height, width)

    def _feed_forward(self, x: QuantizedRows, height: int, width: int) -> Tensor:
        module = self.ff
        hidden: Tensor = module.nonlinearity(module.conv_inverted(x))
        # A convolution wants channels first; in memory they stay last.
        grid = hidden.view(len(hidden), height, width, hidden.shape[-1]).permute(0, 3, 1, 2)
        pairs = module.conv_depth(grid).permute(0, 2, 3, 1).flatten(1, 2)
        shape = (*pairs.shape[:-1], pairs.shape[-1] // 2)
        out: Tensor = module.conv_point(QuantizedRows(rows.gate_quantize_rows(pairs), shape, pairs.dtype))
        return out


FUSED = (FusedSanaTransformerBlock,)
