"""Adjoint Matching in a Gaussian world, where the optimum is known; and the derivative that it rests on."""

import pytest
import torch

from solrl_tasks.config.extensions import build
from solrl_tasks.objectives.adjoint_matching import AdjointMatching, AdjointMatchingOptions
from solrl_tasks.objectives.adjoints import AdjointStates, lean_adjoints
from solrl_tasks.objectives.base import Velocities
from solrl_tasks.sampling import sigmas
from solrl_tasks.sampling.sde.base import transitions

MEAN, VARIANCE = 0.3, 0.64


def velocity(x, t):
    """Exact for data N(0.3, 0.64)."""
    gain = (1 - t) * VARIANCE / ((1 - t) ** 2 * VARIANCE + t**2)
    return (x - MEAN - gain * (x - (1 - t) * MEAN)) / t


def matching(**options):
    return AdjointMatching(AdjointMatchingOptions(**options))


def steps_of(objective, grid):
    return transitions(objective.noise(len(grid) - 1, 1), grid)


def shifts(count, slope, beta):
    """What each level's regression adds to the velocity under r = slope x, where the adjoint depends on no state."""
    objective, grid = matching(multiplier=1 / beta), sigmas.linear(count)
    steps = steps_of(objective, grid)
    states = torch.zeros(1, count - 1, 1, dtype=torch.float64)
    terminal = objective.terminal(torch.full((1, 1), slope, dtype=torch.float64))
    end = [(one.x, one.v) for one in steps[1:]]
    adjoints = lean_adjoints(lambda x, i: velocity(x, grid[1:][i]), states, end, terminal)[0, :, 0]
    first = steps[0].std ** 2 / abs(steps[0].v) * adjoints[:1]
    levels = torch.tensor(grid[1:-1], dtype=torch.float64)
    return grid, steps, [*first, *(solved(objective, t, adjoint) for t, adjoint in zip(levels, adjoints, strict=True))]


def solved(objective, t, adjoint):
    """By how much the public loss moves the velocity: it is quadratic, so one Newton step."""
    at = torch.zeros(1, 1, dtype=torch.float64)
    batch = AdjointStates(at, t.reshape(1), adjoint.reshape(1, 1), (t / (1 - t)).reshape(1))

    def slope(v):
        current = v.clone().requires_grad_()
        return torch.autograd.grad(objective.loss(batch, Velocities(current, reference=at)).loss.sum(), current)[0]

    return float(-slope(at) / (slope(at + 1) - slope(at)))


@pytest.mark.parametrize(("count", "shift"), [(10, 0.4785), (20, 0.4795), (40, 0.4797)])
def test_the_optimum_is_the_tilted_gaussian(count, shift):
    # T13: exactly v_ref - (a s^2 / beta) t / D_t, whose samples have their mean 1.5 / 2 x 0.64 = 0.48 further.
    grid, steps, found = shifts(count, slope=1.5, beta=2.0)
    for t, one in zip(grid[1:-1], found[1:], strict=True):
        assert one == pytest.approx(-0.48 * t / ((1 - t) ** 2 * VARIANCE + t**2), rel=1e-9)
    mean = 0.0
    for t, step, one in zip(grid, steps, [*found, 0.0], strict=False):
        last = -0.48 * t / ((1 - t) ** 2 * VARIANCE + t**2) if step is steps[-1] else one
        mean = step.x * mean + step.v * (velocity(mean, t) + float(last))
    assert mean - MEAN == pytest.approx(0.48, abs=0.003)
    assert mean - MEAN == pytest.approx(shift, abs=0.002)


@pytest.mark.parametrize("weight", ["control", "velocity"])
def test_weights_of_levels_do_not_move_the_optimum(weight):
    t, adjoint = torch.tensor(0.6, dtype=torch.float64), torch.tensor(-0.7, dtype=torch.float64)
    assert solved(matching(weight=weight), t, adjoint) == pytest.approx(1.5 * -0.7, rel=1e-9)


def test_what_stands_in_for_the_first_level_tends_to_the_same():
    fine = steps_of(matching(), sigmas.linear(200))
    assert fine[100].std ** 2 / abs(fine[100].v) == pytest.approx(1.0, rel=0.04)
    assert shifts(40, 1.5, 2.0)[2][0] == pytest.approx(-0.48, rel=0.03)


def test_the_lean_adjoint_is_the_derivative_of_the_end_along_the_reference():
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4)).double()
    network.requires_grad_(False)
    steps = [(0.9, -0.2), (1.1, -0.3), (0.8, -0.5)]
    start = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    states, x = [], start
    for of_x, of_v in steps:
        states.append(x)
        x = of_x * x + of_v * network(x)
    terminal = torch.randn(3, 4, dtype=torch.float64)
    expected = torch.autograd.grad(x, states, terminal)
    found = lean_adjoints(lambda state, _: network(state), torch.stack(states, 1), steps, terminal)
    for number, one in enumerate(expected):
        assert torch.allclose(found[:, number], one, atol=1e-12)
    assert not found.requires_grad


def test_names_needs_and_checks():
    built = build("objective", "adjoint-matching", {"multiplier": 10})
    assert (built.needs, built.roles, built.guided) == ("adjoints", {"reference"}, set())
    assert built.noise(8, 3).window.size == 7
    with pytest.raises(ValueError, match="states are not before"):
        lean_adjoints(velocity, torch.zeros(1, 2, 1), [(1.0, 1.0)], torch.zeros(1, 1))
    with pytest.raises(ValueError, match="state and adjoint"):
        AdjointStates(torch.zeros(1, 2), torch.ones(1), torch.zeros(1, 3), torch.ones(1))
    batch = AdjointStates(torch.zeros(1, 2), torch.ones(1), torch.zeros(1, 2), torch.ones(1))
    with pytest.raises(ValueError, match="reference"):
        built.loss(batch, Velocities(torch.zeros(1, 2)))
