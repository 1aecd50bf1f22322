"""The digest of a policy: all of it."""

from dataclasses import replace

import pytest
import torch

from solrl_tasks.models.lora import LoraState
from solrl_tasks.workers.state import ROLES, PolicyState
from solrl_tasks.workers.transport import pack_state, unpack_state


def state():
    def adapter(seed):
        generator = torch.Generator().manual_seed(seed)
        return LoraState(
            2,
            4.0,
            {
                "layer.lora_A": torch.randn(2, 3, generator=generator),
                "layer.lora_B": torch.randn(5, 2, generator=generator),
            },
        )

    moments = {
        f"layer.lora_A.{name}": torch.full((2, 3), value) for name, value in (("exp_avg", 1.0), ("exp_avg_sq", 2.0))
    }
    return PolicyState(adapter(1), adapter(2), adapter(3), moments, 4, 5)


def test_a_digest_names_the_contents():
    one = state()
    assert one.digest == state().digest == unpack_state(pack_state(one)).digest
    assert one.role_digests() == {role: one.role(role).digest for role in ROLES}


@pytest.mark.parametrize("role", ROLES)
def test_a_digest_changes_with_any_adapter_even_with_one_that_changes_nothing(role):
    one = state()
    for name in one.role(role).weights:
        weights = {key: value.clone() for key, value in one.role(role).weights.items()}
        weights[name][0, 0] += 1
        assert replace(one, **{role: LoraState(2, 4.0, weights)}).digest != one.digest
    still = {key: value * ("A" in key) for key, value in one.role(role).weights.items()}
    other = {key: value * 2 for key, value in still.items()}
    idle, idler = (replace(one, **{role: LoraState(2, 4.0, weights)}) for weights in (still, other))
    assert idle.role(role).digest == idler.role(role).digest and idle.digest != idler.digest


def test_a_digest_changes_with_moments_and_counters():
    one = state()
    moments = {name: value + 1 for name, value in one.optimizer.items()}
    others = [replace(one, optimizer={**one.optimizer, name: moments[name]}) for name in moments]
    others += [replace(one, optimizer={}), replace(one, iteration=5), replace(one, optimizer_step=6)]
    assert len({one.digest, *(other.digest for other in others)}) == 1 + len(others)
