"""Networks of real classes with random weights, drawn where they are needed: for benchmarks and tests.

A weight is a function of its name and its place in the tensor, in integer arithmetic: the same on every device, in
any order, and whatever else is drawn.
"""

import math
from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Any

import torch
from torch import Tensor, nn

VERSION = "random-v1"
"""Part of a base's digest: raised when the same configuration gives other weights."""
_PART = 2**25
"""Values hashed at a time: bounds the memory that drawing needs on top of the weights."""
_MASK = 2**32 - 1
_MULTIPLIERS = (0x7FEB352D, 0x68E31DA5)
"""Odd and below 2^31, so that a product with 32 bits fits a signed 64-bit integer."""


def draw(build: Callable[[], nn.Module], dtype: torch.dtype, device: torch.device, name: str) -> nn.Module:
    """A network with random weights, frozen, in evaluation mode.

    Nothing is allocated before its final place: billions of weights take seconds on a GPU.

    Args:
        build: makes the network; what its constructor computes (position tables) is kept.
        dtype: of weights and floating-point buffers.
        name: goes before the parameters' own names, so that equal layers of two networks differ.
    """
    from accelerate import init_empty_weights

    with torch.random.fork_rng(devices=[]), init_empty_weights(include_buffers=False):
        network = build()
    for path, owner, key, empty in list(_parameters(network)):
        weight = _weight(f"{name}.{path}", empty.shape, dtype, device)
        owner._parameters[key] = nn.Parameter(weight, requires_grad=False)
    _move_buffers(network, dtype, device)
    # Placing weights one by one has separated those that transformers' networks share.
    tie: Callable[[], None] | None = getattr(network, "tie_weights", None)
    if tie is not None:
        tie()
    return network.eval()


def _move_buffers(network: nn.Module, dtype: torch.dtype, device: torch.device) -> None:
    """As reading a file would leave them: those that are stored with the weights get their precision."""
    for owner in network.modules():
        for key, buffer in owner._buffers.items():
            if buffer is not None:
                stored = buffer.is_floating_point() and key not in owner._non_persistent_buffers_set
                owner._buffers[key] = buffer.to(device, dtype if stored else None)


def _parameters(network: nn.Module) -> Iterator[tuple[str, nn.Module, str, Tensor]]:
    """Path, owner, the owner's name, and value of every parameter."""
    for prefix, owner in network.named_modules():
        for key, parameter in owner._parameters.items():
            if parameter is not None:
                yield (f"{prefix}.{key}" if prefix else key), owner, key, parameter


def _weight(name: str, shape: torch.Size, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Biases are 0 and other vectors 1; matrices and kernels keep the size of what passes through them."""
    if len(shape) < 2:
        vector: Callable[..., Tensor] = torch.zeros if name.endswith("bias") else torch.ones
        return vector(shape, dtype=dtype, device=device)
    out = torch.empty(shape, dtype=dtype, device=device)
    fill(out, name, 1.0 / math.sqrt(math.prod(shape[1:])))
    return out


@torch.no_grad()
def fill(out: Tensor, name: str, std: float) -> None:
    """Overwrite ``out`` with uniform values of mean 0 and standard deviation ``std``, a function of ``name`` alone.

    Only integer operations, one product and one rounding are used, so the bits do not depend on the device.
    """
    seeds = [int.from_bytes(sha256(name.encode()).digest()[i : i + 4], "big") for i in (0, 4)]
    scale = torch.tensor(std * math.sqrt(3.0) * 2.0**-23, dtype=torch.float32, device=out.device)
    flat = out.view(-1)
    for start in range(0, flat.numel(), _PART):
        part = flat[start : start + _PART]
        bits = torch.arange(start, start + part.numel(), dtype=torch.int64, device=out.device)
        for seed in seeds:
            bits = _scramble(bits ^ seed)
        # Odd integers below 2^23: exact in float32, symmetric about zero.
        odd = bits.bitwise_right_shift_(9).mul_(2).sub_(2**23 - 1)
        part.copy_(odd.to(torch.float32).mul_(scale))


def _scramble(bits: Tensor) -> Tensor:
    """A bijection of 32-bit integers in which every bit of the input moves about half of the output's."""
    bits = bits ^ (bits >> 16)
    for multiplier in _MULTIPLIERS:
        bits.mul_(multiplier).bitwise_and_(_MASK)
        bits ^= bits >> 15
    return bits


def count(network: nn.Module) -> int:
    """Number of weights; one that is shared counts once."""
    return sum({id(p): p.numel() for p in network.parameters()}.values())


def build_from(cls: Any, config: dict[str, Any]) -> Callable[[], nn.Module]:
    """How a class of diffusers or transformers is made from its ``config.json``."""
    if hasattr(cls, "from_config"):
        return lambda: cls.from_config(config)
    return lambda: cls(cls.config_class.from_dict(config))
