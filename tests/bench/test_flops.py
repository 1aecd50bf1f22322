"""Counting operations on shapes: against closed forms, and without touching the real network."""

from types import SimpleNamespace

import torch
from torch import nn

from solrl_tasks.bench.flops import count_flops
from solrl_tasks.models.families.base import Conditioning
from solrl_tasks.models.scope import LayerScope


class Network(nn.Module):
    """A quantisable Linear and 1x1 convolution, and a 3x3 convolution that stays."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(8, 16), nn.Conv2d(16, 4, 1)])
        self.last = nn.Conv2d(4, 2, 3, padding=1, bias=False)
        self.ran_with: list[str] = []

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        self.ran_with.append(x.device.type)
        x = self.blocks[0](x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return (self.last(self.blocks[1](x)),)


def family(network: Network, calls: int = 1) -> SimpleNamespace:
    def velocity(module, x, sigma, conditioning):
        for _ in range(calls):
            (result,) = module(x)
            assert result.shape == (1, 2, 4, 4) and result.device.type == "cpu"
        return result

    return SimpleNamespace(
        transformer=network,
        scope=LayerScope(include=(r"blocks\..*",), skip=()),
        device=torch.device("cpu"),
        latent_shape=(8, 4, 4),
        velocity=velocity,
    )


def test_operations_are_counted_in_closed_form():
    network = Network()
    found = count_flops(family(network), Conditioning({"text": torch.zeros(1, 1)}))
    pixels = 16
    quantisable = 2 * pixels * (8 * 16 + 16 * 4)
    assert found.quantisable == quantisable
    assert found.total == quantisable + 2 * pixels * 4 * 2 * 9
    assert found.quantisable_layers == 2
    assert found.parameters == 8 * 16 + 16 + 16 * 4 + 4 + 4 * 2 * 9
    assert found.quantisable_parameters == 8 * 16 + 16 + 16 * 4 + 4


def test_the_real_network_does_not_run():
    network = Network()
    count_flops(family(network), Conditioning({"text": torch.zeros(1, 1)}))
    assert network.ran_with == []
    assert {p.device.type for p in network.parameters()} == {"cpu"}
    assert not network.blocks[0]._forward_hooks


def test_every_call_of_the_network_counts():
    once = count_flops(family(Network()), Conditioning({"text": torch.zeros(1, 1)}))
    twice = count_flops(family(Network(), calls=2), Conditioning({"text": torch.zeros(1, 1)}))
    assert (twice.total, twice.quantisable) == (2 * once.total, 2 * once.quantisable)
