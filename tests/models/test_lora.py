"""LoRA values: shapes, digests, averaging, files."""

import dataclasses

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from solrl_tasks.models.lora import LoraError, LoraState, init_lora


def make_net() -> nn.Module:
    return nn.ModuleDict({"a": nn.Linear(6, 4), "b": nn.Sequential(nn.Conv2d(4, 8, 1), nn.GELU())})


def random_state(seed: int = 0) -> LoraState:
    zero = init_lora(make_net(), ["a", "b.0"], rank=2, alpha=3.0, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    return LoraState(2, 3.0, {k: torch.randn(v.shape, generator=generator) for k, v in zero.weights.items()})


def same_bits(one: LoraState, other: LoraState) -> bool:
    if (one.rank, one.alpha, set(one.weights)) != (other.rank, other.alpha, set(other.weights)):
        return False
    return all(torch.equal(v.view(torch.int32), other.weights[k].view(torch.int32)) for k, v in one.weights.items())


def test_a_fresh_adapter_is_the_base():
    state = init_lora(make_net(), ["b.0", "a"], rank=2, alpha=4.0, seed=1)
    assert state.paths == ("a", "b.0")
    assert state.weights["b.0.lora_A"].shape == (2, 4)
    assert state.weights["b.0.lora_B"].shape == (8, 2)
    assert state.is_zero
    assert state.digest == "base"
    assert not state.delta("a").any()
    assert state.scaling == 2.0


def test_a_fresh_adapter_depends_on_seed_and_path_only():
    both = init_lora(make_net(), ["a", "b.0"], 2, 4.0, seed=1)
    alone = init_lora(make_net(), ["b.0"], 2, 8.0, seed=1)
    assert torch.equal(both.weights["b.0.lora_A"], alone.weights["b.0.lora_A"])
    other = init_lora(make_net(), ["b.0"], 2, 8.0, seed=2)
    assert not torch.equal(other.weights["b.0.lora_A"], alone.weights["b.0.lora_A"])


def test_a_has_the_spread_of_peft_gaussian():
    wide = init_lora(nn.ModuleDict({"a": nn.Linear(4000, 4)}), ["a"], 8, 8.0, seed=0).weights["a.lora_A"]
    assert wide.std().item() == pytest.approx(1 / 8, rel=0.02)


def test_delta_is_scaling_times_b_times_a():
    state = random_state()
    expected = 1.5 * state.weights["a.lora_B"].double() @ state.weights["a.lora_A"].double()
    assert state.delta("a").shape == (4, 6)
    torch.testing.assert_close(state.delta("a").double(), expected, rtol=1e-5, atol=1e-6)


def test_the_digest_sees_every_bit_and_number():
    state = random_state()
    digests = {state.digest, dataclasses.replace(state, alpha=3.5).digest, random_state(1).digest}
    changed = state.clone()
    changed.weights["b.0.lora_B"][7, 1] += 1e-6
    digests.add(changed.digest)
    assert len(digests) == 4
    assert state.clone().digest == state.digest
    assert all(len(d) == 64 for d in digests)


def test_a_nan_is_not_zero():
    state = init_lora(make_net(), ["a"], 2, 4.0, seed=1)
    state.weights["a.lora_B"][0, 0] = torch.nan
    assert not state.is_zero


@pytest.mark.parametrize("decay", [0.0, 0.25, 1.0])
def test_lerp_keeps_decay_of_the_first(decay):
    one, other = random_state(0), random_state(1)
    mixed = one.lerp(other, decay)
    expected = decay * one.weights["a.lora_A"] + (1 - decay) * other.weights["a.lora_A"]
    torch.testing.assert_close(mixed.weights["a.lora_A"], expected)
    if decay == 0.0:
        assert same_bits(mixed, other)
    if decay == 1.0:
        assert same_bits(mixed, one)
    mixed.weights["a.lora_A"].zero_()
    assert one.weights["a.lora_A"].any()
    assert other.weights["a.lora_A"].any()


def test_lerp_refuses_adapters_of_different_shape():
    with pytest.raises(LoraError, match="same rank"):
        random_state().lerp(dataclasses.replace(random_state(), alpha=1.0), 0.5)


def test_files_round_trip_bit_for_bit(tmp_path):
    state = dataclasses.replace(random_state(), alpha=1 / 3)
    state.weights["a.lora_A"][0, 0] = -0.0
    state.weights["a.lora_A"][0, 1] = 1e-42
    state.save(tmp_path / "x.safetensors")
    back = LoraState.load(tmp_path / "x.safetensors")
    assert same_bits(state, back)
    assert back.digest == state.digest


def test_unreadable_files_are_named(tmp_path):
    absent, torn, foreign = (tmp_path / f"{n}.safetensors" for n in ("absent", "torn", "foreign"))
    random_state().save(torn)
    torn.write_bytes(torn.read_bytes()[:-8])
    save_file({"a": torch.zeros(2)}, foreign)
    for path in (absent, torn, foreign):
        with pytest.raises(LoraError, match=path.name):
            LoraState.load(path)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ({"a.lora_A": torch.zeros(2, 6)}, "incomplete"),
        ({"a.lora_A": torch.zeros(3, 6), "a.lora_B": torch.zeros(4, 3)}, "rank 2"),
        ({"a.weight": torch.zeros(3, 6)}, "names end in"),
        ({"a.lora_A": torch.zeros(2, 6).double(), "a.lora_B": torch.zeros(4, 2)}, "float32"),
        ({"a.lora_A": torch.zeros(6, 2).T, "a.lora_B": torch.zeros(4, 2)}, "not contiguous"),
    ],
)
def test_incomplete_weights_are_refused(weights, message):
    with pytest.raises(LoraError, match=message):
        LoraState(2, 2.0, weights)


@pytest.mark.parametrize(
    ("path", "message"), [("c", "no such layer"), ("b.1", "GELU"), ("b.0.weight", "no such layer")]
)
def test_targets_must_be_matmul_layers(path, message):
    with pytest.raises(LoraError, match=message):
        init_lora(make_net(), [path], 2, 4.0, seed=0)
