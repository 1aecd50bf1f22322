"""Signed distances of the six shapes, shared by the renderer and by the checker's templates."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from solrl_tasks.scenes.grammar import SHAPES


def _circle(x: Tensor, y: Tensor) -> Tensor:
    return torch.hypot(x, y) - 0.95


def _square(x: Tensor, y: Tensor) -> Tensor:
    return torch.maximum(x.abs(), y.abs()) - 0.82


def _triangle(x: Tensor, y: Tensor) -> Tensor:
    slant = (1.75 * x.abs() - 0.95 * y) / math.hypot(1.75, 0.95) - 0.477
    return torch.maximum(y - 0.75, slant)


def _ring(x: Tensor, y: Tensor) -> Tensor:
    return (torch.hypot(x, y) - 0.7).abs() - 0.26


def _cross(x: Tensor, y: Tensor) -> Tensor:
    upright = torch.maximum(x.abs() - 0.3, y.abs() - 0.95)
    flat = torch.maximum(x.abs() - 0.95, y.abs() - 0.3)
    return torch.minimum(upright, flat)


def _star(x: Tensor, y: Tensor) -> Tensor:
    # One tenth of the star is enough: fold the plane onto the sector between a tip and its inner corner.
    sector = math.pi / 5
    angle = (torch.remainder(torch.atan2(x, -y) + sector, 2 * sector) - sector).abs()
    along, across = torch.hypot(x, y) * torch.cos(angle), torch.hypot(x, y) * torch.sin(angle)
    tip, inner = 1.08, 0.48
    edge = (inner * math.cos(sector) - tip, inner * math.sin(sector))
    length = math.hypot(*edge)
    return (edge[1] * (along - tip) - edge[0] * across) / length


_DISTANCES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "circle": _circle,
    "square": _square,
    "triangle": _triangle,
    "ring": _ring,
    "cross": _cross,
    "star": _star,
}


def distance(shape: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Signed distance to the outline (negative inside), in units of the object's radius.

    `shape`: integer indices into `SHAPES`; `x` to the right and `y` downwards from the centre, in radii. All three
    broadcast against each other.
    """
    first, *others = SHAPES
    out = _DISTANCES[first](x, y)
    for index, name in enumerate(others, start=1):
        out = torch.where(shape == index, _DISTANCES[name](x, y), out)
    return out


def outline(name: str, x: Tensor, y: Tensor) -> Tensor:
    """Signed distance to the outline of one named shape; arguments as for `distance`."""
    return _DISTANCES[name](x, y)
