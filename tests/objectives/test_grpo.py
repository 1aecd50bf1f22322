"""The policy-gradient objective: exact at ratio 1, and its identities away from it."""

import math

import numpy as np
import pytest
import torch

from solrl_tasks.config.extensions import UnknownExtensionError, build
from solrl_tasks.config.stochastic import Stochastic, Window
from solrl_tasks.objectives.advantages import advantages
from solrl_tasks.objectives.base import Velocities, asked_noise
from solrl_tasks.objectives.grpo import Grpo, GrpoOptions
from solrl_tasks.objectives.transitions import Transitions
from solrl_tasks.sampling import sigmas
from solrl_tasks.sampling.sde.base import transitions

ROWS, ITEM = 6, (3, 4, 4)
DIMS = 48
STEPS = ("flow-sde", "dance", "cps")


def draw(step="flow-sde", eta=0.7, dtype=torch.float64, apart=0.05, advantage=None):
    """Steps 1 to 6 of a grid of 10, taken under ``old``."""
    generator = torch.Generator().manual_seed(2)
    state, noise, old, change, reference = (
        torch.randn((ROWS, *ITEM), generator=generator, dtype=dtype) for _ in range(5)
    )
    grid = sigmas.shifted(10, 3.0)
    steps = transitions(Stochastic(step=step, eta=eta, window=Window(size=1)), grid)[1 : ROWS + 1]
    columns = {
        "t": torch.tensor(grid[1 : ROWS + 1], dtype=dtype),
        "length": torch.tensor([grid[i] - grid[i + 1] for i in range(1, ROWS + 1)], dtype=dtype),
        "of_x": torch.tensor([one.x for one in steps], dtype=dtype),
        "of_v": torch.tensor([one.v for one in steps], dtype=dtype),
        "std": torch.tensor([one.std for one in steps], dtype=dtype),
        "advantage": torch.linspace(-3, 3, ROWS, dtype=dtype) if advantage is None else advantage,
    }
    empty = Transitions(state=state, following=state, **columns)
    following = empty.mean(old) + columns["std"].reshape(-1, 1, 1, 1) * noise
    batch = Transitions(state=state, following=following, **columns)
    current = (old + apart * change).requires_grad_()
    return batch, Velocities(current, old, reference), noise


def grpo(**options):
    return Grpo(GrpoOptions(**options))


def gradient(values, velocities):
    (result,) = torch.autograd.grad(values.sum(), velocities.current)
    return result


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("guard", ["none", "ratio", "full"])
def test_at_equal_velocities_the_ratio_is_exactly_one(dtype, guard):
    # T9
    batch, velocities, _ = draw(dtype=dtype, apart=0.0)
    terms = grpo(guard=guard).loss(batch, velocities)
    assert terms.metrics["ratio_gap"].tolist() == [0.0] * ROWS
    assert terms.metrics["clipped"].tolist() == [0.0] * ROWS
    expected = -batch.advantage.to(terms.loss.dtype)
    assert torch.equal(terms.loss, expected / batch.length.to(expected.dtype) if guard == "full" else expected)


@pytest.mark.parametrize("step", STEPS)
def test_at_ratio_one_the_gradient_is_the_policy_gradient(step):
    # T9: -A times the gradient of the log-probability, which is of_v noise / (std D).
    batch, velocities, noise = draw(step, eta=0.5, apart=0.0)
    found = gradient(grpo(step=step, eta=0.5).loss(batch, velocities).loss, velocities)
    weight = (batch.advantage * batch.of_v / batch.std).reshape(-1, 1, 1, 1)
    assert torch.allclose(found, -weight * noise / DIMS, atol=1e-14)
    log_prob = batch.log_prob(velocities.current)
    assert torch.allclose(found, gradient(-batch.advantage * log_prob, velocities), atol=1e-14)


def test_the_log_ratio_is_the_difference_of_log_probabilities():
    batch, velocities, _ = draw()
    expected = batch.log_prob(velocities.current) - batch.log_prob(velocities.old)
    assert torch.allclose(batch.log_ratio(velocities.current, velocities.old), expected, atol=1e-12)


def test_log_prob_is_the_mean_over_dimensions_of_the_density():
    batch, velocities, noise = draw()
    one = torch.distributions.Normal(batch.mean(velocities.old), batch.std.reshape(-1, 1, 1, 1))
    assert torch.allclose(batch.log_prob(velocities.old), one.log_prob(batch.following).flatten(1).mean(1), atol=1e-12)
    assert torch.allclose(batch.noise(velocities.old), noise, atol=1e-12)


def test_the_normalised_ratio_of_the_guard():
    # T12: S (l_new - l_old + mean(dmu^2) / (2 S^2)) = mean(noise dmu).
    batch, velocities, _ = draw()
    moved = batch.moved(velocities.current, velocities.old)
    l_new, l_old = batch.log_prob(velocities.current), batch.log_prob(velocities.old)
    expected = batch.std * (l_new - l_old + moved.square().flatten(1).mean(1) / (2 * batch.std.square()))
    assert torch.allclose(batch.guarded_log_ratio(velocities.current, velocities.old), expected, atol=1e-12)


