"""NVFP4 quantisation: FP4 codes (E2M1), one FP8 scale (E4M3) a block, one float32 scale a tensor or row.

The order of operations is that of Transformer Engine's reference quantiser (``NVFP4BlockScaling``, default
path). Every operation is float32, rounded once, written fl(.)::

    amax = max|x| over the tensor (or row)
    ge = min(fl(2688 / amax), FLT_MAX), 1 if amax is 0          gd = fl(1 / ge)
    va = max|x| over the block                                  ds = e4m3(min(fl(va * fl(ge * fl(1/6))), 448))
    es = min(fl(1 / fl(ds * gd)), FLT_MAX)                      code = e2m1(clamp(fl(x * es), -6, 6))

e4m3 and e2m1 round to nearest, ties to even. What a number stands for is code * ds * gd; code * ds is exact
in bfloat16 and is what the matrix multiplication takes.

A NaN or an infinity makes its whole tensor (or row) NaN.
"""

from typing import Final, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

BLOCK: Final = 16
ScaleMode = Literal["tensor", "row"]
BlockShape = Literal["1x16", "16x16"]

_E2M1_MAX: Final = 6.0
_E4M3_MAX: Final = 448.0
_FLT_MAX: Final = torch.finfo(torch.float32).max
_EXPONENT_BITS: Final = 0x7F800000
# Elements quantised together: on a CPU few enough that the buffers stay in cache between passes, and so many
# that the cost of calling an operation does not show (measured: 2**15 takes 1.6 times as long as 2**17).
_PIECE: Final = {"cpu": 1 << 17}
_PIECE_DEFAULT: Final = 1 << 26


class Quantized(NamedTuple):
    """A quantised matrix.

    Attributes:
        values: code * block scale, [rows, columns], exact in float32 and in bfloat16; zeros keep their sign.
        scale: gd, float32, a scalar or [rows, 1]; values * scale is the matrix that the numbers stand for.
    """

    values: Tensor
    scale: Tensor


