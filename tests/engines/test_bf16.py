"""The baseline engine's own arithmetic."""

import pytest
import torch
from torch import nn

from solrl_tasks.config.extensions import build
from solrl_tasks.models.lora import LoraState
from solrl_tasks.models.scope import LayerScope

CPU = torch.device("cpu")


def attached(dtype):
    torch.manual_seed(0)
    net = nn.ModuleDict({"a": nn.Linear(32, 24)}).to(dtype)
    engine = build("engine", "bf16", {}, CPU)
    engine.attach(net, LayerScope(include=("a",)))
    return net, engine


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_delta_is_added_in_float32_and_rounded_once(dtype):
    net, engine = attached(dtype)
    lora = LoraState(2, 1.0, {"a.lora_A": torch.randn(2, 32), "a.lora_B": torch.randn(24, 2) * 1e-2})
    engine.sync(lora)
    expected = (net["a"].weight.detach().float() + lora.delta("a")).to(dtype)
    assert engine.module["a"].weight.dtype == dtype
    assert torch.equal(engine.module["a"].weight, expected)
    if dtype == torch.bfloat16:
        twice = net["a"].weight.detach() + lora.delta("a").to(dtype)
        assert not torch.equal(expected, twice)


def test_many_small_steps_do_not_drift():
    net, engine = attached(torch.bfloat16)
    down, up = torch.randn(2, 32), torch.randn(24, 2) * 1e-3
    for step in range(50):
        engine.sync(LoraState(2, 2.0, {"a.lora_A": down, "a.lora_B": up * (step + 1)}))
    engine.sync(None)
    assert torch.equal(engine.module["a"].weight, net["a"].weight)


def test_without_a_lora_it_is_the_base_bit_for_bit():
    net, engine = attached(torch.float32)
    engine.sync(None)
    x = torch.randn(7, 32)
    with torch.no_grad():
        assert torch.equal(engine.module["a"](x), net["a"](x))


def test_the_record_says_in_what_it_computes():
    assert "computed in float32" in attached(torch.float32)[1].record().compute
    assert attached(torch.bfloat16)[1].record().compute == "bfloat16"
