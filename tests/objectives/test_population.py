"""Objectives followed to the optimum of a whole population, in a world where everything is known.

Data are one-dimensional Gaussians, velocities are linear in x with their own coefficients in each bin of t,
and the sampling ODE is solved exactly in each bin. The plain NFT loss is quadratic in those coefficients, so
that one Newton step with autograd's gradients of the public loss lands on its minimum.
"""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from solrl_tasks.objectives.advantages import advantages
from solrl_tasks.objectives.base import MicroBatch, Velocities
from solrl_tasks.objectives.nft import Nft, NftOptions
from solrl_tasks.objectives.ram import Ram, RamOptions
from solrl_tasks.selection.best_worst import BestWorst
from solrl_tasks.selection.groups import select_groups

MEAN, VARIANCE = 0.3, 0.64


@dataclass(frozen=True)
class Policy:
    """Velocity slope x + offset, one row a bin of t: [bins, 2]."""

    coefficients: torch.Tensor

    @classmethod
    def exact(cls, bins=100, mean=MEAN, variance=VARIANCE):
        t = times(bins)
        gain = (1 - t) * variance / ((1 - t) ** 2 * variance + t**2)
        slope = (1 - gain) / t
        return cls(torch.stack([slope, -(mean - gain * (1 - t) * mean) / t], dim=1))

    def velocity(self, x):
        """x is [bins, n]."""
        return self.coefficients[:, :1] * x + self.coefficients[:, 1:]

    def law(self):
        """Mean and variance of the samples that the ODE makes."""
        scale, shift = 1.0, 0.0
        for slope, offset in self.coefficients.flip(0).tolist():
            decay = np.exp(-slope / len(self.coefficients))
            scale, shift = scale * decay, shift * decay - offset * (1 - decay) / slope
        return shift, scale**2


@dataclass(frozen=True)
class Endpoints:
    """Weighted samples of (x0, eps) with advantages, [n] each."""

    x0: torch.Tensor
    eps: torch.Tensor
    advantage: torch.Tensor
    weight: torch.Tensor


def times(bins):
    return (torch.arange(bins, dtype=torch.float64) + 0.5) / bins


def nodes(count):
    x, w = np.polynomial.hermite_e.hermegauss(count)
    return torch.from_numpy(x), torch.from_numpy(w / w.sum())


def with_noise(x0, advantage, weight):
    """Every endpoint with two noises: the loss is quadratic in eps, for which two nodes are exact."""
    eps, w = nodes(2)
    pairs = [x.repeat_interleave(2) for x in (x0, advantage)]
    return Endpoints(pairs[0], eps.repeat(len(x0)), pairs[1], torch.outer(weight, w).flatten())


def gaussian(mean, variance):
    """The law of a Gaussian policy under reward x, standardised: exact by quadrature."""
    z, w = nodes(6)
    return with_noise(mean + variance**0.5 * z, z, w)


def centred(reward):
    """The law of a Gaussian policy under a polynomial reward, centred and not scaled: exact by quadrature."""

    def draw(mean, variance, iteration):
        z, w = nodes(8)
        x0 = mean + variance**0.5 * z
        return with_noise(x0, reward(x0) - w @ reward(x0), w)

    return draw


def sampled(mean, variance, count, seed):
    random = np.random.default_rng(seed)
    x0 = mean + variance**0.5 * random.standard_normal(count)
    advantage = advantages(x0[None], np.ones(1, dtype=bool)).values[0]
    eps = torch.from_numpy(random.standard_normal(count))
    return Endpoints(torch.from_numpy(x0), eps, torch.from_numpy(advantage), torch.full_like(eps, 1 / count))


