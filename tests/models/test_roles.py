"""The policy's roles: exact round trips, an untouched base, and one trainable adapter whatever is active."""

import hashlib

import pytest
import torch
from torch import nn

from solrl_tasks.models.lora import LoraError, LoraState, init_lora
from solrl_tasks.models.roles import PolicyModel

PATHS = ("blocks.0.a", "blocks.1.a", "point")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.ModuleDict({"a": nn.Linear(6, 6), "b": nn.Linear(6, 6)}) for _ in range(2))
        self.point = nn.Conv2d(6, 4, 1)
        self.a = nn.Linear(6, 6)

    def forward(self, x):
        for block in self.blocks:
            x = torch.tanh(block["a"](block["b"](x)))
        return self.point(self.a(x)[:, :, None, None])


@pytest.fixture
def base():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Net().requires_grad_(False).eval()


@pytest.fixture
def policy(base):
    return PolicyModel(base, 2, 3.0, PATHS)


def random_state(base, seed):
    zero = init_lora(base, PATHS, 2, 3.0, seed)
    generator = torch.Generator().manual_seed(seed)
    return LoraState(2, 3.0, {k: torch.randn(v.shape, generator=generator) for k, v in zero.weights.items()})


def bits(module):
    state = hashlib.sha256()
    for name, tensor in module.state_dict().items():
        state.update(name.encode() + tensor.contiguous().view(torch.uint8).numpy().tobytes())
    return state.hexdigest()


def merged(base, state, x):
    """The forward pass with each delta added to its weight, written out."""
    net = Net()
    net.load_state_dict(base.state_dict())
    for path in state.paths:
        weight = net.get_submodule(path).weight
        with torch.no_grad():
            weight += state.delta(path).view_as(weight)
    return net(x).detach()


def test_a_fresh_policy_is_the_base_in_every_role(base, policy):
    x = torch.randn(5, 6)
    for role in ("current", "old", "reference"):
        with policy.role(role):
            assert torch.equal(policy.module(x), base(x))
    assert policy.state("current").is_zero
    assert policy.state("current").weights["point.lora_A"].any()


def test_each_role_computes_base_plus_its_own_delta(base, policy):
    x = torch.randn(5, 6)
    states = {"current": random_state(base, 1), "old": random_state(base, 2)}
    for adapter, state in states.items():
        policy.load(adapter, state)
    for adapter, state in states.items():
        with policy.role(adapter):
            torch.testing.assert_close(policy.module(x).detach(), merged(base, state, x), rtol=1e-4, atol=1e-5)
    with policy.role("reference"):
        assert torch.equal(policy.module(x), base(x))


def test_states_round_trip_bit_for_bit(base, policy):
    states = {"current": random_state(base, 1), "old": random_state(base, 2)}
    for adapter, state in states.items():
        policy.load(adapter, state)
    for adapter, state in states.items():
        back = policy.state(adapter)
        assert back.digest == state.digest
        assert (back.rank, back.alpha, back.paths) == (state.rank, state.alpha, state.paths)


def test_a_state_is_a_copy(base, policy):
    state = random_state(base, 1)
    policy.load("current", state)
    taken = policy.state("current")
    with torch.no_grad():
        for _, parameter in policy.trainable():
            parameter.zero_()
    assert taken.digest == state.digest != policy.state("current").digest


def test_the_base_is_never_modified(base):
    x = torch.randn(5, 6)
    before, output, modules = bits(base), base(x), [type(m) for m in base.modules()]
    policy = PolicyModel(base, 2, 3.0, PATHS)
    optimizer = torch.optim.AdamW([p for _, p in policy.trainable()], lr=0.1)
    for i in range(100):
        policy.load("old" if i % 2 else "current", random_state(base, i))
        for role in ("current", "old", "reference"):
            with policy.role(role):
                policy.module(x)
        policy.module(x).square().sum().backward()
        optimizer.step()
    assert bits(base) == before
    assert torch.equal(base(x), output)
    assert [type(m) for m in base.modules()] == modules
    assert not any(p.requires_grad for p in base.parameters())


