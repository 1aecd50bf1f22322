import pytest
import torch
from pydantic import ValidationError

from solrl_tasks.config.extensions import build
from solrl_tasks.objectives.base import MicroBatch, Velocities
from solrl_tasks.objectives.core import core_gradient, target_velocity
from solrl_tasks.objectives.nft import Nft, NftOptions, optimality

SHAPE = (6, 3, 4, 4)
DIMS = 48


def nft(**options):
    return Nft(NftOptions(**options))


def draw(dtype=torch.float64, seed=0, advantage=None):
    generator = torch.Generator().manual_seed(seed)
    x0, eps, current, old, reference = (torch.randn(SHAPE, generator=generator, dtype=dtype) for _ in range(5))
    advantage = torch.linspace(-3, 3, 6, dtype=dtype) if advantage is None else advantage
    batch = MicroBatch(x0, eps, torch.linspace(0.1, 1.0, 6, dtype=dtype), advantage)
    return batch, Velocities(current.requires_grad_(), old, reference)


def at_old(velocities):
    """All roles at one point: the state before an update's first step."""
    return Velocities(velocities.old.clone().requires_grad_(), velocities.old, velocities.old)


def negated(batch):
    return MicroBatch(batch.x0, batch.eps, batch.t, -batch.advantage)


def gradient(objective, batch, velocities):
    (result,) = torch.autograd.grad(objective.loss(batch, velocities).loss.sum(), velocities.current)
    return result


def released_loss(batch, velocities, beta, clip, kl):
    """Equation (3.1) of the objectives research, written out sample by sample."""
    rows = []
    for i in range(len(batch.t)):
        x0, t = batch.x0[i], batch.t[i]
        v, old, reference = velocities.current[i], velocities.old[i], velocities.reference[i]
        x_t = (1 - t) * x0 + t * batch.eps[i]
        r = min(max(min(max(float(batch.advantage[i]), -clip), clip) / (2 * clip) + 0.5, 0.0), 1.0)
        branches = []
        for branch in (beta * v + (1 - beta) * old, (1 + beta) * old - beta * v):
            error = x_t - t * branch - x0
            branches.append((error**2).mean() / max(float(error.detach().abs().double().mean()), 1e-5))
        rows.append(clip / beta * (r * branches[0] + (1 - r) * branches[1]) + kl * ((v - reference) ** 2).mean())
    return torch.stack(rows)


