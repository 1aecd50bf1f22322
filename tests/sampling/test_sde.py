"""Noisy steps against closed forms: a one-dimensional Gaussian world, in which every path is linear."""

from itertools import pairwise

import pytest
import torch
from pydantic import ValidationError

from solrl_tasks.config.extensions import list_extensions
from solrl_tasks.config.stochastic import Stochastic, Window
from solrl_tasks.sampling import sigmas
from solrl_tasks.sampling.identity import initial_noise
from solrl_tasks.sampling.samplers.euler import Euler
from solrl_tasks.sampling.sde.base import euler, transitions
from solrl_tasks.sampling.sde.cps import Cps
from solrl_tasks.sampling.sde.dance import Dance
from solrl_tasks.sampling.sde.flow_sde import FlowSde
from solrl_tasks.sampling.sde.memoryless import Memoryless
from solrl_tasks.sampling.sde.walk import Walk, step_noise, window_starts


def all_steps(step, eta, grid):
    # The window decides where noise is put, not what a noisy step is.
    return transitions(Stochastic(step=step, eta=eta, window=Window(size=1, stop=1)), grid)


def sd3(steps):
    return sigmas.shifted_twice(steps, 3.0)


def slope(t):
    """Of the exact velocity for data N(0, 1)."""
    return (1 - (1 - t) / ((1 - t) ** 2 + t**2)) / t


def ends(step, eta, grid):
    """Shares of the final variance: what the first noise leaves, and what the noise of the steps adds."""
    kept, added = 1.0, 0.0
    for (t, _), one in zip(pairwise(grid), all_steps(step, eta, grid), strict=True):
        factor = one.x + one.v * slope(t)
        kept, added = kept * factor, added * factor**2 + one.std**2
    return kept**2, added


def test_kinds_are_found_by_name():
    assert list_extensions("sde step") == {"flow-sde": FlowSde, "dance": Dance, "cps": Cps, "memoryless": Memoryless}


@pytest.mark.parametrize(
    ("step", "eta", "variances"),
    [
        ("flow-sde", 0.7, (0.646, 0.784, 0.919, 0.953)),
        ("dance", 0.3, (0.490, 0.679, 0.866, 0.915)),
        ("cps", 0.8, (0.359, 0.454, 0.553, 0.582)),
    ],
)
def test_final_variance_by_steps(step, eta, variances):
    assert [sum(ends(step, eta, sd3(steps))) for steps in (6, 10, 25, 40)] == pytest.approx(variances, abs=6e-4)


@pytest.mark.parametrize(
    ("step", "eta", "shares"),
    [("flow-sde", 0.7, (0.032, 0.042, 0.037, 0.032)), ("dance", 0.3, (0.83, 0.85, 0.86, 0.87)), ("cps", 0.8, (0,) * 4)],
)
def test_what_the_first_noise_still_decides(step, eta, shares):
    found = [ends(step, eta, sd3(steps)) for steps in (6, 10, 25, 40)]
    assert [kept / (kept + added) for kept, added in found] == pytest.approx(shares, abs=0.006 if eta == 0.3 else 1e-3)


@pytest.mark.parametrize("steps", [4, 10, 28])
@pytest.mark.parametrize("grid", [sigmas.linear, sd3])
def test_coefficients_of_flow_sde(steps, grid):
    # T10: the first noise is eta; in between the velocity counts 1 + eta^2 / 2 times.
    levels = grid(steps)
    first, *rest = all_steps("flow-sde", 0.7, levels)
    assert first.std == pytest.approx(0.7, abs=1e-6)
    assert first.v == pytest.approx(levels[1] - 1, abs=1e-12)
    for (t, following), one in zip(list(pairwise(levels))[1:], rest, strict=True):
        assert one.v / (following - t) == pytest.approx(1.245, abs=1e-6)
        assert one.x == pytest.approx(1 + 0.49 * (following - t) / (2 * (1 - t)), abs=1e-12)


@pytest.mark.parametrize("step", ["flow-sde", "dance", "cps", "memoryless"])
@pytest.mark.parametrize("steps", [2, 6, 20])
def test_a_grid_that_begins_just_below_one_is_no_harder(step, steps):
    # SANA's: from 0.9997.
    near, one = (all_steps(step, 0.7, grid(steps, 3.0)) for grid in (sigmas.flow, sigmas.shifted))
    for here, there in zip(near, one, strict=True):
        assert (here.x, here.v, here.std) == pytest.approx((there.x, there.v, there.std), abs=0.02)