def test_only_current_requires_a_gradient_in_every_role(policy):
    expected = {f"{path}.{factor}.current.weight" for path in PATHS for factor in ("lora_A", "lora_B")}

    def trained():
        return {name for name, parameter in policy.module.named_parameters() if parameter.requires_grad}

    assert trained() == expected
    for role in ("old", "reference", "current"):
        with policy.role(role):
            assert trained() == expected
            with policy.role("old"):
                assert trained() == expected
        assert trained() == expected


def test_roles_nest_and_are_restored_even_after_an_error(base, policy):
    x = torch.randn(5, 6)
    policy.load("old", random_state(base, 2))
    current = policy.module(x)
    with policy.role("old"):
        old = policy.module(x)
        with pytest.raises(RuntimeError, match="stop"), policy.role("reference"):
            raise RuntimeError("stop")
        assert torch.equal(policy.module(x), old)
    assert torch.equal(policy.module(x), current)
    assert not torch.equal(old, current)


def test_gradients_reach_exactly_the_current_adapter(base, policy):
    x = torch.randn(5, 6)
    policy.load("current", random_state(base, 1))
    policy.load("old", random_state(base, 2))
    output = policy.module(x)
    with torch.no_grad(), policy.role("old"):
        target = policy.module(x)
    (output - target).square().sum().backward()
    moved = {name for name, p in policy.module.named_parameters() if p.grad is not None and p.grad.any()}
    assert moved == {f"{path}.{factor}.current.weight" for path in PATHS for factor in ("lora_A", "lora_B")}


def test_trainable_parameters_are_named_as_in_the_state(policy):
    names = [name for name, _ in policy.trainable()]
    assert names == sorted(policy.state("current").weights)
    assert all(p.dtype == torch.float32 and p.requires_grad for _, p in policy.trainable())


def test_adapters_stay_float32_on_a_bfloat16_base(base):
    policy = PolicyModel(base.to(torch.bfloat16), 2, 3.0, PATHS)
    assert {p.dtype for _, p in policy.trainable()} == {torch.float32}
    state = random_state(base, 1)
    policy.load("old", state)
    assert policy.state("old").digest == state.digest
    with policy.role("old"):
        assert policy.module(torch.randn(5, 6, dtype=torch.bfloat16)).dtype == torch.bfloat16


def test_building_a_policy_leaves_the_global_generator(base):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    PolicyModel(base, 2, 3.0, PATHS)
    assert torch.equal(torch.rand(3), expected)


def test_a_base_that_is_not_frozen_is_refused(base):
    with pytest.raises(ValueError, match="must be frozen"):
        PolicyModel(base.requires_grad_(True), 2, 3.0, PATHS)


def test_states_that_do_not_fit_are_refused(base, policy):
    for other in (
        init_lora(base, PATHS, 4, 3.0, 0),
        init_lora(base, PATHS, 2, 1.0, 0),
        init_lora(base, PATHS[:2], 2, 3.0, 0),
    ):
        with pytest.raises(LoraError, match="does not fit rank 2"):
            policy.load("current", other)


def test_targets_match_whole_paths(policy):
    assert isinstance(policy.module.a, nn.Linear)
    assert isinstance(policy.module.blocks[0]["b"], nn.Linear)


def test_on_a_bfloat16_base_the_factors_multiply_in_bfloat16_and_collect_gradients_in_float32(base):
    policy = PolicyModel(base.to(torch.bfloat16), 2, 3.0, PATHS)
    policy.load("current", random_state(base, 1))
    layer = policy.module.get_submodule("blocks.0.a")
    x = torch.randn(3, 6, dtype=torch.bfloat16)
    down, up = (layer.lora_A["current"].weight, layer.lora_B["current"].weight)
    expected = layer.base_layer(x) + (x @ down.bfloat16().T @ up.bfloat16().T) * 1.5
    found = layer(x)
    assert found.dtype == torch.bfloat16 and torch.equal(found, expected)
    # A pass without gradients first: what it cast must not be used again by the one that needs them.
    with torch.no_grad():
        policy.module(x)
    policy.module(x).float().square().sum().backward()
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for _, p in policy.trainable())
    assert all(bool(p.grad.any()) for _, p in policy.trainable())


def test_a_network_that_cannot_checkpoint_says_so(policy):
    policy.checkpoint(False)
    with pytest.raises(ValueError, match=r"update\.gradient_checkpointing: Net cannot"):
        policy.checkpoint(True)