@pytest.mark.parametrize(("beta", "clip", "kl"), [(1.0, 5.0, 1e-4), (0.1, 5.0, 0.0), (0.7, 2.0, 0.3)])
def test_the_loss_is_the_released_one(beta, clip, kl):
    batch, velocities = draw()
    terms = nft(beta=beta, clip=clip, kl_weight=kl).loss(batch, velocities)
    expected = released_loss(batch, velocities, beta, clip, kl)
    assert torch.allclose(terms.loss, expected, rtol=1e-10)
    ours, theirs = (torch.autograd.grad(x.sum(), velocities.current)[0] for x in (terms.loss, expected))
    assert torch.allclose(ours, theirs, rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize(("beta", "kl"), [(1.0, 1e-4), (0.1, 0.0), (0.4, 2.0)])
def test_plain_velocity_loss_follows_the_core_identity(beta, kl):
    # T1.
    batch, velocities = draw()
    objective = nft(beta=beta, kl_weight=kl, space="velocity", adaptive_weight=False)
    core = core_gradient(
        batch.advantage,
        target_velocity(batch.x0, batch.eps),
        velocities.old,
        velocities.current,
        old=(5 * beta, velocities.old),
        reference=(kl, velocities.reference),
    )
    assert torch.allclose(gradient(objective, batch, velocities), 2 * core / DIMS, atol=1e-10)


def test_plain_spaces_differ_by_the_square_of_time():
    batch, velocities = draw()
    losses = [nft(kl_weight=0, space=s, adaptive_weight=False).loss(batch, velocities).loss for s in ("x0", "velocity")]
    assert torch.allclose(losses[0], losses[1] * batch.t.square(), rtol=1e-12)


def test_equal_rewards_at_the_old_policy_give_no_gradient():
    # T2.
    batch, velocities = draw(advantage=torch.zeros(6, dtype=torch.float64))
    assert gradient(nft(), batch, at_old(velocities)).abs().max() < 1e-12


def test_equal_rewards_elsewhere_pull_back_to_the_old_policy():
    batch, velocities = draw(advantage=torch.zeros(6, dtype=torch.float64))
    pull = gradient(nft(kl_weight=0, space="velocity", adaptive_weight=False), batch, velocities)
    assert torch.allclose(pull, 2 * 5 * (velocities.current - velocities.old) / DIMS, atol=1e-12)


def test_gradient_at_the_old_policy_is_odd_in_the_advantage():
    # T2c.
    batch, velocities = draw()
    assert torch.allclose(
        gradient(nft(), negated(batch), at_old(velocities)),
        -gradient(nft(), batch, at_old(velocities)),
        atol=1e-12,
    )


def test_gradient_at_the_old_policy_has_its_closed_form():
    # T2d: 2c/D (t^2/w) (A/c) (v_old - y) for a row.
    batch, velocities = draw()
    y, t = target_velocity(batch.x0, batch.eps), batch.t.reshape(-1, 1, 1, 1)
    error = velocities.old - y
    w = (t * error).abs().mean(dim=(1, 2, 3), keepdim=True)
    expected = 2 / DIMS * t.square() / w * batch.advantage.reshape(-1, 1, 1, 1) * error
    assert torch.allclose(gradient(nft(), batch, at_old(velocities)), expected, atol=1e-12)


def test_gradient_at_the_old_policy_does_not_depend_on_beta():
    # T2e.
    batch, velocities = draw()
    one, tenth = (gradient(nft(beta=beta), batch, at_old(velocities)) for beta in (1.0, 0.1))
    assert torch.allclose(one, tenth, atol=1e-12)


def test_value_at_the_old_policy_says_nothing_about_rewards():
    # T3.
    batch, velocities = draw()
    ours, theirs = (nft().loss(b, at_old(velocities)).loss for b in (batch, negated(batch)))
    assert torch.allclose(ours, theirs, rtol=1e-10)


def test_rows_do_not_see_each_other():
    batch, velocities = draw()
    whole = nft().loss(batch, velocities).loss
    for i in range(6):
        row = slice(i, i + 1)
        part = MicroBatch(batch.x0[row], batch.eps[row], batch.t[row], batch.advantage[row])
        alone = Velocities(velocities.current[row], velocities.old[row], velocities.reference[row])
        assert torch.equal(nft().loss(part, alone).loss, whole[row])


def test_gradients_flow_through_current_alone():
    batch, velocities = draw()
    old, reference = velocities.old.requires_grad_(), velocities.reference.requires_grad_()
    nft().loss(batch, Velocities(velocities.current, old, reference)).loss.sum().backward()
    assert velocities.current.grad is not None
    assert old.grad is None
    assert reference.grad is None


def test_packed_latents_reduce_over_all_but_the_batch():
    batch, velocities = draw()
    packed = MicroBatch(batch.x0.flatten(1), batch.eps.flatten(1), batch.t, batch.advantage)
    flat = Velocities(velocities.current.flatten(1), velocities.old.flatten(1), velocities.reference.flatten(1))
    assert torch.allclose(nft().loss(packed, flat).loss, nft().loss(batch, velocities).loss, rtol=1e-12)


def test_half_precision_velocities_give_a_float32_loss():
    batch, velocities = draw(torch.float32)
    half = Velocities(*(300 * v.detach().half() for v in (velocities.current, velocities.old, velocities.reference)))
    terms = nft(kl_weight=1.0, adaptive_weight=False).loss(batch, half)
    assert terms.loss.dtype == torch.float32
    assert torch.isfinite(terms.loss).all()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(nft(kl_weight=1.0, adaptive_weight=False).loss(batch, half).loss, terms.loss)


def test_a_perfect_branch_does_not_divide_by_zero():
    batch, _ = draw()
    y = target_velocity(batch.x0, batch.eps)
    velocities = Velocities(y.clone().requires_grad_(), y, y)
    assert torch.isfinite(gradient(nft(), batch, velocities)).all()


def test_metrics_are_detached_rows():
    batch, velocities = draw()
    terms = nft(kl_weight=0.5).loss(batch, velocities)
    assert set(terms.metrics) == {"policy_loss", "kl", "old_gap", "optimality"}
    assert all(m.shape == (6,) and not m.requires_grad for m in terms.metrics.values())
    assert torch.allclose(terms.loss, terms.metrics["policy_loss"] + 0.5 * terms.metrics["kl"])


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("all", [0.0, 0.0, 0.4, 0.5, 0.6, 1.0, 1.0]),
        ("positive_only", [0.5, 0.5, 0.5, 0.5, 0.6, 1.0, 1.0]),
        ("negative_only", [0.0, 0.0, 0.4, 0.5, 0.5, 0.5, 0.5]),
        ("one_only", [0.5, 0.5, 0.5, 0.5, 0.6, 0.6, 0.6]),
        ("binary", [0.4, 0.4, 0.4, 0.5, 0.6, 0.6, 0.6]),
    ],
)
def test_optimality_by_advantage_mode(mode, expected):
    advantage = torch.tensor([-9.0, -5.0, -1.0, 0.0, 1.0, 5.0, 9.0], dtype=torch.float64)
    assert optimality(advantage, 5.0, mode).tolist() == pytest.approx(expected, abs=1e-15)


def test_the_reference_is_asked_for_only_where_it_counts():
    batch, velocities = draw()
    assert nft().roles == {"old", "reference"}
    assert nft(kl_weight=0).roles == {"old"}
    without = Velocities(velocities.current, velocities.old)
    assert "kl" not in nft(kl_weight=0).loss(batch, without).metrics
    with pytest.raises(ValueError, match="'nft' needs the velocity of role 'reference'"):
        nft().loss(batch, without)
    with pytest.raises(ValueError, match="role 'old'"):
        nft().loss(batch, Velocities(velocities.current, reference=velocities.reference))


def test_found_by_name_with_its_options():
    objective = build("objective", "nft", {"beta": 0.1})
    assert objective.options.beta == 0.1
    assert (objective.needs, objective.times) == ("endpoints", "grid_subset")
    with pytest.raises(ValueError, match=r"objective 'nft': options refused \(bta"):
        build("objective", "nft", {"bta": 0.1})


@pytest.mark.parametrize("options", [{"beta": 0}, {"clip": -1}, {"kl_weight": -1}, {"advantage_mode": "best"}])
def test_options_out_of_range_are_refused(options):
    with pytest.raises(ValidationError):
        NftOptions(**options)


def test_micro_batches_refuse_what_cannot_be_trained_on():
    batch, _ = draw()
    bad = batch.advantage.clone()
    bad[[1, 4]] = torch.tensor([float("nan"), float("inf")], dtype=torch.float64)
    with pytest.raises(ValueError, match=r"rows \[1, 4\] have no finite advantage"):
        MicroBatch(batch.x0, batch.eps, batch.t, bad)
    with pytest.raises(ValueError, match="t and advantage"):
        MicroBatch(batch.x0, batch.eps, batch.t[:3], batch.advantage)
