"""FP8 quantisation by rows in one pass over memory, alone or together with the layer that comes before.

Each function gives what the function of the same name in ``numerics.fp8`` gives: the very bits where there is no layer
in front, else within the rounding of float32, which now and then turns the rounding to E4M3. On CUDA they are operators
of torch around a Triton kernel, so that graphs compiled as a whole can contain them; elsewhere they are the functions
of ``numerics.fp8`` themselves.

A row lies in the registers of one program: its first, longest part that is a power of two, and a second part for the
rest. So nothing is read twice, and few lanes idle whatever the width.
"""

import functools
from typing import Any, Final

import torch
from torch import Tensor

from solrl_tasks.engines.kernels.row_programs import kernels
from solrl_tasks.engines.numerics import fp8
from solrl_tasks.engines.numerics.fp8 import E4M3, Quantized

WIDEST: Final = 1 << 15
"""Columns that fit into the registers of one program."""
_COLUMNS_A_WARP: Final = 512
_MOST_WARPS: Final = 16


def quantize_rows(x: Tensor) -> Quantized:
    """See ``numerics.fp8``; the same bits."""
    if x.is_cuda and x.numel() and x.shape[-1] <= WIDEST:
        return Quantized(*torch.ops.solrl.fp8_quantize_rows.default(x))
    return fp8.quantize_rows(x)


def gelu_quantize_rows(x: Tensor, prefix: Tensor | None = None) -> Quantized:
    """See ``numerics.fp8``."""
    if not x.is_cuda:
        return fp8.gelu_quantize_rows(x, prefix)
    if prefix is None:
        return Quantized(*torch.ops.solrl.fp8_gelu_quantize_rows.default(x))
    return Quantized(*torch.ops.solrl.fp8_concat_gelu_quantize_rows.default(x, prefix))


def gate_quantize_rows(x: Tensor) -> Quantized:
    """See ``numerics.fp8``."""
    return Quantized(*torch.ops.solrl.fp8_gate_quantize_rows.default(x)) if x.is_cuda else fp8.gate_quantize_rows(x)


def modulate_quantize_rows(x: Tensor, modulation: Tensor, shift: int, scale: int, eps: float) -> Quantized:
    """See ``numerics.fp8``."""
    if not x.is_cuda:
        return fp8.modulate_quantize_rows(x, modulation, shift, scale, eps)
    return Quantized(*torch.ops.solrl.fp8_modulate_quantize_rows.default(x, modulation, shift, scale, eps))


def merge_quantize_rows(base: Tensor, delta: Tensor | None, values: Tensor, scale: Tensor) -> None:
    """Quantise base + delta, added in float32, into tensors that exist; not for compiled graphs.

    Args:
        base: [rows, columns], contiguous.
        delta: float32, likewise.
        values: E4M3, likewise.
        scale: float32, [rows], receives the scales.
    """
    if base.is_cuda and base.shape[1] <= WIDEST:
        launch_merge(kernels()["merge"], base, delta, values, scale)
        return
    quantized = fp8.quantize_rows(base.float() if delta is None else base + delta)
    values.copy_(quantized.values)
    scale.copy_(quantized.scale.flatten())


@functools.cache
def register() -> None:
    """Make the operators; to be called before a graph with them is traced or run on CUDA. Needs Triton."""
    from torch.library import triton_op, wrap_triton

    compiled = kernels()
    # By names of their own: torch looks in the source for what it wraps.
    of_quantize, of_gelu, of_gate, of_modulate = (compiled[name] for name in ("quantize", "gelu", "gate", "modulate"))

    def quantize(x: Tensor) -> tuple[Tensor, Tensor]:
        return launch_quantize(wrap_triton(of_quantize), x)

    def gelu(x: Tensor) -> tuple[Tensor, Tensor]:
        return launch_gelu(wrap_triton(of_gelu), x, None)

    def concat_gelu(x: Tensor, prefix: Tensor) -> tuple[Tensor, Tensor]:
        return launch_gelu(wrap_triton(of_gelu), x, prefix)

    def gate(x: Tensor) -> tuple[Tensor, Tensor]:
        return launch_gate(wrap_triton(of_gate), x)

    def modulate(x: Tensor, modulation: Tensor, shift: int, scale: int, eps: float) -> tuple[Tensor, Tensor]:
        return launch_modulate(wrap_triton(of_modulate), x, modulation, shift, scale, eps)

    triton_op("solrl::fp8_quantize_rows", quantize, mutates_args=())
    triton_op("solrl::fp8_gelu_quantize_rows", gelu, mutates_args=())
    triton_op("solrl::fp8_concat_gelu_quantize_rows", concat_gelu, mutates_args=())
    triton_op("solrl::fp8_gate_quantize_rows", gate, mutates_args=())
    triton_op("solrl::fp8_modulate_quantize_rows", modulate, mutates_args=())