def gradient(objective, coefficients, old, reference, data):
    """Gradient of the population loss for each bin, [bins, 2]."""
    parameters = coefficients.clone().requires_grad_()
    bins = len(parameters)
    rows = [x.repeat(bins)[:, None] for x in (data.x0, data.eps)]
    batch = MicroBatch(*rows, times(bins).repeat_interleave(len(data.x0)), data.advantage.repeat(bins))
    x = batch.x_t.reshape(bins, -1)
    velocities = Velocities(*(p.velocity(x).reshape(-1, 1) for p in (Policy(parameters), old, reference)))
    loss = objective.loss(batch, velocities).loss.reshape(bins, -1) @ data.weight
    return torch.autograd.grad(loss.sum(), parameters)[0]


def regress(objective, old, reference, data):
    """The minimum of a loss that is quadratic in each bin's coefficients."""
    start = old.coefficients
    here = gradient(objective, start, old, reference, data)
    unit = torch.eye(2, dtype=start.dtype)
    hessian = torch.stack([gradient(objective, start + e, old, reference, data) - here for e in unit], dim=2)
    return Policy(start - torch.linalg.solve(hessian, here))


def plain(**options):
    return Nft(NftOptions(space="velocity", adaptive_weight=False, **options))


def train(objective, iterations, draw, bins=100, reference=None, lag=0.0):
    """The law after each of some full regressions, every one from samples of the last.

    ``lag`` is how much of the old policy stays in it after an iteration.
    """
    reference = Policy.exact(bins) if reference is None else reference
    policy, laws = reference, [reference.law()]
    for iteration in range(iterations):
        after = regress(objective, policy, reference, draw(*laws[-1], iteration))
        policy = Policy(lag * policy.coefficients + (1 - lag) * after.coefficients)
        laws.append(policy.law())
    return np.array(laws)


def exactly(mean, variance, iteration):
    return gaussian(mean, variance)


def by_samples(mean, variance, iteration):
    return sampled(mean, variance, 20_000, iteration)


def test_the_world_reproduces_its_data():
    assert Policy.exact().law() == pytest.approx((MEAN, VARIANCE), abs=2e-4)


def test_the_newton_step_lands_on_the_minimum():
    old = Policy.exact()
    objective, data = plain(kl_weight=0.5), gaussian(*old.law())
    best = regress(objective, old, old, data)
    assert gradient(objective, best.coefficients, old, old, data).abs().max() < 1e-12


@pytest.mark.parametrize("beta", [1.0, 0.1])
def test_without_kl_the_mean_drifts_at_a_steady_pace(beta):
    # T7: each full regression moves the mean by s / (c beta).
    laws = train(plain(kl_weight=0, beta=beta), 5, exactly)
    assert np.diff(laws[:, 0]) == pytest.approx(0.8 / (5 * beta), rel=0.02)
    assert laws[:, 1] == pytest.approx(0.64, abs=0.01)


def test_with_kl_the_mean_settles_at_the_regularised_optimum():
    # T7b: the first step is s / (c + kl), the limit s / kl away; the variance does not change.
    laws = train(plain(kl_weight=1.0), 45, exactly)
    assert laws[1, 0] == pytest.approx(0.3 + 0.8 / 6, abs=0.005)
    assert laws[-1, 0] == pytest.approx(0.3 + 0.8, abs=0.005)
    assert laws[-1, 1] == pytest.approx(0.64, abs=0.005)


@pytest.mark.parametrize(("baseline", "lag", "iterations"), [("old", 0.0, 1), ("old", 0.5, 20), ("current", 0.5, 20)])
def test_ram_reaches_the_tilted_gaussian_of_a_linear_reward(baseline, lag, iterations):
    # T5: p_ref exp(rho 1.5 x) has its mean at .3 + .5 x 1.5 x .64 and the variance of the reference. Solved in full
    # against its own velocity the regression swings around that point, so that the policy has to lag.
    objective = Ram(RamOptions(multiplier=0.5, baseline=baseline))
    mean, variance = train(objective, iterations, centred(lambda x: 1.5 * x), lag=lag)[-1]
    assert mean == pytest.approx(0.78, abs=0.005)
    assert variance == pytest.approx(0.64, abs=0.01)


