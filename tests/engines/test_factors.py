"""Factors of adapters on the way to a device."""

import pytest
import torch

from solrl_tasks.engines import factors
from solrl_tasks.engines.factors import FactorLoader
from solrl_tasks.models.lora import LoraState

CPU = torch.device("cpu")


def make_lora(sizes, rank=3):
    generator = torch.Generator().manual_seed(0)
    weights = {}
    for number, (count, columns) in enumerate(sizes):
        weights[f"{number}.lora_A"] = torch.randn(rank, columns, generator=generator)
        weights[f"{number}.lora_B"] = torch.randn(count, rank, generator=generator)
    return LoraState(rank, 5.0, weights)


def test_on_a_cpu_they_are_the_adapters_own():
    lora = make_lora([(8, 6), (4, 9)])
    loaded = dict(FactorLoader(CPU).load(lora, ["1", "0"]))
    assert list(loaded) == ["1", "0"]
    for path, found in loaded.items():
        assert found.down is lora.weights[f"{path}.lora_A"]
        assert torch.equal(found.delta(), lora.delta(path))


def test_batches_fill_a_stage_and_a_large_layer_is_one_of_its_own(monkeypatch):
    monkeypatch.setattr(factors, "_STAGE", 3 * 20)
    lora = make_lora([(10, 10), (5, 5), (5, 5), (40, 40), (1, 1)])
    assert list(factors._batches(lora, lora.paths)) == [["0"], ["1", "2"], ["3"], ["4"]]
    assert list(factors._batches(lora, [])) == []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no accelerator")
@pytest.mark.parametrize("stage", [100, 1 << 20])
def test_on_an_accelerator_they_are_the_same_numbers(stage, monkeypatch):
    monkeypatch.setattr(factors, "_STAGE", stage)
    lora = make_lora([(64, 48), (16, 32), (48, 48), (80, 16)] * 5)
    loader = FactorLoader(torch.device("cuda"))
    for _ in range(3):
        kept = dict(loader.load(lora, lora.paths))
        assert list(kept) == list(lora.paths)
        for path, found in kept.items():
            assert torch.equal(found.down.cpu(), lora.weights[f"{path}.lora_A"])
            assert torch.equal(found.up.cpu(), lora.weights[f"{path}.lora_B"])
            torch.testing.assert_close(found.delta().cpu(), lora.delta(path), rtol=1e-5, atol=1e-6)
