"""What an objective is, what it is given, and what it gives back."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal, Protocol, cast

import torch
from torch import Tensor
from typing_extensions import TypeVar

from solrl_tasks.config.stochastic import Stochastic
from solrl_tasks.objectives.core import noised

Role = Literal["old", "reference"]
Needs = Literal["endpoints", "trajectories", "adjoints"]
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
        check_advantage(self.advantage)

    @property
    def x_t(self) -> Tensor:
        """``[B, ...]`` where the velocities are to be evaluated."""
        return noised(self.x0, self.eps, self.t)


def check_advantage(advantage: Tensor) -> None:
    """Refuse rows [B] without a finite advantage.

    Raises:
        ValueError: it names them.
    """
    finite = torch.isfinite(advantage)
    if not bool(finite.all()):
        bad = torch.nonzero(~finite).flatten().tolist()
        raise ValueError(f"rows {bad} have no finite advantage: leave samples without a valid reward out")


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

    One that needs ``trajectories`` is given ``Transitions`` instead, and is a ``PathObjective``. One that needs
    ``adjoints`` is given ``AdjointSteps``, and has ``terminal`` besides; see ``adjoint_matching``.
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


class PathObjective(Objective[BatchT_contra], Protocol[BatchT_contra]):
    """An objective that learns from the steps of sampled paths."""

    def noise(self, steps: int, iteration: int) -> Stochastic:
        """Where paths of ``steps`` steps have noise in an iteration (from 1), and so what is kept of them.

        Raises:
            ValueError: they are too short for it.
        """
        ...


def asked_noise(objective: Objective[Any], steps: int, iteration: int) -> Stochastic | None:
    """How an objective wants samples to be made; None is without noise, from endpoints alone."""
    if objective.needs == "endpoints":
        return None
    path: PathObjective[Any] = cast(PathObjective[Any], objective)
    return path.noise(steps, iteration)


EVERY_ROLE: Final = frozenset({"current", "old", "reference"})


def guided_roles(objective: Objective[Any]) -> frozenset[str]:
    """The roles whose velocities have the model's classifier-free guidance in training.

    All of them, unless the objective says otherwise in ``guided``; the others are conditional only, which saves half of
    their forward passes.
    """
    roles: frozenset[str] = getattr(objective, "guided", EVERY_ROLE)
    return roles


def require(velocity: Tensor | None, role: Role, objective: str) -> Tensor:
    """The velocity of a role that the objective cannot do without.

    Raises:
        ValueError: it was not evaluated.
    """
    if velocity is None:
        raise ValueError(f"objective {objective!r} needs the velocity of role {role!r}: evaluate all its roles")
    return velocity
