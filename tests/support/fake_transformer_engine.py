"""What the engines use of Transformer Engine, for machines without it: the same names, checks and side effects.

Its one precision is FP8 with a scale for each tensor, like ``Float8CurrentScaling``.
"""

import sys
import types
from contextlib import contextmanager

import torch
from torch import nn

ROW_MULTIPLE = 8


class State:
    """Of the process, as in the original."""

    initializing = None
    recipe = None
    rows: list[int] = []  # noqa: RUF012


def quantized(x):
    scale = x.float().abs().amax().clamp_min(1e-12) / 448
    return (x.float() / scale).to(torch.float8_e4m3fn).float(), scale


class Weight:
    """No torch.Tensor, so that whatever takes it for one fails."""

    def __init__(self, initial):
        self._data, self._scale_inv = quantized(initial)
        self._quantizer = object()
        self.requires_grad = True

    def requires_grad_(self, value):
        self.requires_grad = value
        return self

    def copy_(self, source):
        assert not torch.is_grad_enabled(), "an update in place of what requires gradients"
        assert source.dtype == torch.bfloat16
        assert source.shape == self._data.shape
        for own, new in zip((self._data, self._scale_inv), quantized(source), strict=True):
            own.copy_(new)
        return self


class Linear(nn.Module):
    def __init__(self, inputs, outputs, bias=True, init_method=None, params_dtype=None, device="cuda"):
        super().__init__()
        assert State.initializing is not None, "weights would not be quantised"
        assert not torch.is_grad_enabled(), "column-wise data would be made too"
        initial = torch.full((outputs, inputs), float("nan"), dtype=params_dtype, device=device)
        init_method(initial)
        self.weight = Weight(initial)
        self.bias = nn.Parameter(torch.zeros(outputs, dtype=params_dtype, device=device)) if bias else None

    def forward(self, x):
        if State.recipe is None:
            raise AssertionError("outside of autocast the weight would be dequantised")
        if x.shape[0] % ROW_MULTIPLE:
            raise ValueError(f"FP8 execution requires rows to be divisible by {ROW_MULTIPLE}, got {list(x.shape)}")
        assert x.dtype == torch.bfloat16
        assert x.ndim == 2
        State.rows.append(x.shape[0])
        values, scale = quantized(x)
        product = values @ self.weight._data.t() * (scale * self.weight._scale_inv)
        return (product if self.bias is None else product + self.bias).to(x.dtype)


@contextmanager
def quantized_model_init(enabled=True, recipe=None):
    assert enabled
    State.initializing = recipe
    try:
        yield
    finally:
        State.initializing = None


@contextmanager
def autocast(enabled=True, recipe=None):
    assert enabled
    State.recipe = recipe
    try:
        yield
    finally:
        State.recipe = None


class BlockScaling:
    def __init__(self, **fields):
        self.fields = fields


def install(monkeypatch, version="2.20.2", available=(True, "")):
    """Put it in the place of the real package; returns the module ``transformer_engine.pytorch``."""
    package, pytorch, common, recipe = (
        types.ModuleType(f"transformer_engine{inner}") for inner in ("", ".pytorch", ".common", ".common.recipe")
    )
    package.__version__ = version
    pytorch.Linear, pytorch.quantized_model_init, pytorch.autocast = Linear, quantized_model_init, autocast
    pytorch.is_nvfp4_available = lambda return_reason: available
    recipe.NVFP4BlockScaling = recipe.Float8CurrentScaling = BlockScaling
    for module in (package, pytorch, common, recipe):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    State.initializing = State.recipe = None
    State.rows = []
    return pytorch
