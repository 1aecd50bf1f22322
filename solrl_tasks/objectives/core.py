"""The arithmetic that trajectory-free objectives share.

t = 1 is noise and t = 0 is data: ``x_t = (1 - t) x0 + t eps``, and the velocity of a sample is ``eps - x0``.
All of it runs in float32 or better, whatever autocast or the inputs say: a squared reward multiplier
overflows float16.
"""

import torch
from torch import Tensor


def precise(x: Tensor) -> Tensor:
    """The tensor in float32, or in float64 if it is that already."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def per_row(values: Tensor, like: Tensor) -> Tensor:
    """``[B]`` values shaped to multiply ``[B, ...]``."""
    return precise(values).reshape(-1, *[1] * (like.ndim - 1))


def row_mean(x: Tensor) -> Tensor:
    """``[B, ...]`` averaged over everything but the batch: ``[B]``."""
    return x.flatten(1).mean(dim=1)


def noised(x0: Tensor, eps: Tensor, t: Tensor) -> Tensor:
    """``(1 - t) x0 + t eps``, ``[B, ...]``.

    Args:
        t: ``[B]``.
    """
    level = per_row(t, x0)
    return (1 - level) * precise(x0) + level * precise(eps)


def target_velocity(x0: Tensor, eps: Tensor) -> Tensor:
    """The flow-matching target ``y = eps - x0``, ``[B, ...]``."""
    return precise(eps) - precise(x0)


def squared_distance(a: Tensor, b: Tensor) -> Tensor:
    """``mean (a - b)^2`` over everything but the batch: ``[B]``."""
    return row_mean((precise(a) - precise(b)).square())


def core_gradient(
    advantage: Tensor,
    target: Tensor,
    baseline: Tensor,
    current: Tensor,
    old: tuple[Tensor | float, Tensor] | None = None,
    reference: tuple[Tensor | float, Tensor] | None = None,
) -> Tensor:
    """The direction in which every trajectory-free objective pushes the current velocity.

        g = A (v_b - y) + lam_old (v - v_old) + lam_ref (v - v_ref)

    DiffusionNFT (arXiv 2509.16117) has ``v_b = v_old``, ``lam_old = clip * beta`` and a small ``lam_ref``.
    RAM (arXiv 2605.10759) has ``lam_old = 0`` and ``lam_ref = 1 / multiplier``. AWM (arXiv 2509.25050),
    on-policy, has ``v_b = v`` and ``lam_ref`` its KL weight. They differ in these coefficients and in how
    rows are weighted.

    Args:
        advantage: ``[B]``, A.
        target: ``[B, ...]``, y.
        baseline: ``[B, ...]``, v_b.
        current: ``[B, ...]``, v.
        old: lam_old (a number or ``[B]``) and v_old.
        reference: lam_ref and v_ref.

    Returns:
        ``[B, ...]``, detached.
    """
    v = precise(current.detach())
    gradient = per_row(advantage, v) * (precise(baseline.detach()) - precise(target))
    for pull in (old, reference):
        if pull is not None:
            weight, anchor = pull
            factor = per_row(weight, v) if isinstance(weight, Tensor) else weight
            gradient = gradient + factor * (v - precise(anchor.detach()))
    return gradient


def follow(current: Tensor, gradient: Tensor) -> Tensor:
    """A per-row loss whose gradient with respect to ``current`` is ``2 gradient / D``.

    D is the number of values in a row. The loss's value is the mean square of ``gradient``.

    Returns:
        ``[B]``.
    """
    return squared_distance(current, current.detach() - gradient)
