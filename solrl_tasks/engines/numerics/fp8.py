"""FP8 quantisation by rows: E4M3 values (4 exponent bits, 3 of mantissa, at most 448) and one float32 scale a row.

Every operation is float32, rounded once, written fl(.)::

    amax = max(max|x| over the row, 1e-12)
    scale = fl(amax * fl(1/448))
    value = e4m3(fl(x * fl(448 / amax)))

e4m3 rounds to nearest, ties to even; what it is given exceeds 448 by no more than float32's own rounding. What a number
stands for is value * scale. The floor of amax keeps fl(448 / amax) finite: a row of zeros has values of zero. A NaN or
an infinity leaves no number of its row finite.

The layers before a matrix multiplication have functions of their own here, which say in float32 what the fused kernels
compute: nothing is rounded between the layer and the quantiser.
"""

from typing import Final, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

E4M3: Final = torch.float8_e4m3fn
E4M3_MAX: Final = 448.0
AMAX_MIN: Final = 1e-12
MULTIPLE: Final = 16
"""Inputs and outputs of a layer come in multiples of this: matrix multiplications of the hardware need it."""


class Quantized(NamedTuple):
    """A matrix quantised by rows.

    Attributes:
        values: E4M3, [rows, columns], contiguous.
        scale: float32, [rows, 1]; values * scale is the matrix that the numbers stand for.
    """

    values: Tensor
    scale: Tensor

    def dequantize(self) -> Tensor:
        """The matrix that the numbers stand for, float32."""
        return self.values.float() * self.scale


def quantize_rows(x: Tensor) -> Quantized:
    """Quantise x [..., columns], of which all but the last dimension count as rows."""
    rows = x.reshape(-1, x.shape[-1])
    amax = rows.abs().amax(1, keepdim=True).float().clamp_min(AMAX_MIN)
    # A number divided by a tensor would be its reciprocal times the number, rounded twice.
    inverse = torch.full_like(amax, E4M3_MAX).div(amax)
    return Quantized((rows.float() * inverse).to(E4M3), amax * (1.0 / E4M3_MAX))


def gelu_quantize_rows(x: Tensor, prefix: Tensor | None = None) -> Quantized:
    """Quantise gelu(x), tanh approximation, behind ``prefix`` in the same row if there is one."""
    activated = functional.gelu(x.float(), approximate="tanh")
    return quantize_rows(activated if prefix is None else torch.cat([prefix.float(), activated], dim=-1))


def gate_quantize_rows(x: Tensor) -> Quantized:
    """Quantise a * silu(b), where a row of x is a and b one after the other."""
    value, gate = x.float().chunk(2, dim=-1)
    return quantize_rows(value * functional.silu(gate))


def modulate_quantize_rows(x: Tensor, modulation: Tensor, shift: int, scale: int, eps: float) -> Quantized:
    """Quantise the adaptive layer norm norm(x) * (1 + scale) + shift.

    Args:
        x: [batch, tokens, columns].
        modulation: [batch, parts * columns]: several vectors of an image, one after the other.
        shift, scale: which of the parts these are.
        eps: of the norm, which has no weights of its own.
    """
    columns = x.shape[-1]
    normed = functional.layer_norm(x.float(), (columns,), eps=eps)
    parts = modulation.float().view(len(modulation), -1, 1, columns)
    return quantize_rows(normed * (1 + parts[:, scale]) + parts[:, shift])


def multiply(x: Quantized, weight: Tensor, weight_scale: Tensor, bias: Tensor | None) -> Tensor:
    """x times a quantised weight, emulated: products of E4M3 values summed in float32, then scaled, then the bias.

    Args:
        weight: E4M3, [out, in].
        weight_scale: float32, [1, out].
        bias: [out].

    Returns:
        float32, [rows, out].
    """
    product = torch.mm(x.values.float(), weight.float().t()) * (x.scale * weight_scale)
    return product if bias is None else product + bias.float()


def why_not(rows: int, columns: int) -> str | None:
    """Why a weight [rows, columns] cannot be used in FP8, or None."""
    for size, side in ((columns, "input"), (rows, "output")):
        if size % MULTIPLE:
            return f"{size} {side} features are not a multiple of {MULTIPLE}"
    return None
