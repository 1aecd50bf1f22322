"""NVFP4 quantisation by Triton kernels, bit for bit that of ``numerics.nvfp4``.

Under inductor the plain torch quantiser is not exact: it divides approximately and keeps numbers wider than their
dtype. The kernels divide with rounding, and round to a format by adding and subtracting a large enough number, which
is exact whether or not the compiler fuses the multiplication in front. They are an operator of torch, so graphs that
are compiled as a whole can contain it, and its input is a tensor in memory, rounded to its dtype. The maximum is a
kernel too: inductor would compute it from whatever the input comes from, once more, and not always to the same bits.

Without Triton, or on a CPU, compiled graphs contain the plain torch quantiser as one opaque operator: the same bits.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, cast

import torch
from torch import Tensor

from solrl_tasks.engines.numerics import nvfp4 as plain
from solrl_tasks.engines.numerics.nvfp4 import BLOCK, BlockShape, Quantized, ScaleMode, check_blocks

if TYPE_CHECKING:
    import triton.language as tl

TILE: Final = 256
"""Blocks that a program quantises at a time."""
_NUMBERS: Final = 8192
"""Of which a program finds the largest."""

_SCHEMA: Final = "(Tensor x, bool per_row) -> (Tensor, Tensor)"


def quantize_activation(x: Tensor, scale: ScaleMode = "tensor", out: Tensor | None = None) -> Quantized:
    """See ``numerics.nvfp4.quantize_activation``; values are bfloat16 if ``out`` is absent.

    Needs a CUDA device and Triton, or Triton's interpreter.
    """
    check_blocks(x, 1)
    values = torch.empty(x.shape, dtype=torch.bfloat16, device=x.device) if out is None else out
    return Quantized(values, _launch(kernels(), x.contiguous(), values, scale == "row"))


def quantize_weight(weight: Tensor, block: BlockShape = "1x16", out: Tensor | None = None) -> Quantized:
    """See ``numerics.nvfp4.quantize_weight``; 16x16 blocks have no kernel."""
    return quantize_activation(weight, out=out) if block == "1x16" else plain.quantize_weight(weight, block, out)


@functools.cache
def operator(device_type: str) -> Callable[[Tensor, bool], tuple[Tensor, Tensor]]:
    """The quantiser as an operator of torch, to be part of compiled graphs; not differentiable.

    It takes x [..., columns] and whether each row has a scale, and returns the fields of ``Quantized``.

    Args:
        device_type: ``cuda``, where values are bfloat16 and Triton is needed; elsewhere they are float32.
    """
    if device_type == "cuda":
        _define_triton_operator(**kernels())
        found: Any = torch.ops.solrl.nvfp4_quantize.default
    else:
        _define_plain_operator()
        found = torch.ops.solrl.nvfp4_quantize_plain.default
    return cast(Callable[[Tensor, bool], tuple[Tensor, Tensor]], found)


def _define_triton_operator(largest: Any, tensor: Any, row: Any) -> None:
    from torch.library import triton_op, wrap_triton

    def quantize(x: Tensor, per_row: bool) -> tuple[Tensor, Tensor]:
        wrapped = {"largest": wrap_triton(largest), "tensor": wrap_triton(tensor), "row": wrap_triton(row)}
        columns = x.shape[-1]
        values = torch.empty((x.numel() // columns, columns), dtype=torch.bfloat16, device=x.device)
        # Not reshaped: inductor would write a view of what it computes to memory once for each kernel.
        return values, _launch(wrapped, x.contiguous(), values, per_row)

    triton_op("solrl::nvfp4_quantize", quantize, mutates_args=(), schema=_SCHEMA)


def _define_plain_operator() -> None:
    def quantize(x: Tensor, per_row: bool) -> tuple[Tensor, Tensor]:
        quantized = plain.quantize_activation(x.reshape(-1, x.shape[-1]), "row" if per_row else "tensor")
        return quantized.values, quantized.scale

    def shapes(x: Tensor, per_row: bool) -> tuple[Tensor, Tensor]:
        columns = x.shape[-1]
        rows = x.numel() // columns
        return x.new_empty((rows, columns), dtype=torch.float32), x.new_empty(
            (rows, 1) if per_row else (), dtype=torch.float32
        )

    registered = torch.library.custom_op("solrl::nvfp4_quantize_plain", quantize, mutates_args=(), schema=_SCHEMA)
    registered.register_fake(shapes)


def _launch(kernel: dict[str, Any], x: Tensor, values: Tensor, per_row: bool) -> Tensor:
    """Fill ``values`` [rows, columns] from as many numbers; returns gd. Both are contiguous."""
    rows, columns = values.shape
    # Of at least one dimension: inductor fills empty scalars with zeros, by a kernel of their own.
    decode = torch.empty((rows, 1) if per_row else (1,), dtype=torch.float32, device=x.device)
    blocks = x.numel() // BLOCK
    if blocks == 0:
        decode.fill_(1.0)
    elif per_row:
        kernel["row"][(rows,)](x, values, decode, ROW_BLOCKS=columns // BLOCK, TILE=TILE, num_warps=4)
    else:
        bits = torch.zeros(1, dtype=torch.int32, device=x.device)
        kernel["largest"][(-(-x.numel() // _NUMBERS),)](x, bits, x.numel(), NUMBERS=_NUMBERS, num_warps=4)
        kernel["tensor"][(-(-blocks // TILE),)](x, bits, values, decode, blocks, TILE=TILE, num_warps=4)
    return decode if per_row else decode.view(())


@functools.cache
def kernels() -> dict[str, Any]:
    """The compiled kernels by name. Needs Triton."""
    import triton

    # The compiler looks names up in this module, which does without Triton until somebody needs it.
    globals()["tl"] = triton.language
    for helper in (_magnitude, _global_scales, _quantize_blocks):
        globals()[helper.__name__] = triton.jit(helper)
    bodies = {"largest": _largest_kernel, "tensor": _tensor_kernel, "row": _row_kernel}
    return {name: triton.jit(body) for name, body in bodies.items()}


def _magnitude(number: tl.tensor) -> tl.tensor:
    """Bits of |number|: ordered as the numbers are, and NaN comes last, which a maximum of floats would drop."""
    return number.to(tl.int32, bitcast=True) & 0x7FFFFFFF


def _global_scales(magnitude: tl.tensor) -> tl.tensor:
    """(ge, gd); 2688 = 6 * 448 and 3.4e38 is FLT_MAX."""
    amax = magnitude.to(tl.float32, bitcast=True)
    ge = tl.minimum(tl.div_rn(2688.0, amax), 3.4028234663852886e38, propagate_nan=tl.PropagateNan.ALL)
    ge = tl.where(amax == 0.0, 1.0, ge)
    return ge, tl.div_rn(1.0, ge)


def _quantize_blocks(number: tl.tensor, ge: tl.tensor, gd: tl.tensor) -> tl.tensor:
    """code * ds of blocks [n, 16], float32."""
    va = tl.max(_magnitude(number), 1).to(tl.float32, bitcast=True)
    scale = tl.minimum(va * (ge * 0.1666666716337204), 448.0, propagate_nan=tl.PropagateNan.ALL)
    # E4M3: 3 bits of mantissa, 1.5 * 2**(23 - 3) times the power of two, which is at least 2**-6.
    power = tl.maximum(scale.to(tl.int32, bitcast=True) & 0x7F800000, 121 << 23).to(tl.float32, bitcast=True)
    ds = (scale + power * 1572864.0) - power * 1572864.0
    es = tl.minimum(tl.div_rn(1.0, ds * gd), 3.4028234663852886e38, propagate_nan=tl.PropagateNan.ALL)
    y = tl.minimum(number * es[:, None], 6.0, propagate_nan=tl.PropagateNan.ALL)
    y = tl.maximum(y, -6.0, propagate_nan=tl.PropagateNan.ALL)
    # E2M1: 1 bit of mantissa, 1.5 * 2**(23 - 1), and the power at least 1.
    power = tl.maximum(y.to(tl.int32, bitcast=True) & 0x7F800000, 127 << 23).to(tl.float32, bitcast=True)
    code = (y + power * 6291456.0) - power * 6291456.0
    # A zero has lost its sign.
    sign = number.to(tl.int32, bitcast=True) ^ _magnitude(number)
    return ((code * ds[:, None]).to(tl.int32, bitcast=True) | sign).to(tl.float32, bitcast=True)


def _largest_kernel(x: tl.tensor, bits: tl.tensor, numbers: tl.tensor, NUMBERS: tl.constexpr) -> None:
    cells = tl.program_id(0).to(tl.int64) * NUMBERS + tl.arange(0, NUMBERS)
    number = tl.load(x + cells, mask=cells < numbers, other=0.0).to(tl.float32)
    tl.atomic_max(bits, tl.max(_magnitude(number), 0), sem="relaxed")


def _tensor_kernel(
    x: tl.tensor, bits: tl.tensor, values: tl.tensor, decode: tl.tensor, blocks: tl.tensor, TILE: tl.constexpr
) -> None:
    first = tl.program_id(0) * TILE
    block = first + tl.arange(0, TILE)
    cells = block.to(tl.int64)[:, None] * 16 + tl.arange(0, 16)[None, :]
    inside = (block < blocks)[:, None]
    ge, gd = _global_scales(tl.load(bits))
    tl.store(decode, gd, mask=first == 0)
    number = tl.load(x + cells, mask=inside, other=0.0).to(tl.float32)
    quantized = _quantize_blocks(number, ge, gd)
    tl.store(values + cells, quantized.to(values.dtype.element_ty), mask=inside)


def _row_kernel(
    x: tl.tensor, values: tl.tensor, decode: tl.tensor, ROW_BLOCKS: tl.constexpr, TILE: tl.constexpr
) -> None:
    """One program is one row; what it reads first it finds in the cache the second time."""
    row = tl.program_id(0).to(tl.int64)
    start = row * ROW_BLOCKS * 16
    tile = tl.arange(0, TILE)[:, None] * 16 + tl.arange(0, 16)[None, :]
    largest = tl.zeros([TILE], dtype=tl.int32)
    for first in range(0, ROW_BLOCKS, TILE):
        inside = (first + tl.arange(0, TILE) < ROW_BLOCKS)[:, None]
        number = tl.load(x + start + first * 16 + tile, mask=inside, other=0.0).to(tl.float32)
        largest = tl.maximum(largest, tl.max(_magnitude(number), 1))
    ge, gd = _global_scales(tl.max(largest, 0))
    tl.store(decode + row, gd)
    for first in range(0, ROW_BLOCKS, TILE):
        inside = (first + tl.arange(0, TILE) < ROW_BLOCKS)[:, None]
        number = tl.load(x + start + first * 16 + tile, mask=inside, other=0.0).to(tl.float32)
        quantized = _quantize_blocks(number, ge, gd)
        tl.store(values + start + first * 16 + tile, quantized.to(values.dtype.element_ty), mask=inside)
