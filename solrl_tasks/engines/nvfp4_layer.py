"""Layers of which both operands are NVFP4 values, multiplied at higher precision."""

import weakref
from collections.abc import Callable

import torch
from torch import Tensor

from solrl_tasks.engines.layers import MatmulLayer, RowsLayer
from solrl_tasks.engines.numerics.nvfp4 import (
    BlockShape,
    Quantized,
    ScaleMode,
    quantize_activation,
    quantize_weight,
)

Quantizer = Callable[[Tensor, ScaleMode, Tensor], Quantized]
"""(x [rows, columns], scale mode, values to fill) -> quantised: ``quantize_activation`` of ``numerics.nvfp4``, or a
kernel that gives the same bits."""

Operator = Callable[[Tensor, bool], tuple[Tensor, Tensor]]
"""(x [..., columns], a scale for each row?) -> values [rows, columns] and scale: the same bits again, by one operator
that may stand in a compiled graph."""

WeightQuantizer = Callable[[Tensor, BlockShape, Tensor], Quantized]
"""(weight [out, in], block shape, values to fill) -> quantised."""


class ActivationQuantizer:
    """Quantises inputs of layers, once for all layers that are fed the same tensor in a row.

    Query, key and value projections read one tensor, and quantising is most of what emulation costs. The last
    result is used again only for the very same tensor object, unchanged since: torch counts the writes, but
    not those through ``.data``. A result's memory is overwritten by the next tensor, so it is to be used at
    once. Not for several threads.

    In a graph under compilation nothing is remembered: ``operator`` is called each time, on memory of the graph's
    own, and equal calls are for the compiler to merge (``shared_inputs``).

    Args:
        scale: see ``quantize_activation``.
        dtype: of the values.
        quantizer: what does the work.
        operator: does it in compiled graphs; its values are of ``dtype``.
    """

    def __init__(
        self,
        scale: ScaleMode,
        dtype: torch.dtype,
        quantizer: Quantizer = quantize_activation,
        operator: Operator | None = None,
    ) -> None:
        self._scale: ScaleMode = scale
        self._dtype = dtype
        self._quantizer = quantizer
        self._operator = operator
        self._memory = torch.empty(0, dtype=dtype)
        self._last: tuple[weakref.ref[Tensor], int, Quantized] | None = None

    def __call__(self, x: Tensor) -> Quantized:
        """Quantise ``x`` [..., columns]; the values are [rows, columns]."""
        if self._operator is not None and torch.compiler.is_compiling():
            return Quantized(*self._operator(x, self._scale == "row"))
        # Tensors made in inference mode do not count their writes.
        version = None if x.is_inference() else x._version
        if self._last is not None and self._last[0]() is x and self._last[1] == version:
            return self._last[2]
        self._last = None
        rows = x.reshape(-1, x.shape[-1])
        result = self._quantizer(rows, self._scale, self._values(rows))
        if version is not None:
            self._last = (weakref.ref(x), version, result)
        return result

    @torch.inference_mode(mode=False)
    def _values(self, rows: Tensor) -> Tensor:
        if self._memory.numel() < rows.numel() or self._memory.device != rows.device:
            self._memory = torch.empty(rows.numel(), dtype=self._dtype, device=rows.device)
        return self._memory[: rows.numel()].view(rows.shape)


class NVFP4Layer(RowsLayer):
    """A Linear or 1x1 convolution layer of which both operands are NVFP4 values::

        y = fl(fl(matmul(code_x * ds_x, code_w * ds_w) * fl(gd_x * gd_w)) + bias), in the dtype of x

    The product is summed in float32; operands are float32, or bfloat16 on CUDA: both hold the values exactly.

    Args:
        source: the base layer; its bias is shared.
        block: shape of the weight blocks.
        quantizer: shared by the layers of a twin.
        dtype: of the stored weight values.
        weights: quantises weights: ``quantize_weight`` of ``numerics.nvfp4``, or what gives the same bits.
    """

    weight: Tensor
    weight_scale: Tensor

    def __init__(
        self,
        source: MatmulLayer,
        block: BlockShape,
        quantizer: ActivationQuantizer,
        dtype: torch.dtype,
        weights: WeightQuantizer = quantize_weight,
    ) -> None:
        super().__init__(source)
        rows, columns, device = *source.weight.shape[:2], source.weight.device
        self.register_buffer("weight", torch.empty(rows, columns, dtype=dtype, device=device), persistent=False)
        self.register_buffer("weight_scale", torch.empty((), device=device), persistent=False)
        self.bias = source.bias
        self._block: BlockShape = block
        self._quantizer = quantizer
        self._quantize_weight = weights

    def extra_repr(self) -> str:
        return f"in={self.weight.shape[1]}, out={self.weight.shape[0]}, block={self._block}"

    def load(self, weight: Tensor) -> None:
        quantized = self._quantize_weight(weight.flatten(1), self._block, self.weight)
        self.weight_scale.copy_(quantized.scale)

    def forward(self, x: Tensor) -> Tensor:
        return self.over_rows(x)

    def _rows(self, x: Tensor) -> Tensor:
        quantized = self._quantizer(x)
        y = _matmul_float32(quantized.values, self.weight)
        scale = quantized.scale * self.weight_scale
        if torch.compiler.is_compiling():
            y = y * scale if self.bias is None else y * scale + self.bias
        else:
            # In place: the products are the largest tensors of an eager forward.
            y.mul_(scale)
            if self.bias is not None:
                y.add_(self.bias)
        return y.to(x.dtype).view(*x.shape[:-1], self.weight.shape[0])


def _matmul_float32(x: Tensor, weight: Tensor) -> Tensor:
    if x.dtype == torch.float32:
        return torch.mm(x, weight.t())
    return torch.mm(x, weight.t(), out_dtype=torch.float32)
