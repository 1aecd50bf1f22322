"""Classifier-free guidance (arXiv 2207.12598)."""

from collections.abc import Callable

import torch
from torch import Tensor

from solrl_tasks.models.families.base import Conditioning

Predict = Callable[[Tensor, Tensor, Conditioning], Tensor]
"""(x [B, C, H, W], sigma [B], conditioning of B rows) to a velocity [B, C, H, W], float32."""
_PREFIX = "negative_"


def with_negative(conditioning: Conditioning, negative: Conditioning) -> Conditioning:
    """Prompts together with one negative prompt, the same for all rows.

    Args:
        negative: one row.
    """
    rows = len(conditioning)
    repeated = {f"{_PREFIX}{name}": t.expand(rows, *t.shape[1:]) for name, t in negative.tensors.items()}
    return Conditioning({**conditioning.tensors, **repeated})


def guided(predict: Predict, x: Tensor, sigma: Tensor, conditioning: Conditioning, scale: float) -> Tensor:
    """v(negative) + scale * (v(prompt) - v(negative)), both from one forward pass of twice the rows.

    With a scale of 1 it is v(prompt), and negative prompts are neither needed nor looked at.

    Raises:
        ValueError: the conditioning has another number of rows, or lacks the negative prompt.
    """
    if len(conditioning) != len(x):
        raise ValueError(f"{len(x)} latents have {len(conditioning)} rows of conditioning")
    if scale == 1.0:
        return predict(x, sigma, conditioning)
    positive = {n: t for n, t in conditioning.tensors.items() if not n.startswith(_PREFIX)}
    missing = [name for name in positive if f"{_PREFIX}{name}" not in conditioning.tensors]
    if missing:
        raise ValueError(f"guidance needs a negative prompt, but the conditioning has none for {', '.join(missing)}")
    both = Conditioning(
        {name: torch.cat([conditioning.tensors[f"{_PREFIX}{name}"], value]) for name, value in positive.items()}
    )
    against, towards = predict(torch.cat([x, x]), torch.cat([sigma, sigma]), both).chunk(2)
    return against + scale * (towards - against)
