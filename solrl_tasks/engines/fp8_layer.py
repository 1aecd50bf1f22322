"""Layers of which both operands are quantised to FP8 by rows."""

from collections.abc import Sequence

import torch
from torch import Tensor

from solrl_tasks.engines.kernels import rows
from solrl_tasks.engines.layers import MatmulLayer, RowsLayer
from solrl_tasks.engines.numerics import fp8
from solrl_tasks.engines.numerics.fp8 import E4M3, Quantized


class QuantizedRows:
    """Stands for a tensor [..., columns] in a network when only its quantised rows exist.

    Layers of this module take it in the tensor's place, so what several of them read is quantised once; it passes
    through modules that only hand it on and look at its shape and dtype.

    Attributes:
        shape, dtype: of the tensor that it stands for.
    """

    def __init__(self, quantized: Quantized, shape: Sequence[int], dtype: torch.dtype) -> None:
        self.values = quantized.values
        self.scale = quantized.scale
        self.shape = shape
        self.dtype = dtype


class Fp8Layer(RowsLayer):
    """A Linear or 1x1 convolution layer of which both operands are E4M3 values with a scale a row.

    On CUDA the product is ``torch._scaled_mm`` with fast accumulation, rounded to bfloat16; elsewhere it is emulated in
    float32 (``numerics.fp8.multiply``). The result has the dtype of the input.

    Args:
        source: the base layer; its bias is shared.
        fused: whether the kernel of ``kernels.rows`` quantises inputs, or plain operations, which a compiler may fuse.
    """

    weight: Tensor
    weight_scale: Tensor

    def __init__(self, source: MatmulLayer, fused: bool) -> None:
        super().__init__(source)
        count, columns, device = *source.weight.shape[:2], source.weight.device
        self.register_buffer("weight", torch.empty(count, columns, dtype=E4M3, device=device), persistent=False)
        self.register_buffer("weight_scale", torch.empty(1, count, device=device), persistent=False)
        self.bias = source.bias
        self._quantize = rows.quantize_rows if fused else fp8.quantize_rows

    def extra_repr(self) -> str:
        return f"in={self.weight.shape[1]}, out={self.weight.shape[0]}, dtype={self.weight.dtype}"

    def load(self, weight: Tensor) -> None:
        self.merge(weight, None)

    def merge(self, base: Tensor, delta: Tensor | None) -> None:
        merged = None if delta is None else delta.flatten(1)
        rows.merge_quantize_rows(base.flatten(1), merged, self.weight, self.weight_scale.flatten())

    def forward(self, x: Tensor | QuantizedRows) -> Tensor:
        """x [..., columns], or [batch, columns, height, width] for a convolution; with ``QuantizedRows`` the columns
        come last for a convolution too, in the result as well."""
        if isinstance(x, QuantizedRows):
            return self._multiply(x)
        return self.over_rows(x)

    def _rows(self, x: Tensor) -> Tensor:
        return self._multiply(QuantizedRows(self._quantize(x), x.shape, x.dtype))

    def _multiply(self, x: QuantizedRows) -> Tensor:
        if x.values.is_cuda and len(x.values):
            y = torch._scaled_mm(
                x.values,
                self.weight.t(),
                scale_a=x.scale,
                scale_b=self.weight_scale,
                bias=None if self.bias is None else self.bias.to(torch.bfloat16),
                out_dtype=torch.bfloat16,
                use_fast_accum=True,
            )
        else:
            y = fp8.multiply(Quantized(x.values, x.scale), self.weight, self.weight_scale, self.bias)
        return y.to(x.dtype).view(*x.shape[:-1], self.weight.shape[0])