def test_ram_with_standardised_rewards():
    # T5b: the mean moves by rho standard deviations.
    laws = train(Ram(RamOptions(multiplier=0.5)), 3, exactly)
    assert laws[1:, 0] == pytest.approx(0.70, abs=0.005)


@pytest.mark.parametrize(("rho", "found", "tilted"), [(1.0, 0.569, 0.5), (0.1, 0.913, 1 / 1.1)])
def test_ram_is_biased_where_the_reward_is_not_linear(rho, found, tilted):
    # T6: the estimator reads the end of the path from reference to optimum alone; small rewards hide it.
    standard = Policy.exact(mean=0.0, variance=1.0)
    laws = train(
        Ram(RamOptions(multiplier=rho)), 30, centred(lambda x: -(x**2) / 2), reference=standard, lag=0.9 * (rho == 1)
    )
    assert laws[-1, 1] == pytest.approx(found, abs=0.01)
    assert (abs(laws[-1, 1] - tilted) > 0.04) == (rho == 1.0)


def with_guidance(scale, residual, iterations=60, bins=50):
    """Mean of the conditional law, mean and variance of the guided one, after RAM with rho .1 on guided samples.

    The prompt's data are N(1, 1), those without a prompt N(0, 1), and stay so.
    """
    reference, without = Policy.exact(bins, 1.0, 1.0), Policy.exact(bins, 0.0, 1.0)
    objective = Ram(RamOptions(multiplier=0.1, residual=residual))
    policy = reference
    for _ in range(iterations):
        led = Policy(without.coefficients + scale * (policy.coefficients - without.coefficients))
        baseline = led if "old" in objective.guided else policy
        after = regress(objective, baseline, reference, gaussian(*led.law()))
        policy = Policy(0.5 * policy.coefficients + 0.5 * after.coefficients)
    return policy.law()[0], *led.law()


@pytest.mark.parametrize("scale", [1.5, 2.0, 3.0])
def test_a_guided_residual_shifts_guided_samples_and_keeps_their_width(scale):
    # T21
    conditional, mean, variance = with_guidance(scale, "guided")
    assert conditional - 1 == pytest.approx(0.1, abs=0.005)
    assert mean - scale == pytest.approx(scale * 0.1, abs=0.01)
    assert variance == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize(("scale", "shift", "width"), [(1.5, 0.093, 1.09), (2.0, 0.067, 1.25), (3.0, -0.032, 1.95)])
def test_a_conditional_residual_widens_guided_samples(scale, shift, width):
    # T21: what the released setting does.
    conditional, _, variance = with_guidance(scale, "conditional")
    assert conditional - 1 == pytest.approx(shift, abs=0.01)
    assert variance == pytest.approx(width, abs=0.03)


def test_nft_with_kl_and_ram_settle_at_one_point():
    # T7c: a KL weight of 1 is a multiplier of 1.
    by_ram = train(Ram(RamOptions(multiplier=1.0)), 4, exactly)[-1]
    by_nft = train(plain(kl_weight=1.0), 45, exactly)[-1]
    assert by_ram == pytest.approx(by_nft, abs=0.005)
    assert by_ram == pytest.approx((1.10, 0.64), abs=0.01)


