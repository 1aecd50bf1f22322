"""What fused blocks of several networks have in common."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from solrl_tasks.engines.fp8_layer import Fp8Layer, QuantizedRows
from solrl_tasks.engines.kernels import rows


def modulate(x: Tensor, modulation: Tensor, shift: int, scale: int, norm: nn.LayerNorm) -> QuantizedRows:
    """norm(x) * (1 + scale) + shift, quantised; see ``numerics.fp8.modulate_quantize_rows``.

    Args:
        x: [batch, tokens, columns].
        modulation: [batch, parts * columns].
        shift, scale: which of the parts these are.
    """
    return QuantizedRows(rows.modulate_quantize_rows(x, modulation, shift, scale, norm.eps), x.shape, x.dtype)


def activate(hidden: Tensor, prefix: Tensor | None = None) -> QuantizedRows:
    """gelu(hidden), tanh approximation, behind ``prefix`` if there is one, quantised."""
    columns = hidden.shape[-1] + (0 if prefix is None else prefix.shape[-1])
    return QuantizedRows(rows.gelu_quantize_rows(hidden, prefix), (*hidden.shape[:-1], columns), hidden.dtype)


def feed_forward(module: Any, x: QuantizedRows) -> Tensor:
    """A feed-forward module of diffusers (projection, gelu, dropout, projection) that is not in training."""
    out: Tensor = module.net[2](activate(module.net[0].proj(x)))
    return out


def part(modulation: Tensor, index: int, columns: int) -> Tensor:
    """One vector of a modulation [batch, parts * columns], for all tokens: [batch, 1, columns]."""
    return modulation[:, None, index * columns : (index + 1) * columns]


def lacking(block: nn.Module, layers: Iterable[str], norms: Iterable[str], forwards: Iterable[str] = ()) -> str | None:
    """Why a block cannot be fused, or None.

    Args:
        layers: paths of those that would be given quantised rows.
        norms: paths of layer norms that the kernels compute.
        forwards: paths of feed-forward modules, of which the layers need not be named.
    """
    for path in forwards:
        reason = _unlike_gelu(block.get_submodule(path))
        if reason is not None:
            return f"{path} {reason}"
    own = [f"{path}.{layer}" for path in forwards for layer in ("net.0.proj", "net.2")]
    for path in (*layers, *own):
        if not isinstance(block.get_submodule(path), Fp8Layer):
            return f"{path} is not an FP8 layer"
    for path in norms:
        norm = block.get_submodule(path)
        if not isinstance(norm, nn.LayerNorm) or norm.weight is not None or norm.bias is not None:
            return f"{path} is not a layer norm without weights"
    return None


def _unlike_gelu(module: Any) -> str | None:
    layers: Any = getattr(module, "net", ())
    if len(layers) != 3 or not isinstance(layers[1], nn.Dropout):
        return "is not projection, activation, dropout and projection"
    activation = layers[0]
    if type(activation).__name__ != "GELU" or activation.approximate != "tanh":
        return "has another activation than gelu in its tanh approximation"
    return None
