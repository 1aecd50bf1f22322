"""What an objective is, what it is given, and what it gives back."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol

import torch
from torch import Tensor
from typing_extensions import TypeVar

from solrl_tasks.objectives.core import noised

Role = Literal["old", "reference"]
Needs = Literal["endpoints", "trajectories"]
TimeDensity = Literal["grid_subset", "uniform", "sqrt"]


@dataclass(frozen=True)
class MicroBatch:
    """Re-noised endpoints: all that a trajectory-free objective learns from.

    Attributes:
        x0: ``[B, ...]`` clean latents as the sampler left them.
        eps: ``[B, ...]`` fresh standard Gaussian noise, independent of the noise that x0 was sampled from.
        t: ``[B]`` noise levels in (0, 1]; 1 is noise.
        advantage: ``[B]``, finite.

    Raises:
        ValueError: shapes do not fit together, or an advantage is not finite.
    """

    x0: Tensor
    eps: Tensor
    t: Tensor
    advantage: Tensor

    def __post_init__(self) -> None:
        rows = self.x0.shape[:1]
        if self.eps.shape != self.x0.shape or self.t.shape != rows or self.advantage.shape != rows:
            found = {name: tuple(getattr(self, name).shape) for name in ("x0", "eps", "t", "advantage")}
            raise ValueError(f"a micro-batch needs x0 and eps [B, ...], t and advantage [B], found {found}")
        finite = torch.isfinite(self.advantage)
        if not bool(finite.all()):
            bad = torch.nonzero(~finite).flatten().tolist()
            raise ValueError(f"rows {bad} have no finite advantage: leave samples without a valid reward out")

    @property
    def x_t(self) -> Tensor:
        """``[B, ...]`` where the velocities are to be evaluated."""
        return noised(self.x0, self.eps, self.t)


@dataclass(frozen=True)
class Velocities:
    """Velocities of each role at ``x_t``, ``[B, ...]``; gradients flow through ``current`` alone."""

    current: Tensor
    old: Tensor | None = None
    reference: Tensor | None = None


@dataclass(frozen=True)
class LossTerms:
    """An objective's result.

    Attributes:
        loss: ``[B]``, at least float32; a batch's loss is its mean over all rows of an optimizer step.
        metrics: by name, ``[B]`` each, detached.
    """

    loss: Tensor
    metrics: Mapping[str, Tensor] = field(default_factory=dict)


BatchT_contra = TypeVar("BatchT_contra", contravariant=True, default=MicroBatch)


class Objective(Protocol[BatchT_contra]):
    """A loss on samples and the velocities of the roles it asks for.

    An objective that learns from trajectories brings its own batch type, with ``x_t``, ``t`` and
    ``advantage`` as in ``MicroBatch`` and whatever else a transition needs.
    """

    name: ClassVar[str]
    version: ClassVar[str]
    needs: ClassVar[Needs]

    @property
    def roles(self) -> frozenset[Role]:
        """The roles besides current whose velocities the loss reads."""
        ...

    @property
    def times(self) -> TimeDensity:
        """How the noise levels of a sample are drawn; see ``times.draw_times``."""
        ...

    def loss(self, batch: BatchT_contra, velocities: Velocities) -> LossTerms:
        """The loss of each row."""
        ...


def require(velocity: Tensor | None, role: Role, objective: str) -> Tensor:
    """The velocity of a role that the objective cannot do without.

    Raises:
        ValueError: it was not evaluated.
    """
    if velocity is None:
        raise ValueError(f"objective {objective!r} needs the velocity of role {role!r}: evaluate all its roles")
    return velocity
