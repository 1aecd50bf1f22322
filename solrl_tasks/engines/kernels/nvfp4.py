"""NVFP4 quantisation in one pass over memory, bit for bit that of ``numerics.nvfp4``.

Under inductor the plain torch quantiser is not exact: it divides approximately and keeps numbers wider than their
dtype. The kernel divides with rounding, and rounds to a format by adding and subtracting a large enough number, which
is exact whether or not the compiler fuses the multiplication in front. It is an operator of torch, so graphs that are
compiled as a whole can contain it, and its input is a tensor in memory, rounded to its dtype.

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
"""Blocks that one program of the kernel quantises."""

_SCHEMA: Final = "(Tensor x, bool per_row) -> (Tensor, Tensor)"


def quantize_activation(x: Tensor, scale: ScaleMode = "tensor", out: Tensor | None = None) -> Quantized:
    """See ``numerics.nvfp4.quantize_activation``; values are bfloat16 if ``out`` is absent.

    Needs a CUDA device and Triton, or Triton's interpreter.
    """
    check_blocks(x, 1)
    values = torch.empty(x.shape, dtype=torch.bfloat16, device=x.device) if out is None else out
    decode = _empty_scale(x, scale == "row")
    if x.numel() == 0:
        return Quantized(values, decode.fill_(1.0))
    low, high = torch.aminmax(x, dim=1) if scale == "row" else torch.aminmax(x)
    _launch(_kernel(), x.contiguous(), torch.maximum(-low, high), values, decode)
    return Quantized(values, decode)


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
        _define_triton_operator(_kernel())
        found: Any = torch.ops.solrl.nvfp4_quantize.default
    else:
        _define_plain_operator()
        found = torch.ops.solrl.nvfp4_quantize_plain.default
    return cast(Callable[[Tensor, bool], tuple[Tensor, Tensor]], found)


def _define_triton_operator(kernel: Any) -> None:
    from torch.library import triton_op, wrap_triton

    def quantize(x: Tensor, per_row: bool) -> tuple[Tensor, Tensor]:
        rows = x.reshape(-1, x.shape[-1]).contiguous()
        values = torch.empty(rows.shape, dtype=torch.bfloat16, device=rows.device)
        decode = _empty_scale(rows, per_row)
        # In the dtype of x: the compiler may compute it from wider numbers, but rounding and maximum commute.
        amax = rows.abs().amax(1) if per_row else rows.abs().amax()
        _launch(wrap_triton(kernel), rows, amax, values, decode)
        return values, decode

    triton_op("solrl::nvfp4_quantize", quantize, mutates_args=(), schema=_SCHEMA)


def _define_plain_operator() -> None:
    def quantize(x: Tensor, per_row: bool) -> tuple[Tensor, Tensor]:
        quantized = plain.quantize_activation(x.reshape(-1, x.shape[-1]), "row" if per_row else "tensor")
        return quantized.values, quantized.scale

    def shapes(x: Tensor, per_row: bool) -> tuple[Tensor, Tensor]:
        rows = x.reshape(-1, x.shape[-1])
        return torch.empty(rows.shape, dtype=torch.float32, device=x.device), _empty_scale(rows, per_row)

    registered = torch.library.custom_op("solrl::nvfp4_quantize_plain", quantize, mutates_args=(), schema=_SCHEMA)
    registered.register_fake(shapes)


def _empty_scale(rows: Tensor, per_row: bool) -> Tensor:
    return torch.empty((rows.shape[0], 1) if per_row else (), dtype=torch.float32, device=rows.device)


def _launch(kernel: Any, x: Tensor, amax: Tensor, values: Tensor, decode: Tensor) -> None:
    """Fill ``values`` and ``decode``. ``x`` and ``values`` are contiguous; ``amax`` has one number for each scale."""
    blocks = x.numel() // BLOCK
    kernel[(-(-blocks // TILE),)](
        x, amax, values, decode, blocks, x.shape[1] // BLOCK, PER_ROW=amax.ndim > 0, TILE=TILE, num_warps=4
    )


@functools.cache
def _kernel() -> Any:
    import triton

    # The compiler looks names up in this module, which does without Triton until somebody needs it.
    globals()["tl"] = triton.language
    return triton.jit(_quantize_blocks)


def _quantize_blocks(
    x: tl.tensor,
    amax: tl.tensor,
    values: tl.tensor,
    decode: tl.tensor,
    blocks: tl.tensor,
    row_blocks: tl.tensor,
    PER_ROW: tl.constexpr,
    TILE: tl.constexpr,
) -> None:
    """Names are those of ``numerics.nvfp4``; 2688 = 6 * 448 and 3.4e38 is FLT_MAX. Maxima are taken over bit patterns:
    those of magnitudes are ordered as the numbers are, and NaN comes last."""
    first = tl.program_id(0) * TILE
    block = first + tl.arange(0, TILE)
    inside = block < blocks
    cells = block.to(tl.int64)[:, None] * 16 + tl.arange(0, 16)[None, :]
    number = tl.load(x + cells, mask=inside[:, None], other=0.0).to(tl.float32)
    group = block // row_blocks if PER_ROW else first * 0
    known = inside if PER_ROW else first >= 0
    largest = tl.load(amax + group, mask=known, other=0.0).to(tl.float32)

    ge = tl.minimum(tl.div_rn(2688.0, largest), 3.4028234663852886e38, propagate_nan=tl.PropagateNan.ALL)
    ge = tl.where(largest == 0.0, 1.0, ge)
    gd = tl.div_rn(1.0, ge)
    tl.store(decode + group, gd, mask=known & (block % row_blocks == 0 if PER_ROW else first == 0))

    bits = number.to(tl.int32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    va = tl.max(magnitude, 1).to(tl.float32, bitcast=True)
    scale = tl.minimum(va * (ge * 0.1666666716337204), 448.0, propagate_nan=tl.PropagateNan.ALL)
    # E4M3: 3 bits of mantissa, 1.5 * 2**(23 - 3) times the power of two, which is at least 2**-6.
    power = tl.maximum(scale.to(tl.int32, bitcast=True) & 0x7F800000, 121 << 23).to(tl.float32, bitcast=True)
    ds = (scale + power * 1572864.0) - power * 1572864.0
    es = tl.minimum(tl.div_rn(1.0, ds * gd), 3.4028234663852886e38, propagate_nan=tl.PropagateNan.ALL)

    y = number * es[:, None]
    y = tl.minimum(y, 6.0, propagate_nan=tl.PropagateNan.ALL)
    y = tl.maximum(y, -6.0, propagate_nan=tl.PropagateNan.ALL)
    # E2M1: 1 bit of mantissa, 1.5 * 2**(23 - 1), and the power at least 1.
    power = tl.maximum(y.to(tl.int32, bitcast=True) & 0x7F800000, 127 << 23).to(tl.float32, bitcast=True)
    code = (y + power * 6291456.0) - power * 6291456.0
    value = (code * ds[:, None]).to(tl.int32, bitcast=True) | (bits ^ magnitude)
    value = value.to(tl.float32, bitcast=True)
    tl.store(values + cells, value.to(values.dtype.element_ty), mask=inside[:, None])