@pytest.mark.parametrize(("step", "eta", "shift"), [("flow-sde", 0.7, 0.37536), ("dance", 0.3, 0.05071)])
def test_a_path_penalty_bounds_the_shift_by_the_noise_of_the_steps(step, eta, shift):
    # T11: the best shift of the mean under E[a x0] - beta sum KL is a / beta times the variance that steps add. The
    # shifts are maximised directly here: each step's own, against its quadratic price.
    grid = sd3(10)
    steps = all_steps(step, eta, grid)
    after = torch.ones(10, dtype=torch.float64)
    for i in range(8, -1, -1):
        after[i] = after[i + 1] * (steps[i + 1].x + steps[i + 1].v * slope(grid[i + 1]))
    variance = torch.tensor([one.std**2 for one in steps], dtype=torch.float64)
    a, beta = 1.0, 2.0
    control = torch.zeros(10, dtype=torch.float64, requires_grad=True)
    value = a * (after * control).sum() - beta * (control**2 / (2 * variance)).sum()
    (gradient,) = torch.autograd.grad(value, control)
    best = gradient * variance / beta  # one Newton step: the value is quadratic
    assert float((after * best).sum()) == pytest.approx(shift, abs=1e-5)
    assert a / beta * ends(step, eta, grid)[1] == pytest.approx(float((after * best).sum()), abs=1e-12)


def test_the_continuum_of_dance():
    # T11b: 1 - exp(-eta^2 pi / 2).
    assert ends("dance", 0.3, sigmas.linear(4000))[1] == pytest.approx(0.13183, abs=1e-3)


@pytest.mark.parametrize(("step", "eta"), [("flow-sde", 0.7), ("dance", 0.3), ("memoryless", 1.0)])
def test_marginals_are_kept_in_the_limit(step, eta):
    assert sum(ends(step, eta, sigmas.linear(800))) == pytest.approx(1, abs=0.01)


def test_cps_contracts_whatever_the_steps():
    assert sum(ends("cps", 0.8, sd3(1000))) == pytest.approx(0.65, abs=0.01)


@pytest.mark.parametrize("step", ["flow-sde", "dance", "cps"])
def test_without_eta_it_is_a_step_of_euler(step):
    grid = sd3(7)
    for one, (t, following) in zip(all_steps(step, 0.0, grid), pairwise(grid), strict=True):
        plain = euler(t, following)
        assert (one.x, one.v, one.std) == pytest.approx((plain.x, plain.v, plain.std), abs=1e-12)


def test_memoryless_is_finite_forgets_and_is_flow_sde_of_root_two():
    grid = sigmas.linear(1000)
    exact = all_steps("memoryless", 1.0, grid)
    sde = all_steps("flow-sde", 2**0.5, grid)
    assert ends("memoryless", 1.0, sd3(10))[0] < 1e-12
    for i in (200, 500, 800):
        dt = grid[i + 1] - grid[i]
        assert exact[i].v / dt == pytest.approx(sde[i].v / dt, rel=0.01)
        assert (exact[i].x - 1) / dt == pytest.approx((sde[i].x - 1) / dt, rel=0.01)
        assert exact[i].std == pytest.approx(sde[i].std, rel=0.01)
    # If the predicted x0 is right, the noise level after a step is, whatever the step.
    for (t, following), one in zip(pairwise(grid), exact, strict=True):
        eps = one.x * t + one.v * 1  # x = (1 - t) x0 + t eps and v = eps - x0
        assert eps**2 + one.std**2 == pytest.approx(following**2, abs=1e-9)
        assert one.x * (1 - t) - one.v == pytest.approx(1 - following, abs=1e-9)


# Windows


def test_windows_slide_and_come_back():
    window = Window(size=2, start=1, stop=5, every=3)
    starts = [window.settle(8, iteration).start for iteration in range(1, 14)]
    assert starts == [1, 1, 1, 2, 2, 2, 3, 3, 3, 1, 1, 1, 2]
    assert all(window.settle(8, i).stop == start + 2 for i, start in enumerate(starts, 1))


