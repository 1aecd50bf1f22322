"""RAM and AWM against the shared core and against each other; the populations are in test_population.py."""

import pytest
import torch
from pydantic import ValidationError

from solrl_tasks.config.extensions import build
from solrl_tasks.objectives.awm import Awm, AwmOptions
from solrl_tasks.objectives.base import MicroBatch, Velocities
from solrl_tasks.objectives.core import core_gradient, target_velocity
from solrl_tasks.objectives.ram import Ram, RamOptions

SHAPE = (6, 3, 4, 4)
DIMS = 48


def draw(dtype=torch.float64, advantage=None):
    generator = torch.Generator().manual_seed(1)
    x0, eps, current, old, reference = (torch.randn(SHAPE, generator=generator, dtype=dtype) for _ in range(5))
    advantage = torch.linspace(-3, 3, 6, dtype=dtype) if advantage is None else advantage
    batch = MicroBatch(x0, eps, torch.linspace(0.1, 1.0, 6, dtype=dtype), advantage)
    return batch, Velocities(current.requires_grad_(), old, reference)


def gradient(objective, batch, velocities):
    (result,) = torch.autograd.grad(objective.loss(batch, velocities).loss.sum(), velocities.current)
    return result


def ram(**options):
    return Ram(RamOptions(**options))


def awm(**options):
    return Awm(AwmOptions(**options))


@pytest.mark.parametrize("baseline", ["old", "current"])
def test_ram_is_the_regression_that_it_says(baseline):
    batch, velocities = draw()
    v_b = velocities.old if baseline == "old" else velocities.current.detach()
    y = target_velocity(batch.x0, batch.eps)
    target = velocities.reference + 7.0 * batch.advantage.reshape(-1, 1, 1, 1) * (y - v_b)
    expected = (velocities.current - target).square().flatten(1).mean(1)
    found = ram(multiplier=7.0, baseline=baseline).loss(batch, velocities).loss
    assert torch.allclose(found, expected, rtol=1e-12)
    (derivative,) = torch.autograd.grad(expected.sum(), velocities.current)
    assert torch.allclose(gradient(ram(multiplier=7.0, baseline=baseline), batch, velocities), derivative, rtol=1e-12)


def test_ram_without_reward_is_the_distance_to_the_reference():
    # T4: and zero at the start.
    batch, velocities = draw(advantage=torch.zeros(6, dtype=torch.float64))
    expected = (velocities.current - velocities.reference).square().flatten(1).mean(1)
    assert torch.allclose(ram().loss(batch, velocities).loss, expected, rtol=1e-12)
    start = Velocities(velocities.reference.clone().requires_grad_(), velocities.reference, velocities.reference)
    assert gradient(ram(), batch, start).abs().max() == 0


def test_ram_with_the_current_baseline_and_awm_make_the_same_update():
    # Up to the scale 1 / rho, which Adam does not see.
    batch, velocities = draw()
    by_ram = gradient(ram(multiplier=20.0, baseline="current"), batch, velocities)
    by_awm = gradient(awm(kl_weight=1 / 20), batch, velocities)
    assert torch.allclose(by_ram, 20 * by_awm, rtol=1e-10)


def test_awm_is_the_core():
    batch, velocities = draw()
    y = target_velocity(batch.x0, batch.eps)
    v = velocities.current.detach()
    core = core_gradient(batch.advantage, y, v, v, reference=(0.3, velocities.reference))
    assert torch.allclose(gradient(awm(kl_weight=0.3), batch, velocities), 2 * core / DIMS, rtol=1e-10)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_targets_of_a_large_multiplier_stay_finite_in_half_precision(dtype):
    # rho A (y - v) is thousands: its square is infinite in float16.
    batch, velocities = draw(dtype)
    terms = ram(multiplier=1000.0).loss(batch, velocities)
    assert terms.loss.dtype == torch.float32
    assert bool(torch.isfinite(terms.loss).all())
    assert terms.loss.max() > 1e6


@pytest.mark.parametrize(
    ("objective", "roles"),
    [
        (ram(), {"old", "reference"}),
        (ram(baseline="current"), {"reference"}),
        (awm(), {"reference"}),
        (awm(kl_weight=0), set()),
    ],
)
def test_only_the_roles_that_are_asked_for_are_needed(objective, roles):
    batch, velocities = draw()
    assert objective.roles == roles
    given = {role: getattr(velocities, role) for role in roles}
    objective.loss(batch, Velocities(velocities.current, **given))
    for role in roles:
        with pytest.raises(ValueError, match=role):
            objective.loss(batch, Velocities(velocities.current, **{r: v for r, v in given.items() if r != role}))


def test_names_options_and_times():
    built = build("objective", "ram", {"multiplier": 1000, "baseline": "current"})
    assert (built.name, built.needs, built.times) == ("ram", "endpoints", "sqrt")
    assert build("objective", "awm", {"times": "grid_subset"}).times == "grid_subset"
    assert build("objective", "ram", {}).guided == set()
    assert build("objective", "ram", {"residual": "guided"}).guided == {"old"}
    with pytest.raises(ValueError, match="residual"):
        build("objective", "ram", {"residual": "guided", "baseline": "current"})
    for name, options in (("ram", {"multiplier": 0}), ("ram", {"baseline": "newest"}), ("awm", {"kl_weight": -1})):
        with pytest.raises(ValueError, match=next(iter(options))):
            build("objective", name, options)
    with pytest.raises(ValidationError):
        RamOptions(beta=1.0)