# Each of these takes a kernel as ``kernels`` gives it, or wrapped by torch. ``values`` are E4M3, unless the kernel is
# interpreted: the interpreter rounds ties of E4M3 the wrong way, so it is given float32 to leave them unrounded.


def launch_quantize(kernel: Any, x: Tensor, values: torch.dtype = E4M3, warps: int = 0) -> tuple[Tensor, Tensor]:
    """x [..., columns] -> values [rows, columns], scale [rows, 1]."""
    rows = x.reshape(-1, x.shape[-1]).contiguous()
    columns = rows.shape[1]
    result, scale = _results(rows, columns, values)
    head, tail = split(columns)
    kernel[(rows.shape[0],)](
        rows, result, scale, COLUMNS=columns, HEAD=head, TAIL=tail, num_warps=warps or count_warps(columns)
    )
    return result, scale


def launch_gelu(
    kernel: Any, x: Tensor, prefix: Tensor | None, values: torch.dtype = E4M3, warps: int = 0
) -> tuple[Tensor, Tensor]:
    """x [..., columns], prefix [..., others] -> values [rows, others + columns], scale [rows, 1]."""
    rows = x.reshape(-1, x.shape[-1]).contiguous()
    front = rows if prefix is None else prefix.reshape(-1, prefix.shape[-1]).contiguous()
    others, columns = 0 if prefix is None else front.shape[1], rows.shape[1]
    result, scale = _results(rows, others + columns, values)
    (head, tail), (front_head, front_tail) = split(columns), split(others)
    kernel[(rows.shape[0],)](
        rows,
        front,
        result,
        scale,
        COLUMNS=columns,
        OTHERS=others,
        HEAD=head,
        TAIL=tail,
        FRONT_HEAD=front_head,
        FRONT_TAIL=front_tail,
        num_warps=warps or count_warps(others + columns),
    )
    return result, scale


def launch_gate(kernel: Any, x: Tensor, values: torch.dtype = E4M3, warps: int = 0) -> tuple[Tensor, Tensor]:
    """x [..., 2 columns] -> values [rows, columns], scale [rows, 1]."""
    rows = x.reshape(-1, x.shape[-1]).contiguous()
    columns = rows.shape[1] // 2
    result, scale = _results(rows, columns, values)
    head, tail = split(columns)
    kernel[(rows.shape[0],)](
        rows, result, scale, COLUMNS=columns, HEAD=head, TAIL=tail, num_warps=warps or count_warps(columns)
    )
    return result, scale


def launch_modulate(
    kernel: Any,
    x: Tensor,
    modulation: Tensor,
    shift: int,
    scale: int,
    eps: float,
    values: torch.dtype = E4M3,
    warps: int = 0,
) -> tuple[Tensor, Tensor]:
    """x [batch, tokens, columns], modulation [batch, parts * columns] -> values [rows, columns], scale [rows, 1]."""
    rows = x.reshape(-1, x.shape[-1]).contiguous()
    columns = rows.shape[1]
    result, scales = _results(rows, columns, values)
    head, tail = split(columns)
    kernel[(rows.shape[0],)](
        rows,
        modulation.contiguous(),
        result,
        scales,
        COLUMNS=columns,
        TOKENS=x.shape[1],
        STRIDE=modulation.shape[1],
        SHIFT=shift * columns,
        SCALE=scale * columns,
        EPS=eps,
        HEAD=head,
        TAIL=tail,
        num_warps=warps or count_warps(columns),
    )
    return result, scales


def launch_merge(kernel: Any, base: Tensor, delta: Tensor | None, values: Tensor, scale: Tensor) -> None:
    """See ``merge_quantize_rows``."""
    columns = base.shape[1]
    head, tail = split(columns)
    base = base.contiguous()
    kernel[(base.shape[0],)](
        base,
        base if delta is None else delta,
        values,
        scale,
        COLUMNS=columns,
        WITH_DELTA=delta is not None,
        HEAD=head,
        TAIL=tail,
        num_warps=count_warps(columns),
    )


def _results(rows: Tensor, columns: int, values: torch.dtype) -> tuple[Tensor, Tensor]:
    result = torch.empty((rows.shape[0], columns), dtype=values, device=rows.device)
    return result, torch.empty((rows.shape[0], 1), dtype=torch.float32, device=rows.device)


def split(columns: int) -> tuple[int, int]:
    """The widths of the two parts of a row, powers of two: the first is filled, the second (or 0) holds the rest."""
    if columns == 0:
        return 0, 0
    head = 1 << (columns.bit_length() - 1)
    return head, 1 << (columns - head - 1).bit_length() if columns > head else 0


def count_warps(columns: int) -> int:
    """Warps of the program for a row: a power of two that gives each thread some 16 to 32 numbers."""
    return 1 << min(max(columns // _COLUMNS_A_WARP, 1), _MOST_WARPS).bit_length() - 1
