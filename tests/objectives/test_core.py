import pytest
import torch

from solrl_tasks.objectives.core import core_gradient, follow, noised, row_mean, target_velocity


def draw(*names, shape=(5, 3, 4), seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in names]


def autograd(loss, v):
    (gradient,) = torch.autograd.grad(loss.sum(), v)
    return gradient


def test_noise_and_target_agree():
    x0, eps = draw("x0", "eps")
    t = torch.linspace(0.1, 1.0, 5, dtype=torch.float64)
    by_division = (noised(x0, eps, t) - x0) / t.reshape(-1, 1, 1)
    assert torch.allclose(by_division, target_velocity(x0, eps), atol=1e-12)
    assert torch.equal(noised(x0, eps, torch.ones(5)), eps)
    assert torch.equal(noised(x0, eps, torch.zeros(5)), x0)


def test_half_precision_is_widened_before_any_arithmetic():
    x0, eps = (x.to(torch.bfloat16) for x in draw("x0", "eps"))
    assert noised(x0, eps, torch.full((5,), 0.3)).dtype == torch.float32
    assert torch.equal(target_velocity(x0, eps), eps.float() - x0.float())


def test_follow_has_the_gradient_it_is_given():
    v, g = draw("v", "g")
    v.requires_grad_()
    loss = follow(v, g)
    assert torch.allclose(autograd(loss, v), 2 * g / 12, atol=1e-14)
    assert torch.allclose(loss, row_mean(g.square()))


@pytest.mark.parametrize("multiplier", [0.5, 10.0])
def test_ram_with_lagged_baseline(multiplier):
    # T1: the gradient of |v - (v_ref + m A (y - v_old))|^2 is 2 m times the core.
    y, old, reference, v = draw("y", "old", "reference", "v")
    advantage = torch.linspace(-2, 2, 5, dtype=torch.float64)
    v.requires_grad_()
    target = reference + multiplier * advantage.reshape(-1, 1, 1) * (y - old)
    core = core_gradient(advantage, y, old, v, reference=(1 / multiplier, reference))
    assert torch.allclose(autograd((v - target).square(), v), 2 * multiplier * core, atol=1e-10)


def test_advantage_weighted_matching_is_the_same_core():
    # T1: the gradient of A |v - y|^2 + kl |v - v_ref|^2 is twice the core with baseline v.
    y, reference, v = draw("y", "reference", "v")
    advantage, kl = torch.linspace(-2, 2, 5, dtype=torch.float64), 0.3
    v.requires_grad_()
    loss = advantage.reshape(-1, 1, 1) * (v - y).square() + kl * (v - reference).square()
    core = core_gradient(advantage, y, v, v, reference=(kl, reference))
    assert torch.allclose(autograd(loss, v), 2 * core, atol=1e-10)


def test_pulls_take_one_weight_a_row():
    y, old, v = draw("y", "old", "v")
    weights = torch.linspace(0, 2, 5, dtype=torch.float64)
    whole = core_gradient(torch.zeros(5), y, old, v, old=(weights, old))
    rows = [
        core_gradient(torch.zeros(1), *(x[i : i + 1] for x in (y, old, v)), old=(float(weights[i]), old[i : i + 1]))
        for i in range(5)
    ]
    assert torch.allclose(whole, torch.cat(rows))
