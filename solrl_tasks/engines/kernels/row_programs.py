"""The programs of ``rows``, for Triton. One program is one row; names are those of ``numerics.fp8``.

A row is a first part of HEAD columns and a second part that TAIL columns hold, both powers of two.
"""

# Annotations have to stay text: Triton reads them, and is not there when they would be evaluated.
from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import triton.language as tl


@functools.cache
def kernels() -> dict[str, Any]:
    """The compiled kernels by name. Needs Triton."""
    import triton

    # The compiler looks names up in this module, which does without Triton until somebody needs it.
    globals()["tl"] = triton.language
    for helper in (_magnitude, _divisor, _gelu, _gated):
        globals()[helper.__name__] = triton.jit(helper)
    bodies = {
        "quantize": _quantize_kernel,
        "gelu": _gelu_kernel,
        "gate": _gate_kernel,
        "modulate": _modulate_kernel,
        "merge": _merge_kernel,
    }
    return {name: triton.jit(body) for name, body in bodies.items()}


def _magnitude(number: tl.tensor) -> tl.tensor:
    """Bits of |number|: ordered as the numbers are, and NaN comes last, which a maximum of floats would drop."""
    return tl.max(number.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 0)


def _divisor(magnitude: tl.tensor) -> tl.tensor:
    return tl.maximum(magnitude.to(tl.float32, bitcast=True), 1e-12, propagate_nan=tl.PropagateNan.ALL)


def _gelu(x: tl.tensor) -> tl.tensor:
    """x (1 + tanh u) / 2 = x / (1 + exp(-2 u)) with u = sqrt(2 / pi) (x + 0.044715 x^3)."""
    return x / (1.0 + tl.exp(x * (-1.5957691216057308 - 0.07135481627260025 * x * x)))


def _gated(value: tl.tensor, gate: tl.tensor) -> tl.tensor:
    return value * (gate / (1.0 + tl.exp(-gate)))


