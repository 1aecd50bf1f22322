"""Operations of one image and step, counted on tensors without data."""

import copy
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map
from torch.utils.flop_counter import FlopCounterMode

from solrl_tasks.config.base import Frozen
from solrl_tasks.models.families.base import Conditioning, Family
from solrl_tasks.models.scope import is_matmul


class ModelFlops(Frozen):
    """What one image costs in one step, a multiply-add counted as two operations.

    Attributes:
        total: all matrix multiplications, convolutions and attention of the network.
        quantisable: those of the layers that a low-precision engine replaces.
        parameters, quantisable_parameters: weights of the network, and of these layers.
        quantisable_layers: how many these are.
    """

    total: int
    quantisable: int
    parameters: int
    quantisable_parameters: int
    quantisable_layers: int


def count_flops(family: Family, conditioning: Conditioning) -> ModelFlops:
    """Run the family's own velocity once on a copy of the network that has shapes but no data.

    Args:
        conditioning: one encoded prompt; only its shapes matter.
    """
    paths = family.scope.resolve(family.transformer).replaced
    network = _without_data(family.transformer)
    counting = _Counting(network, paths, family.device)
    image = torch.zeros(1, *family.latent_shape, device=family.device)
    with torch.no_grad():
        family.velocity(counting, image, 0.5, conditioning.take([0]))
    layers = [network.get_submodule(path) for path in paths]
    return ModelFlops(
        total=counting.total,
        quantisable=counting.quantisable,
        parameters=sum(parameter.numel() for parameter in network.parameters()),
        quantisable_parameters=sum(p.numel() for layer in layers for p in layer.parameters()),
        quantisable_layers=len(layers),
    )


class _Counting(nn.Module):
    """Stands where the network would: counts on the copy without data, and answers with zeros."""

    def __init__(self, network: nn.Module, paths: tuple[str, ...], device: torch.device) -> None:
        super().__init__()
        self.network = network
        self._device = device
        self.total = 0
        self.quantisable = 0
        for path in paths:
            network.get_submodule(path).register_forward_hook(self._count_layer)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.network, name)

    def forward(self, *arguments: Any, **named: Any) -> Any:
        with FlopCounterMode(display=False) as counter:
            arguments, named = tree_map(_shape_of, (arguments, named))
            result = self.network(*arguments, **named)
        self.total += counter.get_total_flops()
        return tree_map(self._zeros, result)

    def _zeros(self, value: Any) -> Any:
        return torch.zeros_like(value, device=self._device) if isinstance(value, Tensor) else value

    def _count_layer(self, layer: nn.Module, _: Any, output: Tensor) -> None:
        weight = layer.weight
        assert is_matmul(layer) and isinstance(weight, Tensor)
        self.quantisable += 2 * output.numel() * weight.shape[1]


def _shape_of(value: Any) -> Any:
    return torch.empty_like(value, device="meta") if isinstance(value, Tensor) else value


def _without_data(module: nn.Module) -> nn.Module:
    # What the copy finds in the memo it does not copy: 24 GB of weights stay where they are.
    memo: dict[int, Tensor] = {}
    for tensor in chain(module.parameters(), module.buffers()):
        empty = torch.empty_like(tensor, device="meta")
        memo[id(tensor)] = nn.Parameter(empty, requires_grad=False) if isinstance(tensor, nn.Parameter) else empty
    shapes: nn.Module = copy.deepcopy(module, memo)
    return shapes