def test_the_bayes_estimator_of_the_bridge_score_is_exact_for_the_exact_velocity():
    # T14: (1 - t) / t (v - (eps - x0)) is the gradient of log p(x0 | x_t) in x_t.
    x0, eps, t = torch.randn(3, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    t = t.sigmoid()
    x = ((1 - t) * x0 + t * eps).requires_grad_()
    spread = (1 - t) ** 2 * VARIANCE + t**2
    gain = (1 - t) * VARIANCE / spread
    posterior = MEAN + gain * (x - (1 - t) * MEAN)
    log_p = -((x0 - posterior) ** 2) / (2 * VARIANCE * t**2 / spread)
    (score,) = torch.autograd.grad(log_p.sum(), x)
    velocity = (x - posterior).detach() / t
    assert torch.allclose((1 - t) / t * (velocity - (eps - x0)), score, atol=1e-10)


@pytest.mark.slow
def test_drift_of_a_sampled_population():
    # T7 with samples instead of quadrature, and advantages by the public function.
    laws = train(plain(kl_weight=0), 3, by_samples, bins=50)
    assert np.diff(laws[:, 0]) == pytest.approx(0.16, rel=0.05)


@pytest.mark.slow
def test_settling_of_a_sampled_population():
    # T7b with samples: each regression adds noise of its own, which the pull to the reference averages.
    laws = train(plain(kl_weight=1.0), 45, by_samples, bins=50)
    assert laws[1, 0] == pytest.approx(0.3 + 0.8 / 6, abs=0.005)
    assert laws[-10:, 0].mean() == pytest.approx(1.10, abs=0.01)
    assert laws[-10:, 1].mean() == pytest.approx(0.64, abs=0.01)


def shift_after_selection(explored, stats, groups=1500):
    """How far one regression moves N(0, 1) under reward x with 24 kept of the explored, in units of 1 / c."""
    random = np.random.default_rng(0)
    rewards = random.standard_normal((groups, explored))
    seeds = random.integers(0, 2**63, rewards.shape).astype(np.uint64)
    chosen = select_groups(rewards, seeds, 24, BestWorst())
    kept = np.take_along_axis(rewards, chosen.indices, axis=1)
    found = advantages(kept, chosen.kept, stats, rewards).values
    x0, advantage = (torch.from_numpy(x.flatten()) for x in (kept, found))
    old = Policy.exact(bins=20, mean=0.0, variance=1.0)
    data = with_noise(x0, advantage, torch.full((len(x0),), 1 / len(x0), dtype=torch.float64))
    after = regress(plain(kl_weight=0), old, old, data)
    return 5 * (after.law()[0] - old.law()[0]), after.law()[1], np.abs(found).mean()


def test_selecting_both_ends_widens_the_step_and_nothing_else():
    # T15: kept statistics multiply the step by the spread of the kept, 1.68 pool stds; pool statistics by its
    # square. A group of 24 without selection loses 1/24 of its step to the mean that includes the sample.
    plain_step, plain_variance, plain_size = shift_after_selection(24, "kept")
    kept_step, kept_variance, kept_size = shift_after_selection(96, "kept")
    pool_step, pool_variance, _ = shift_after_selection(96, "pool")
    assert plain_step == pytest.approx(23 / 24, abs=0.01)
    assert kept_step == pytest.approx(1.68, abs=0.02)
    assert kept_step / plain_step == pytest.approx(1.75, abs=0.03)
    assert pool_step == pytest.approx(1.687**2, abs=0.05)
    assert (plain_size, kept_size) == pytest.approx((0.78, 0.963), abs=0.01)
    assert (plain_variance, kept_variance, pool_variance) == pytest.approx((1.0, 1.0, 1.0), abs=0.01)


def test_keeping_the_best_alone_is_wrong():
    # Centring turns the less good of the best into bad ones: the mean moves the wrong way and spread grows.
    random = np.random.default_rng(0)
    rewards = np.sort(random.standard_normal((1500, 96)), axis=1)[:, -24:]
    found = advantages(rewards, np.ones(1500, dtype=bool)).values
    x0, advantage = (torch.from_numpy(x.flatten()) for x in (rewards, found))
    old = Policy.exact(bins=20, mean=0.0, variance=1.0)
    data = with_noise(x0, advantage, torch.full((len(x0),), 1 / len(x0), dtype=torch.float64))
    assert regress(plain(kl_weight=0), old, old, data).law() == pytest.approx((-0.055, 1.38), abs=0.02)
