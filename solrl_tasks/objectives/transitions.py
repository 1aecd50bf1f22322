"""Steps of a sampled path as something to learn from: their likelihood under other velocities."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from solrl_tasks.objectives.base import check_advantage
from solrl_tasks.objectives.core import per_row, precise, row_mean


@dataclass(frozen=True)
class Transitions:
    """Noisy steps, each ``following ~ N(of_x state + of_v velocity, std^2)``.

    Attributes:
        state: ``[B, ...]`` before the step, where the velocities are to be evaluated.
        following: ``[B, ...]`` after it, as sampled.
        t: ``[B]`` noise level before the step.
        length: ``[B]`` how far the noise level falls in it, positive.
        of_x, of_v, std: ``[B]`` coefficients of the step; ``std`` is positive.
        advantage: ``[B]`` of the image that the path ends in, finite.

    Raises:
        ValueError: shapes do not fit together, a step has no noise, or an advantage is not finite.
    """

    state: Tensor
    following: Tensor
    t: Tensor
    length: Tensor
    of_x: Tensor
    of_v: Tensor
    std: Tensor
    advantage: Tensor

    def __post_init__(self) -> None:
        columns = ("t", "length", "of_x", "of_v", "std", "advantage")
        shapes = {name: tuple(getattr(self, name).shape) for name in ("state", "following", *columns)}
        rows = self.state.shape[:1]
        if self.following.shape != self.state.shape or any(shapes[name] != tuple(rows) for name in columns):
            raise ValueError(f"transitions need state and following [B, ...] and the rest [B], found {shapes}")
        if not bool((self.std > 0).all()):
            raise ValueError("a step without noise has no likelihood: leave it out of what is trained")
        check_advantage(self.advantage)

    @property
    def x_t(self) -> Tensor:
        """``[B, ...]`` where the velocities are to be evaluated."""
        return self.state

    def mean(self, velocity: Tensor) -> Tensor:
        """``[B, ...]`` where the step leads to under a velocity, but for its noise."""
        v = precise(velocity)
        return per_row(self.of_x, v) * precise(self.state) + per_row(self.of_v, v) * v

    def log_prob(self, velocity: Tensor) -> Tensor:
        """``[B]`` log density of the step that was taken, as a MEAN over dimensions.

        As in Flow-GRPO: with tens of thousands of dimensions the sum would overflow any ratio. Clip ranges of 1e-4 go
        with it.
        """
        squares = row_mean((precise(self.following) - self.mean(velocity)).square())
        std = precise(self.std)
        return -squares / (2 * std.square()) - std.log() - 0.5 * math.log(2 * math.pi)

    def moved(self, current: Tensor, old: Tensor) -> Tensor:
        """``[B, ...]`` how much further the step would lead under ``current`` than under ``old``."""
        return per_row(self.of_v, current) * (precise(current) - precise(old))

    def noise(self, velocity: Tensor) -> Tensor:
        """``[B, ...]`` the standard noise that explains the step under a velocity."""
        return (precise(self.following) - self.mean(velocity)) / per_row(self.std, self.following)

    def log_ratio(self, current: Tensor, old: Tensor) -> Tensor:
        """``[B]`` ``log_prob(current) - log_prob(old)``, without the cancellation between them.

        Exactly 0, with the gradient of ``log_prob``, where the velocities are equal.
        """
        moved = self.moved(current, old) / per_row(self.std, self.following)
        return row_mean(moved * (self.noise(old).detach() - 0.5 * moved))

    def guarded_log_ratio(self, current: Tensor, old: Tensor) -> Tensor:
        """``[B]`` the normalised ratio of GRPO-Guard (arXiv 2510.22319): ``mean(noise * moved)``.

        It is ``std (log_ratio + mean(moved^2) / (2 std^2))``: unlike the plain one it has mean 0 over the noise, and a
        spread that does not depend on how noisy the step is.
        """
        return row_mean(self.noise(old).detach() * self.moved(current, old))


def clipped_policy_loss(log_ratio: Tensor, advantage: Tensor, clip: float) -> tuple[Tensor, Tensor]:
    """``max(-A ratio, -A clip(ratio, 1 - clip, 1 + clip))`` and 1 where the clipped one is larger, ``[B]`` each."""
    ratio = log_ratio.exp()
    plain = -advantage * ratio
    clipped = -advantage * ratio.clamp(1 - clip, 1 + clip)
    return torch.maximum(plain, clipped), (clipped > plain).to(plain.dtype).detach()
