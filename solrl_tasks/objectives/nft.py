"""DiffusionNFT (Zheng et al., arXiv 2509.16117): what Sol-RL trains with."""

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from solrl_tasks.config.base import Frozen
from solrl_tasks.objectives.base import LossTerms, MicroBatch, Needs, Role, TimeDensity, Velocities, require
from solrl_tasks.objectives.core import per_row, precise, row_mean, squared_distance, target_velocity

AdvantageMode = Literal["all", "positive_only", "negative_only", "one_only", "binary"]


class NftOptions(Frozen):
    """Options of the NFT objective; the defaults are those of the released Sol-RL recipes.

    Attributes:
        beta: how far the two implicit policies stand from the old one, in units of current - old. Smaller is
            faster and less stable; authors use 1 or 0.1. It is not a KL weight.
        clip: advantages are clipped to +-clip and mapped linearly to an optimality probability in 0..1.
        kl_weight: weight of the squared distance to the reference velocity; 0 needs no reference.
        space: the branches are compared with the sample in x0 space (as released) or in velocity space; they
            differ by t^2.
        adaptive_weight: each branch's error is divided by its own mean absolute error, without gradient.
        advantage_mode: ``all`` as they are; ``positive_only`` and ``negative_only`` set the others to 0;
            ``one_only`` is 1 where positive, else 0; ``binary`` is the sign.
    """

    beta: Annotated[float, Field(gt=0, le=10)] = 1.0
    clip: Annotated[float, Field(gt=0, le=1000)] = 5.0
    kl_weight: Annotated[float, Field(ge=0)] = 1e-4
    space: Literal["x0", "velocity"] = "x0"
    adaptive_weight: bool = True
    advantage_mode: AdvantageMode = "all"


class Nft:
    """Regression of two implicit policies, one towards good samples and one away from bad ones.

        v+ = beta v + (1 - beta) v_old        v- = (1 + beta) v_old - beta v
        L  = clip / beta (r l(v+) + (1 - r) l(v-)) + kl_weight mean (v - v_ref)^2

    with r the optimality probability of the sample and l the branch's error. The VALUE at ``v = v_old`` says
    nothing about rewards; the gradient does. Equal rewards pull the current policy back to the old one.
    """

    name: ClassVar[str] = "nft"
    version: ClassVar[str] = "1"
    Options: ClassVar[type[Frozen]] = NftOptions
    needs: ClassVar[Needs] = "endpoints"

    def __init__(self, options: NftOptions) -> None:
        self.options = options

    @property
    def roles(self) -> frozenset[Role]:
        """``reference`` only where the KL term has a weight."""
        return frozenset({"old", "reference"} if self.options.kl_weight > 0 else {"old"})

    @property
    def times(self) -> TimeDensity:
        """A random subset of the sampler's own noise levels."""
        return "grid_subset"

    def loss(self, batch: MicroBatch, velocities: Velocities) -> LossTerms:
        """Per-row loss, ``[B]``, with metrics ``policy_loss``, ``kl``, ``old_gap`` and ``optimality``.

        Raises:
            ValueError: the velocity of a role that is needed is missing.
        """
        options = self.options
        old = precise(require(velocities.old, "old", self.name)).detach()
        step = options.beta * (precise(velocities.current) - old)
        y = target_velocity(batch.x0, batch.eps)
        r = optimality(batch.advantage, options.clip, options.advantage_mode)
        towards, away = self._error(old + step, y, batch.t), self._error(old - step, y, batch.t)
        policy = options.clip / options.beta * (r * towards + (1 - r) * away)
        metrics = {
            "policy_loss": policy,
            "optimality": r,
            "old_gap": squared_distance(velocities.current, old),
        }
        loss = policy
        if options.kl_weight > 0:
            reference = require(velocities.reference, "reference", self.name).detach()
            metrics["kl"] = squared_distance(velocities.current, reference)
            loss = policy + options.kl_weight * metrics["kl"]
        return LossTerms(loss, {name: value.detach() for name, value in metrics.items()})

    def _error(self, v: Tensor, y: Tensor, t: Tensor) -> Tensor:
        error = v - y
        if self.options.space == "x0":
            # (x_t - t v) - x0 = t (y - v), without the cancellation at small t.
            error = per_row(t, error) * error
        squares = row_mean(error.square())
        return squares / _scale(error) if self.options.adaptive_weight else squares


def optimality(advantage: Tensor, clip: float, mode: AdvantageMode = "all") -> Tensor:
    """The probability r in 0..1 that a sample counts as good: ``1/2 + A / (2 clip)``, A clipped to +-clip.

    Args:
        advantage: ``[B]``.
    """
    a = precise(advantage).clamp(-clip, clip)
    if mode == "positive_only":
        a = a.clamp(min=0)
    elif mode == "negative_only":
        a = a.clamp(max=0)
    elif mode == "one_only":
        a = (a > 0).to(a.dtype)
    elif mode == "binary":
        a = a.sign()
    return (a / (2 * clip) + 0.5).clamp(0, 1)


def _scale(error: Tensor) -> Tensor:
    # float64 as released: a mean over 65 thousand dimensions divides the loss of a whole row.
    scale = row_mean(error.detach().abs().to(torch.float64)).clamp(min=1e-5)
    return scale.to(error.dtype)


OBJECTIVE = Nft
