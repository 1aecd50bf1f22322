"""Two estimators of the gradient of the expected reward in x_t: RAM's, and an unbiased one as its oracle.

The oracle (Bismut, Elworthy, Li) weighs a reward by the noise along the very path that led to it, from x_t down the
memoryless SDE. It needs paths and their derivatives, which is why RAM does without; here both are known, as the path is
linear: data are N(0.3, 0.64).
"""

from itertools import pairwise

import numpy as np
import pytest

from solrl_tasks.config.stochastic import Stochastic, Window
from solrl_tasks.sampling.sde.base import transitions

MEAN, VARIANCE = 0.3, 0.64
START, STEPS, PATHS = 0.6, 60, 100_000


def slope(t):
    gain = (1 - t) * VARIANCE / ((1 - t) ** 2 * VARIANCE + t**2)
    return (1 - gain) / t


def velocity(x, t):
    return slope(t) * (x - (1 - t) * MEAN) - MEAN


class Chain:
    """Paths from one state x at t = 0.6 to data, by the posterior step, and the derivative of each state in x."""

    def __init__(self, x, seed=0):
        grid = [START * (1 - i / STEPS) for i in range(STEPS + 1)]
        memoryless = Stochastic(step="memoryless", eta=1.0, window=Window(size=1))
        random = np.random.default_rng(seed)
        state, derivative = np.full(PATHS, x), 1.0
        self.noise, self.derivatives, self.stds = [], [], []
        for (t, _), one in zip(pairwise(grid), transitions(memoryless, grid), strict=True):
            noise = random.standard_normal(PATHS)
            state = one.x * state + one.v * velocity(state, t) + one.std * noise
            derivative *= one.x + one.v * slope(t)
            if one.std > 0:
                self.noise.append(noise)
                self.derivatives.append(derivative)
                self.stds.append(one.std)
        self.end = state

    def weights(self, shares):
        """The likelihood-ratio weight: a shift of x is given to the noise of all steps, each its share."""
        shares = np.asarray(shares) / np.sum(shares)
        return sum(
            share * d * noise / std
            for share, d, noise, std in zip(shares, self.derivatives, self.noise, self.stds, strict=True)
        )


def estimate(reward, weights):
    """Mean and standard error of centred reward times weight."""
    values = (reward - reward.mean()) * weights
    return values.mean(), values.std() / PATHS**0.5


@pytest.mark.parametrize("x", [-0.5, 0.8])
@pytest.mark.parametrize("kind", ["linear", "quadratic"])
def test_both_estimators_find_the_gradient(x, kind):
    chain = Chain(x)
    reward = 1.5 * chain.end if kind == "linear" else -0.5 * chain.end**2
    end, spread = chain.end.mean(), (1 - START) ** 2 * VARIANCE + START**2
    total = (1 - START) * VARIANCE / spread
    truth = 1.5 * total if kind == "linear" else -end * total
    best = [std**2 / d**2 for std, d in zip(chain.stds, chain.derivatives, strict=True)]
    eps = (x - (1 - START) * chain.end) / START
    bayes = (1 - START) / START * (velocity(x, START) - (eps - chain.end))
    # The Bayes estimator is exact for the exact bridge; paths of 60 steps end a little closer together.
    narrower = chain.end.var() / (VARIANCE * START**2 / spread)
    assert 0.9 < narrower < 1
    errors = {}
    for name, weights, bias in (
        ("even", chain.weights(np.ones(len(best))), 1.0),
        ("best", chain.weights(best), 1.0),
        ("bayes", bayes, narrower),
    ):
        mean, errors[name] = estimate(reward, weights)
        assert mean == pytest.approx(truth * bias, abs=4 * errors[name]), name
    assert errors["best"] < errors["even"]
    assert errors["best"] == pytest.approx(errors["bayes"], rel=0.1)