def test_the_guard_gives_every_step_the_same_weight():
    # The gradient is A noise (1 + eta^2 / 2) / D inside, whatever the step; without it they differ many times.
    batch, velocities, noise = draw(apart=0.0, advantage=torch.ones(ROWS, dtype=torch.float64))
    guarded = gradient(grpo(guard="full").loss(batch, velocities).loss, velocities)
    assert torch.allclose(guarded, 1.245 * noise / DIMS, atol=1e-12)
    plain = gradient(grpo().loss(batch, velocities).loss, velocities)
    weights = (plain / noise).flatten(1).abs().mean(1)
    assert weights.max() / weights.min() > 5


def test_the_log_probability_released_with_cps_is_a_distance():
    batch, velocities, _ = draw("cps", eta=0.8)
    squares = [
        -(batch.following - batch.mean(v)).square().flatten(1).mean(1) for v in (velocities.current, velocities.old)
    ]
    terms = grpo(step="cps", eta=0.8, log_prob="distance", clip=0.5).loss(batch, velocities)
    assert torch.allclose(terms.loss, -batch.advantage * (squares[0] - squares[1]).exp(), atol=1e-12)


def test_clipping_stops_the_gradient_on_the_side_that_it_should():
    batch, velocities, _ = draw(apart=0.5)
    ratio = batch.log_ratio(velocities.current, velocities.old).exp()
    terms = grpo(clip=1e-4).loss(batch, velocities)
    gone_far = torch.where(batch.advantage > 0, ratio > 1 + 1e-4, ratio < 1 - 1e-4)
    assert 0 < int(gone_far.sum()) < ROWS
    assert terms.metrics["clipped"].bool().tolist() == gone_far.tolist()
    moving = gradient(terms.loss, velocities).flatten(1).abs().sum(1) > 0
    assert moving.tolist() == (~gone_far).tolist()


def test_advantages_are_clipped_and_no_reward_is_no_gradient():
    batch, velocities, _ = draw(apart=0.0, advantage=torch.tensor([-9.0, -5, 0, 5, 9, 1000], dtype=torch.float64))
    assert grpo().loss(batch, velocities).loss.tolist() == [5, 5, 0, -5, -5, -5]
    batch, velocities, _ = draw(apart=0.0, advantage=torch.zeros(ROWS, dtype=torch.float64))
    assert gradient(grpo().loss(batch, velocities).loss, velocities).abs().max() == 0


def test_the_pull_to_the_reference():
    batch, velocities, _ = draw(apart=0.0)
    plain, pulled = grpo().loss(batch, velocities), grpo(kl_weight=0.04).loss(batch, velocities)
    kl = (velocities.current - velocities.reference).square().flatten(1).mean(1)
    assert torch.allclose(pulled.loss - plain.loss, 0.04 * kl, atol=1e-12)
    assert (grpo().roles, grpo(kl_weight=0.04).roles) == (set(), {"reference"})
    for options, missing in (({}, "old"), ({"kl_weight": 1}, "reference")):
        given = Velocities(velocities.current, old=velocities.old if options else None)
        with pytest.raises(ValueError, match=missing):
            grpo(**options).loss(batch, given)


@pytest.mark.parametrize("std", ["all", "group"])
@pytest.mark.parametrize("mean", ["group", "leave_one_out"])
def test_shift_and_scale_of_rewards_change_nothing(mean, std):
    # T22
    rewards = np.random.default_rng(0).standard_normal((3, 8))
    kept = np.ones(3, dtype=bool)
    plain = advantages(rewards, kept, mean=mean, std=std).values
    assert advantages(rewards + 7.5, kept, mean=mean, std=std).values == pytest.approx(plain, abs=1e-12)
    assert advantages(20 * rewards, kept, mean=mean, std=std).values == pytest.approx(plain, rel=1e-3)


def test_the_noise_that_it_asks_for():
    every = asked_noise(grpo(), 10, 1)
    assert every == Stochastic(step="flow-sde", eta=0.7, window=Window(size=9, start=0, stop=9))
    assert every.states == 10
    sliding = grpo(window=Window(size=4, every=25))
    assert [sliding.noise(25, i).window.start for i in (1, 25, 26, 51)] == [0, 0, 1, 2]
    with pytest.raises(ValueError, match=r"regenerate\.steps"):
        grpo(window=Window(size=4)).noise(4, 1)
    assert asked_noise(build("objective", "nft", {}), 10, 1) is None


def test_options_are_checked():
    with pytest.raises(UnknownExtensionError, match="unknown sde step 'euler': there is cps, dance"):
        build("objective", "grpo", {"step": "euler"})
    for options, named in (
        ({"guard": "full", "log_prob": "distance"}, "log_prob"),
        ({"step": "cps", "eta": 1.5}, "eta"),
        ({"clip": 0}, "clip"),
        ({"window": {"size": 3, "start": 2, "stop": 4}}, "window"),
    ):
        with pytest.raises(ValueError, match=named):
            build("objective", "grpo", options)


def test_transitions_are_checked():
    batch, _, _ = draw()
    for changes, message in (
        ({"std": torch.zeros(ROWS)}, "without noise"),
        ({"advantage": torch.full((ROWS,), math.nan)}, "no finite advantage"),
        ({"t": torch.ones(2)}, "found"),
    ):
        with pytest.raises(ValueError, match=message):
            Transitions(**{**vars(batch), **changes})
