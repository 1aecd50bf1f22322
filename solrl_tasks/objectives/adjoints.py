"""How a gradient at the end of a path is carried back along it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from solrl_tasks.config.words import are, counted
from solrl_tasks.objectives.core import precise


@dataclass(frozen=True)
class AdjointStates:
    """States of sampled paths, with what a shift of each would cost in the end.

    Attributes:
        state: ``[B, ...]``, where the velocities are to be evaluated.
        t: ``[B]`` its noise level.
        adjoint: ``[B, ...]`` carried back along the reference to the state.
        half_variance: ``[B]`` half the variance of the SDE there, ``t / (1 - t)`` of the memoryless one. It is infinite
            at t = 1, where the adjoint is 0: there stand the adjoint behind the step and ``std^2 / |of_v|`` of the
            step, whose product tends to the same.

    Raises:
        ValueError: shapes do not fit together.
    """

    state: Tensor
    t: Tensor
    adjoint: Tensor
    half_variance: Tensor

    def __post_init__(self) -> None:
        rows = self.state.shape[:1]
        if self.adjoint.shape != self.state.shape or self.t.shape != rows or self.half_variance.shape != rows:
            found = {name: tuple(value.shape) for name, value in vars(self).items()}
            raise ValueError(f"state and adjoint are [B, ...], t and half_variance [B], found {found}")

    @property
    def x_t(self) -> Tensor:
        """``[B, ...]`` where the velocities are to be evaluated."""
        return self.state


def lean_adjoints(
    velocity: Callable[[Tensor, int], Tensor], states: Tensor, steps: Sequence[tuple[float, float]], terminal: Tensor
) -> Tensor:
    """The lean adjoint (arXiv 2409.08861) along paths of steps ``N(of_x state + of_v velocity, std^2)``.

        a_i = of_x a_(i+1) + of_v (dv / dx)^T a_(i+1)

    from ``terminal`` behind the last step backwards. Lean, as the velocity is the reference's and not that of the
    policy that walked; it is the exact derivative of what the reference makes of the state.

    Args:
        velocity: ``(states [B, ...], step)`` to the reference velocity ``[B, ...]``, differentiable in the states.
        states: ``[B, n, ...]`` before each of the last n steps of the path.
        steps: ``of_x`` and ``of_v`` of those n steps.
        terminal: ``[B, ...]`` at the end of the path.

    Returns:
        ``[B, n, ...]`` at ``states``, detached.
    """
    if len(steps) != states.shape[1]:
        raise ValueError(
            f"{counted(states.shape[1], 'state')} {are(states.shape[1])} not before {counted(len(steps), 'step')}"
        )
    adjoint, found = precise(terminal), []
    for number in range(len(steps) - 1, -1, -1):
        of_x, of_v = steps[number]
        with torch.enable_grad():
            state = states[:, number].detach().requires_grad_()
            (pulled,) = torch.autograd.grad(velocity(state, number), state, adjoint)
        adjoint = of_x * adjoint + of_v * pulled
        found.append(adjoint)
    return torch.stack(found[::-1], dim=1)