def quantize_activation(x: Tensor, scale: ScaleMode = "tensor", out: Tensor | None = None) -> Quantized:
    """Quantise activations in blocks of 16 along a row.

    Args:
        x: [rows, columns], float32, float16 or bfloat16; columns a multiple of 16.
        scale: one global scale for the tensor, or one a row, which makes rows independent of each other.
        out: contiguous [rows, columns], float32 or bfloat16, receives the values; float32 is made if absent.

    Raises:
        ValueError: the shape is not a matrix of whole blocks.
    """
    check_blocks(x, 1)
    rows, columns = x.shape
    values = torch.empty(x.shape, dtype=torch.float32, device=x.device) if out is None else out
    encode = _global_encode(_amax(x)) if scale == "tensor" else None
    decode = x.new_empty((rows, 1), dtype=torch.float32) if encode is None else encode.reciprocal()
    step = max(1, _PIECE.get(x.device.type, _PIECE_DEFAULT) // columns)
    scratch = torch.empty(2, min(step, rows), columns, dtype=torch.float32, device=x.device)
    for start in range(0, rows, step):
        piece = slice(start, start + step)
        own = _quantize_piece(x[piece].float().contiguous(), encode, values[piece], scratch)
        if encode is None:
            decode[piece] = own
    return Quantized(values, decode)


def quantize_weight(weight: Tensor, block: BlockShape = "1x16", out: Tensor | None = None) -> Quantized:
    """Quantise a weight matrix with one global scale.

    Args:
        weight: [out, in]; in, and for 16x16 blocks out as well, a multiple of 16.
        block: the shape that shares an E4M3 scale.
        out: as for ``quantize_activation``.

    Raises:
        ValueError: the shape is not a matrix of whole blocks.
    """
    if block == "1x16":
        return quantize_activation(weight, out=out)
    check_blocks(weight, BLOCK)
    values = torch.empty(weight.shape, dtype=torch.float32, device=weight.device) if out is None else out
    exact = weight.float().contiguous()
    rows, columns = exact.shape
    tiles = exact.abs().view(rows // BLOCK, BLOCK, columns // BLOCK, BLOCK).amax(dim=(1, 3))
    encode = _global_encode(_amax(exact))
    decode = encode.reciprocal()
    block_scale = _block_scale(tiles.repeat_interleave(BLOCK, 0), encode)
    values.copy_(_encode(exact, block_scale, decode, torch.empty_like(exact), torch.empty_like(exact)))
    return Quantized(values, decode)


def why_not(rows: int, columns: int, block: BlockShape) -> str | None:
    """Why a weight [rows, columns] cannot be quantised in whole blocks; None if it can."""
    if columns % BLOCK:
        return f"{columns} input features are not a multiple of {BLOCK}"
    if block == "16x16" and rows % BLOCK:
        return f"{rows} output features are not a multiple of {BLOCK}"
    return None


def check_blocks(x: Tensor, rows: int) -> None:
    """Refuse what is not a matrix of whole blocks of ``rows`` x 16, with a ``ValueError``."""
    if x.ndim != 2 or x.shape[1] == 0 or x.shape[1] % BLOCK or x.shape[0] % rows:
        raise ValueError(f"NVFP4 needs a matrix of whole {rows}x{BLOCK} blocks, found shape {list(x.shape)}")


def _amax(x: Tensor) -> Tensor:
    if x.numel() == 0:
        return torch.zeros((), device=x.device)
    low, high = torch.aminmax(x)
    return torch.maximum(-low, high).float()


def _global_encode(amax: Tensor) -> Tensor:
    # A tensor numerator: a Python number would be multiplied by a reciprocal, which rounds once more.
    encode = torch.div(torch.full_like(amax, _E2M1_MAX * _E4M3_MAX), amax).clamp_(max=_FLT_MAX)
    return encode.masked_fill_(amax == 0, 1.0)


def _quantize_piece(x: Tensor, encode: Tensor | None, values: Tensor, scratch: Tensor) -> Tensor:
    """Fill ``values`` from contiguous float32 ``x``; returns gd. Without ``encode`` each row has its own."""
    magnitude, result = scratch[:, : x.shape[0]]
    if values.dtype == torch.float32:
        result = values
    block_amax = _row_block_amax(torch.abs(x, out=magnitude))
    if encode is None:
        encode = _global_encode(block_amax.amax(1, keepdim=True))
    decode = encode.reciprocal()
    _encode(x, _block_scale(block_amax, encode), decode, result, magnitude)
    if result is not values:
        values.copy_(result)
    return decode


def _row_block_amax(magnitude: Tensor) -> Tensor:
    rows, columns = magnitude.shape
    if magnitude.device.type == "cpu":
        # Twice as fast as a reduction over so short a dimension; propagates NaN as well.
        return functional.max_pool1d(magnitude.view(1, 1, -1), BLOCK).view(rows, columns // BLOCK)
    return magnitude.view(rows, columns // BLOCK, BLOCK).amax(2)


def _block_scale(block_amax: Tensor, encode: Tensor) -> Tensor:
    sixth = encode * torch.full_like(encode, 1.0 / _E2M1_MAX)
    scale = (block_amax * sixth).clamp_(max=_E4M3_MAX)
    return _round_(scale, torch.empty_like(scale), mantissa_bits=3, min_exponent=-6)


def _encode(x: Tensor, block_scale: Tensor, decode: Tensor, out: Tensor, scratch: Tensor) -> Tensor:
    """code * ds of contiguous float32 ``x`` into ``out``; ``scratch`` is overwritten."""
    encode = (block_scale * decode).reciprocal_().clamp_(max=_FLT_MAX)
    blocks = out.view(-1, BLOCK)
    torch.mul(x.view(-1, BLOCK), encode.view(-1, 1), out=blocks)
    _round_(out.clamp_(-_E2M1_MAX, _E2M1_MAX), scratch, mantissa_bits=1, min_exponent=0)
    blocks.mul_(block_scale.view(-1, 1))
    return out.copysign_(x)


def _round_(x: Tensor, scratch: Tensor, mantissa_bits: int, min_exponent: int) -> Tensor:
    """Round float32 in place to ``mantissa_bits``, ties to even, with subnormals below 2 ** min_exponent.

    Adding 1.5 * 2 ** (23 - mantissa_bits) times a number's power of two pushes the bits to be dropped
    out of the float32 mantissa, and the addition itself rounds them half to even. The product is exact, fused
    or not.
    """
    power = torch.bitwise_and(x.view(torch.int32), _EXPONENT_BITS, out=scratch.view(torch.int32))
    power = power.clamp_min_((127 + min_exponent) << 23).view(torch.float32)
    shift = 1.5 * 2.0 ** (23 - mantissa_bits)
    return x.add_(power, alpha=shift).sub_(power, alpha=shift)