def test_windows_that_do_not_fit_are_refused():
    with pytest.raises(ValidationError, match="does not fit between start 3 and 4"):
        Window(size=2, start=3, stop=4)
    for window in (Window(size=4), Window(size=1, start=0, stop=5)):
        with pytest.raises(ValueError, match=r"does not fit into 4 steps.*regenerate\.steps"):
            window.settle(4, 1)
    assert Window(size=3).settle(4, 1).stop == 3


def test_places_in_a_window_belong_to_candidates():
    window = Window(size=3, start=0, stop=5).settle(10, 1)
    seeds = list(range(300))
    starts = window_starts(window, seeds)
    assert {0, 1, 2} == set(starts)
    assert all(80 < starts.count(place) < 120 for place in (0, 1, 2))
    assert window_starts(window, seeds[::-1]) == starts[::-1]


def test_step_noise_is_a_function_of_candidate_and_step():
    window = Window(size=2, start=1, stop=5).settle(8, 1)
    seeds = [3, 2**63 + 9, 11, 4]
    together = step_noise(window, seeds, (2, 3))
    for row, (seed, start) in enumerate(zip(seeds, window_starts(window, seeds), strict=True)):
        alone = step_noise(window, [seed], (2, 3))
        assert torch.equal(together[:, row], alone[:, 0])
        used = {step for step in range(1, 5) if bool(alone[step - 1, 0].any())}
        assert used == {start, start + 1}
        # Where the window lies does not change what a step draws.
        other = step_noise(Window(size=7, start=0, stop=7), [seed], (2, 3))
        assert torch.equal(other[start, 0], alone[start - 1, 0])
        assert not torch.equal(other[start, 0], initial_noise([seed], (2, 3))[0])


def velocity(x, t):
    return 0.3 * x - t * x.roll(1, -1)


@pytest.mark.parametrize("seed", [0, 1])
def test_a_walk_is_what_its_states_and_coefficients_say(seed):
    grid = sigmas.shifted(8, 3.0)
    noise = Stochastic(step="flow-sde", eta=0.7, window=Window(size=2, start=1, stop=6))
    seeds = [10 * seed + row for row in range(6)]
    walk = Walk(noise, grid, window_starts(noise.window, seeds))
    assert len(set(walk.starts)) > 1
    x, fresh = initial_noise(seeds, (5,)), step_noise(noise.window, seeds, (5,))
    path = walk.run(velocity, x, fresh)
    steps = transitions(noise, grid)
    for row, start in enumerate(walk.starts):
        before = path.states[row]
        for j in range(2):
            one = steps[start + j]
            mean = one.x * before[j] + one.v * velocity(before[j], grid[start + j])
            expected = mean + one.std * fresh[start + j - 1, row]
            torch.testing.assert_close(before[j + 1], expected, rtol=0, atol=1e-6)
        # Before and behind the window it is the euler sampler, bit for bit.
        reached = x[row]
        for t, following in list(pairwise(grid))[:start]:
            reached = reached + (following - t) * velocity(reached, t)
        assert torch.equal(reached, before[0])
        rest = before[2]
        for t, following in list(pairwise(grid))[start + 2 :]:
            rest = rest + (following - t) * velocity(rest, t)
        assert torch.equal(rest, path.end[row])


def test_rows_do_not_depend_on_each_other():
    grid = sigmas.shifted(8, 3.0)
    noise = Stochastic(step="cps", eta=0.8, window=Window(size=3, start=0, stop=5))
    seeds = [5, 6, 7, 8]
    x, fresh = initial_noise(seeds, (5,)), step_noise(noise.window, seeds, (5,))
    starts = window_starts(noise.window, seeds)
    together = Walk(noise, grid, starts).run(velocity, x, fresh)
    for row in range(4):
        alone = Walk(noise, grid, starts[row : row + 1]).run(velocity, x[row : row + 1], fresh[:, row : row + 1])
        assert torch.equal(alone.end[0], together.end[row])
        assert torch.equal(alone.states[0], together.states[row])


def test_without_eta_a_walk_is_euler_bit_for_bit():
    grid = sigmas.shifted(6, 3.0)
    noise = Stochastic(step="dance", eta=0.0, window=Window(size=5, start=0, stop=5))
    x = initial_noise([1, 2], (5,))
    path = Walk(noise, grid, [0, 0]).run(velocity, x, step_noise(noise.window, [1, 2], (5,)))
    assert torch.equal(path.end, Euler().sample(velocity, x, grid))
    assert torch.equal(path.states[:, 0], x)
