"""Samplers against closed forms, orders of convergence, and the library's own solvers."""

import math

import pytest
import torch
from diffusers import DPMSolverMultistepScheduler
from hypothesis import given
from hypothesis import strategies as st

from solrl_tasks.config.extensions import list_extensions
from solrl_tasks.sampling import sigmas
from solrl_tasks.sampling.samplers.dpm2 import Dpm2
from solrl_tasks.sampling.samplers.euler import Euler

BOTH = pytest.mark.parametrize("sampler", [Euler(), Dpm2()], ids=lambda s: s.name)


def gaussian_velocity(mean=0.0, std=1.0):
    """The exact velocity of data N(mean, std^2)."""

    def velocity(x, t):
        gain = (1 - t) * std**2 / ((1 - t) ** 2 * std**2 + t**2)
        x0 = mean + gain * (x - (1 - t) * mean)
        return (x - x0) / t

    return velocity


def solve(sampler, steps, x=1.0, grid=sigmas.linear, velocity=None):
    start = torch.tensor([x], dtype=torch.float64)
    return sampler.sample(velocity or gaussian_velocity(0.3, 0.8), start, grid(steps)).item()


def twice(steps):
    return sigmas.shifted_twice(steps, 3.0)


def test_samplers_are_found_by_name():
    assert list_extensions("sampler") == {"euler": Euler, "dpm2": Dpm2}


@pytest.mark.parametrize(("steps", "variance"), [(6, 0.474), (10, 0.669), (25, 0.861), (40, 0.912)])
def test_euler_reaches_the_known_variance(steps, variance):
    # The problem is linear, so the end is a multiple of the start, and the variance its square.
    factor = solve(Euler(), steps, grid=twice, velocity=gaussian_velocity())
    assert factor**2 == pytest.approx(variance, abs=6e-4)


@pytest.mark.parametrize("grid", [sigmas.linear, lambda steps: sigmas.shifted(steps, 3.0)])
@pytest.mark.parametrize("steps", [6, 10, 25])
def test_dpm2_is_closer_to_the_true_variance_than_euler(steps, grid):
    euler, dpm2 = (solve(s, steps, grid=grid, velocity=gaussian_velocity()) ** 2 for s in (Euler(), Dpm2()))
    assert abs(dpm2 - 1.0) < 0.75 * abs(euler - 1.0)


@pytest.mark.parametrize(("sampler", "order"), [(Euler(), 0.98), (Dpm2(), 1.8)], ids=["euler", "dpm2"])
def test_order_of_convergence(sampler, order):
    exact = 0.3 + 0.8 * 1.0
    coarse, fine = (abs(solve(sampler, steps) - exact) for steps in (256, 1024))
    # dpm2's error is h^2 log(1/h), so the measured order comes to 2 from below.
    assert order < math.log(coarse / fine, 4) < order + 0.2


@BOTH
@pytest.mark.parametrize("steps", [1, 2, 3, 10])
def test_constant_data_is_reached_exactly(sampler, steps):
    target = torch.tensor([0.25, -1.5])
    seen = []

    def velocity(x, t):
        assert isinstance(t, float)
        seen.append((x - (1 - t) * target) / t)
        return (x - target) / t

    end = sampler.sample(velocity, torch.tensor([2.0, 0.5]), sigmas.shifted(steps, 3.0))
    torch.testing.assert_close(end, target, rtol=0, atol=1e-6)
    # On the way the noise stays the same: the path is straight.
    torch.testing.assert_close(torch.stack(seen), seen[0].expand(steps, 2), rtol=0, atol=1e-5)


@BOTH
def test_one_evaluation_a_step_at_the_levels_of_the_grid(sampler):
    grid = sigmas.shifted(5, 3.0)
    asked = []

    def velocity(x, t):
        asked.append(t)
        return torch.zeros_like(x)

    start = torch.randn(2, 3)
    end = sampler.sample(velocity, start, grid)
    assert asked == grid[:-1]
    assert end.dtype == torch.float32
    torch.testing.assert_close(end, start)


@BOTH
def test_nothing_becomes_infinite_and_the_start_is_kept(sampler):
    start = torch.full((4,), 3.0)
    end = sampler.sample(gaussian_velocity(), start, sigmas.linear(6))
    assert torch.isfinite(end).all()
    assert torch.equal(start, torch.full((4,), 3.0))


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_dpm2_equals_the_library_solver():
    steps = 10
    scheduler = DPMSolverMultistepScheduler(
        prediction_type="flow_prediction",
        use_flow_sigmas=True,
        flow_shift=1.0,
        algorithm_type="dpmsolver++",
        solver_order=2,
        final_sigmas_type="zero",
    )
    scheduler.set_timesteps(steps)
    grid = [float(s) for s in scheduler.sigmas]
    velocity = gaussian_velocity(0.3, 0.8)
    x = torch.tensor([0.7, -1.2])
    ours = Dpm2().sample(velocity, x, grid)
    for timestep, sigma in zip(scheduler.timesteps, grid, strict=False):
        x = scheduler.step(velocity(x, sigma), timestep, x, return_dict=False)[0]
    torch.testing.assert_close(ours, x, rtol=0, atol=2e-6)


@BOTH
def test_grids_are_checked(sampler):
    with pytest.raises(ValueError, match="falls strictly"):
        sampler.sample(gaussian_velocity(), torch.zeros(1), [1.0, 0.5])


@pytest.mark.parametrize("steps", [4, 6, 10, 28, 40])
def test_dpm2_refuses_the_grid_that_is_shifted_twice(steps):
    with pytest.raises(ValueError, match=r"set model\.shift .* or take the euler sampler"):
        Dpm2().sample(gaussian_velocity(), torch.zeros(1), twice(steps))


@pytest.mark.parametrize(("steps", "variance"), [(6, 2.12), (10, 1.86)])
def test_what_dpm2_would_do_there(monkeypatch, steps, variance):
    monkeypatch.setattr("solrl_tasks.sampling.samplers.dpm2.MAX_EXTRAPOLATION", math.inf)
    assert solve(Dpm2(), steps, grid=twice, velocity=gaussian_velocity()) ** 2 == pytest.approx(variance, abs=0.01)


@given(st.integers(1, 200), st.floats(0.01, 100))
def test_dpm2_walks_every_grid_that_is_shifted_once(steps, shift):
    Dpm2().check(sigmas.shifted(steps, shift))
    Dpm2().check(sigmas.flow(steps, shift))
