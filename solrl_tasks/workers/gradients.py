"""From clean latents to the gradient of the rewards in them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from pydantic import JsonValue
from torch import Tensor

from solrl_tasks.models.families.base import Family
from solrl_tasks.rewards.gradients import DifferentiableScorer


@dataclass(frozen=True)
class RewardGradient:
    """The weighted sum of differentiable rewards, as a function of clean latents.

    Attributes:
        scorers: each with its weight.
    """

    family: Family
    scorers: tuple[tuple[DifferentiableScorer, float], ...]

    def __call__(
        self, x0: Tensor, prompts: Sequence[str], metadata: Sequence[Mapping[str, JsonValue]]
    ) -> tuple[Tensor, Tensor]:
        """Gradient ``[B, C, H, W]`` and value ``[B]`` of the sum, detached.

        Args:
            x0: ``[B, C, H, W]`` on the device.
        """
        with torch.enable_grad():
            latents = x0.detach().requires_grad_()
            pixels = (self.family.pixels(latents) / 2 + 0.5).clamp(0, 1)
            scores = torch.stack(
                [weight * scorer.differentiable(pixels, prompts, metadata) for scorer, weight in self.scorers]
            )
            total = scores.sum(dim=0)
            (gradient,) = torch.autograd.grad(total.sum(), latents)
        return gradient.detach(), total.detach()