def _quantize_kernel(
    x: tl.tensor,
    values: tl.tensor,
    scale: tl.tensor,
    COLUMNS: tl.constexpr,
    HEAD: tl.constexpr,
    TAIL: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    start = row * COLUMNS
    first = tl.arange(0, HEAD)
    a = tl.load(x + start + first).to(tl.float32)
    magnitude = _magnitude(a)
    if TAIL > 0:
        rest = HEAD + tl.arange(0, TAIL)
        inside = rest < COLUMNS
        b = tl.load(x + start + rest, mask=inside, other=0.0).to(tl.float32)
        magnitude = tl.maximum(magnitude, _magnitude(b))
    amax = _divisor(magnitude)
    inverse = tl.div_rn(448.0, amax)
    tl.store(scale + row, amax * 0.002232142857142857)
    tl.store(values + start + first, (a * inverse).to(values.dtype.element_ty))
    if TAIL > 0:
        tl.store(values + start + rest, (b * inverse).to(values.dtype.element_ty), mask=inside)


def _merge_kernel(
    base: tl.tensor,
    delta: tl.tensor,
    values: tl.tensor,
    scale: tl.tensor,
    COLUMNS: tl.constexpr,
    WITH_DELTA: tl.constexpr,
    HEAD: tl.constexpr,
    TAIL: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    start = row * COLUMNS
    first = tl.arange(0, HEAD)
    a = tl.load(base + start + first).to(tl.float32)
    if WITH_DELTA:
        a += tl.load(delta + start + first)
    magnitude = _magnitude(a)
    if TAIL > 0:
        rest = HEAD + tl.arange(0, TAIL)
        inside = rest < COLUMNS
        b = tl.load(base + start + rest, mask=inside, other=0.0).to(tl.float32)
        if WITH_DELTA:
            b += tl.load(delta + start + rest, mask=inside, other=0.0)
        magnitude = tl.maximum(magnitude, _magnitude(b))
    amax = _divisor(magnitude)
    inverse = tl.div_rn(448.0, amax)
    tl.store(scale + row, amax * 0.002232142857142857)
    tl.store(values + start + first, (a * inverse).to(values.dtype.element_ty))
    if TAIL > 0:
        tl.store(values + start + rest, (b * inverse).to(values.dtype.element_ty), mask=inside)


def _gelu_kernel(
    x: tl.tensor,
    front: tl.tensor,
    values: tl.tensor,
    scale: tl.tensor,
    COLUMNS: tl.constexpr,
    OTHERS: tl.constexpr,
    HEAD: tl.constexpr,
    TAIL: tl.constexpr,
    FRONT_HEAD: tl.constexpr,
    FRONT_TAIL: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    start = row * COLUMNS
    place = row * (COLUMNS + OTHERS)
    first = tl.arange(0, HEAD)
    a = _gelu(tl.load(x + start + first).to(tl.float32))
    magnitude = _magnitude(a)
    if TAIL > 0:
        rest = HEAD + tl.arange(0, TAIL)
        inside = rest < COLUMNS
        b = _gelu(tl.load(x + start + rest, mask=inside, other=0.0).to(tl.float32))
        magnitude = tl.maximum(magnitude, _magnitude(b))
    if FRONT_HEAD > 0:
        front_first = tl.arange(0, FRONT_HEAD)
        c = tl.load(front + row * OTHERS + front_first).to(tl.float32)
        magnitude = tl.maximum(magnitude, _magnitude(c))
    if FRONT_TAIL > 0:
        front_rest = FRONT_HEAD + tl.arange(0, FRONT_TAIL)
        front_inside = front_rest < OTHERS
        d = tl.load(front + row * OTHERS + front_rest, mask=front_inside, other=0.0).to(tl.float32)
        magnitude = tl.maximum(magnitude, _magnitude(d))
    amax = _divisor(magnitude)
    inverse = tl.div_rn(448.0, amax)
    tl.store(scale + row, amax * 0.002232142857142857)
    if FRONT_HEAD > 0:
        tl.store(values + place + front_first, (c * inverse).to(values.dtype.element_ty))
    if FRONT_TAIL > 0:
        tl.store(values + place + front_rest, (d * inverse).to(values.dtype.element_ty), mask=front_inside)
    tl.store(values + place + OTHERS + first, (a * inverse).to(values.dtype.element_ty))
    if TAIL > 0:
        tl.store(values + place + OTHERS + rest, (b * inverse).to(values.dtype.element_ty), mask=inside)


def _gate_kernel(
    x: tl.tensor,
    values: tl.tensor,
    scale: tl.tensor,
    COLUMNS: tl.constexpr,
    HEAD: tl.constexpr,
    TAIL: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    start = row * COLUMNS
    pair = x + 2 * start
    first = tl.arange(0, HEAD)
    a = _gated(tl.load(pair + first).to(tl.float32), tl.load(pair + COLUMNS + first).to(tl.float32))
    magnitude = _magnitude(a)
    if TAIL > 0:
        rest = HEAD + tl.arange(0, TAIL)
        inside = rest < COLUMNS
        value = tl.load(pair + rest, mask=inside, other=0.0).to(tl.float32)
        b = _gated(value, tl.load(pair + COLUMNS + rest, mask=inside, other=0.0).to(tl.float32))
        magnitude = tl.maximum(magnitude, _magnitude(b))
    amax = _divisor(magnitude)
    inverse = tl.div_rn(448.0, amax)
    tl.store(scale + row, amax * 0.002232142857142857)
    tl.store(values + start + first, (a * inverse).to(values.dtype.element_ty))
    if TAIL > 0:
        tl.store(values + start + rest, (b * inverse).to(values.dtype.element_ty), mask=inside)


def _modulate_kernel(
    x: tl.tensor,
    modulation: tl.tensor,
    values: tl.tensor,
    scale: tl.tensor,
    COLUMNS: tl.constexpr,
    TOKENS: tl.constexpr,
    STRIDE: tl.constexpr,
    SHIFT: tl.constexpr,
    SCALE: tl.constexpr,
    EPS: tl.constexpr,
    HEAD: tl.constexpr,
    TAIL: tl.constexpr,
) -> None:
    row = tl.program_id(0).to(tl.int64)
    start = row * COLUMNS
    vectors = modulation + (row // TOKENS) * STRIDE
    first = tl.arange(0, HEAD)
    a = tl.load(x + start + first).to(tl.float32)
    total = tl.sum(a, 0)
    if TAIL > 0:
        rest = HEAD + tl.arange(0, TAIL)
        inside = rest < COLUMNS
        b = tl.load(x + start + rest, mask=inside, other=0.0).to(tl.float32)
        total += tl.sum(b, 0)
    mean = total / COLUMNS
    a -= mean
    squares = tl.sum(a * a, 0)
    if TAIL > 0:
        b = tl.where(inside, b - mean, 0.0)
        squares += tl.sum(b * b, 0)
    spread = tl.div_rn(1.0, tl.sqrt_rn(squares / COLUMNS + EPS))
    factor = 1.0 + tl.load(vectors + SCALE + first).to(tl.float32)
    a = (a * spread) * factor + tl.load(vectors + SHIFT + first).to(tl.float32)
    magnitude = _magnitude(a)
    if TAIL > 0:
        factor_rest = 1.0 + tl.load(vectors + SCALE + rest, mask=inside, other=0.0).to(tl.float32)
        b = (b * spread) * factor_rest + tl.load(vectors + SHIFT + rest, mask=inside, other=0.0).to(tl.float32)
        magnitude = tl.maximum(magnitude, _magnitude(b))
    amax = _divisor(magnitude)
    inverse = tl.div_rn(448.0, amax)
    tl.store(scale + row, amax * 0.002232142857142857)
    tl.store(values + start + first, (a * inverse).to(values.dtype.element_ty))
    if TAIL > 0:
        tl.store(values + start + rest, (b * inverse).to(values.dtype.element_ty), mask=inside)
