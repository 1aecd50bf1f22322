"""Grids of noise levels, from pure noise (1) to data (0).

A grid for n steps has n + 1 float64 levels, strictly decreasing. They are computed here rather than taken
from a library, because a library's may change between releases; a stored table guards them.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

SMALLEST = 1e-3
"""The smallest level of the 1000 that diffusers' schedulers are trained with."""


def linear(steps: int) -> list[float]:
    """Equally spaced levels."""
    return shifted(steps, 1.0)


def shifted(steps: int, shift: float) -> list[float]:
    """Equally spaced levels s moved towards noise: shift s / (shift s + 1 - s), arXiv 2403.03206 eq. 23.

    Raises:
        ValueError: ``steps`` or ``shift`` is not positive.
    """
    _require_positive(steps, shift)
    levels = [(steps - i) / steps for i in range(steps)]
    return [_shift(s, shift) for s in levels] + [0.0]


def to_smallest(steps: int, shift: float, smallest: float = SMALLEST) -> list[float]:
    """Equal steps from 1 down to ``smallest``, shifted, and 0 after them.

    Raises:
        ValueError: ``steps`` or ``shift`` is not positive.
    """
    _require_positive(steps, shift)
    levels = [1.0 + (smallest - 1.0) * i / (steps - 1) for i in range(steps)] if steps > 1 else [1.0]
    return [_shift(s, shift) for s in levels] + [0.0]


def shifted_twice(steps: int, shift: float) -> list[float]:
    """What diffusers' FlowMatchEulerDiscreteScheduler walks where a pipeline leaves the levels to it (SD3).

    Its smallest level is shifted before it is made the end of the grid, and with the grid again. It is tiny whatever
    the number of steps, so the step that leads to it is long: see ``Dpm2``.

    Raises:
        ValueError: ``steps`` or ``shift`` is not positive.
    """
    _require_positive(steps, shift)
    return to_smallest(steps, shift, _shift(SMALLEST, shift))


def flow(steps: int, shift: float) -> list[float]:
    """What diffusers' DPMSolverMultistepScheduler walks with flow sigmas (SANA): equal steps from 0.999, shifted.

    Raises:
        ValueError: ``steps`` or ``shift`` is not positive.
    """
    _require_positive(steps, shift)
    return [_shift((1.0 - SMALLEST) * (steps - i) / steps, shift) for i in range(steps)] + [0.0]


def dynamic_shift(
    image_tokens: int,
    *,
    base_shift: float = 0.5,
    max_shift: float = 1.15,
    base_tokens: int = 256,
    max_tokens: int = 4096,
    shift_type: str = "exponential",
) -> float:
    """How far FLUX's levels of an image of some size are ``shifted``: the more, the larger it is.

    mu runs linearly from ``base_shift`` at ``base_tokens`` to ``max_shift`` at ``max_tokens`` image tokens,
    and on beyond both; the shift is exp(mu), or mu itself where ``shift_type`` is ``linear``.

    Raises:
        ValueError: ``shift_type`` is unknown.
    """
    mu = base_shift + (max_shift - base_shift) * (image_tokens - base_tokens) / (max_tokens - base_tokens)
    if shift_type == "exponential":
        return math.exp(mu)
    if shift_type == "linear":
        return mu
    raise ValueError(f"unknown shift type {shift_type!r}: exponential and linear are known")


def _shift(level: float, shift: float) -> float:
    return shift * level / (shift * level + (1.0 - level))


def _require_positive(steps: int, shift: float) -> None:
    if steps < 1 or not shift > 0:
        raise ValueError(f"a sigma grid needs at least one step and a positive shift, found {steps} and {shift}")


def check(sigmas: Sequence[float]) -> None:
    """Refuse a grid that a sampler cannot walk.

    Raises:
        ValueError: it has no step, does not decrease strictly, leaves [0, 1], or does not end at 0.
    """
    falling = all(a > b for a, b in pairwise(sigmas))
    if len(sigmas) < 2 or not falling or not sigmas[0] <= 1.0 or sigmas[-1] != 0.0:
        raise ValueError(f"a sigma grid falls strictly from at most 1 to exactly 0, found {list(sigmas)}")
