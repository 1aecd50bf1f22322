"""Layers of a twin: weights in buffers that a sync overwrites in place."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn
from torch.nn import functional

from solrl_tasks.engines.base import EngineError

MatmulLayer = nn.Linear | nn.Conv2d


class RolloutLayer(nn.Module, ABC):
    """Stands in for one Linear or 1x1 convolution layer, in a twin that gives no gradients.

    Buffers and not parameters hold the weights: copying into them keeps their addresses, so compiled graphs
    live on, and no optimizer can find them.
    """

    @abstractmethod
    def load(self, weight: Tensor) -> None:
        """Take new weights.

        Args:
            weight: float32, shaped as the weight of the layer that this one stands for.
        """

    def merge(self, base: Tensor, delta: Tensor | None) -> None:
        """Take the sum of a base weight and what an adapter adds to it, in float32.

        Args:
            base: the weight of the layer that this one stands for.
            delta: float32, of the same shape.
        """
        self.load(base.float() if delta is None else base + delta)


class RowsLayer(RolloutLayer):
    """A layer that quantises its input by rows, and so wants the columns last.

    Args:
        source: the base layer.
    """

    def __init__(self, source: MatmulLayer) -> None:
        super().__init__()
        self._convolution = isinstance(source, nn.Conv2d)

    def over_rows(self, x: Tensor) -> Tensor:
        """The layer of x [..., columns], or [batch, columns, height, width] for a convolution.

        Raises:
            EngineError: a gradient is asked for.
        """
        if torch.is_grad_enabled() and x.requires_grad:
            raise EngineError("rollout engines give no gradients: call them under torch.no_grad()")
        if self._convolution:
            return self._rows(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        return self._rows(x)

    @abstractmethod
    def _rows(self, x: Tensor) -> Tensor:
        """The layer of x [..., columns]: [..., outputs]."""


class MergedLayer(RolloutLayer):
    """A layer at the base's own precision, the LoRA merged into its weight.

    Args:
        source: the base layer; its bias is shared.
    """

    weight: Tensor

    def __init__(self, source: MatmulLayer) -> None:
        super().__init__()
        self.register_buffer("weight", torch.empty_like(source.weight.detach()), persistent=False)
        self.bias = source.bias
        self._convolution = isinstance(source, nn.Conv2d)

    def extra_repr(self) -> str:
        return f"in={self.weight.shape[1]}, out={self.weight.shape[0]}, dtype={self.weight.dtype}"

    def load(self, weight: Tensor) -> None:
        self.weight.copy_(weight)

    def forward(self, x: Tensor) -> Tensor:
        if self._convolution:
            return functional.conv2d(x, self.weight, self.bias)
        return functional.linear(x, self.weight, self.bias)
