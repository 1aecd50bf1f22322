"""Modules with weights from safetensors or from a seeded generator, put straight onto their device."""

import json
import math
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from solrl_tasks.rewards.base import RewardError
from solrl_tasks.rewards.weights import CONFIG, require_unchanged, weight_files
from solrl_tasks.store.keys import sha256_hex

Build = Callable[[dict[str, Any]], nn.Module]
"""A module from its configuration; called where parameters hold no memory."""

LOGIT_SCALE: Final = math.log(100.0)
"""Where CLIP training clamps the logarithm of its temperature."""
_POSITIONS: Final = re.compile(r"(.*\.)?position_ids")
_SHOWN: Final = 10


def skeleton(build: Build, config: dict[str, Any]) -> nn.Module:
    """A module whose parameters have shapes but no values.

    Raises:
        RewardError: the configuration does not fit the module.
    """
    try:
        with torch.device("meta"):
            return build(config).eval().requires_grad_(False)
    except Exception as error:
        # Libraries check configurations each in their own way.
        raise RewardError(f"its configuration cannot be used: {type(error).__name__}: {error}") from error


def read_config(folder: Path) -> dict[str, Any]:
    """The configuration of a folder of weights.

    Raises:
        RewardError: it cannot be read.
    """
    path = folder / CONFIG
    try:
        config = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise RewardError(f"{path} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise RewardError(f"{path} holds no JSON object")
    return config


def load_module(build: Build, folder: Path, device: torch.device, unused: Iterable[str] = ()) -> nn.Module:
    """A module in float32 with the weights of a folder, ready to compute.

    Args:
        unused: patterns of tensors that the folder may hold beyond the module's.

    Raises:
        RewardError: tensors are missing, unknown or of another shape; the message names them. Or the files have
            changed since the reward's version was taken from them.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    module = skeleton(build, read_config(folder))
    tensors: dict[str, Tensor] = {}
    for path in weight_files(folder):
        try:
            tensors |= load_file(path, device=str(device))
        except (SafetensorError, OSError) as error:
            raise RewardError(f"{path} cannot be read: {error}: copy it again") from error
    require_unchanged(folder)
    ignored = [re.compile(pattern) for pattern in (*unused, _POSITIONS.pattern)]
    tensors = {name: tensor for name, tensor in tensors.items() if not any(p.fullmatch(name) for p in ignored)}
    problems = differences(module, tensors) or _no_numbers(tensors)
    if problems:
        raise RewardError(f"the weights in {folder} do not fit: {'; '.join(problems)}")
    return _filled(module, {name: tensor.float() for name, tensor in tensors.items()}, device)


def random_module(build: Build, config: dict[str, Any], device: torch.device) -> nn.Module:
    """A module in float32 with random weights, drawn on the device; the same every time on one kind of device.

    Weights are normal, each by a generator seeded by its name, and scaled so that signals keep their size; norms are
    one, biases zero, and the temperature of CLIP is what training clamps it to.
    """
    module = skeleton(build, config)
    values = {name: _drawn(name, tensor.shape, device) for name, tensor in module.state_dict().items()}
    return _filled(module, values, device)


def differences(module: nn.Module, tensors: dict[str, Tensor]) -> list[str]:
    """What keeps tensors from being the module's weights, in words; empty if they are."""
    wanted = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    found = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    shapes = [
        f"{name} is {list(found[name])}, expected {list(shape)}"
        for name, shape in wanted.items()
        if name in found and found[name] != shape
    ]
    kinds = {
        "missing": sorted(wanted.keys() - found.keys()),
        "unexpected": sorted(found.keys() - wanted.keys()),
        "of another shape": shapes,
    }
    return [f"{len(names)} {kind} ({shorten(names)})" for kind, names in kinds.items() if names]


def _no_numbers(tensors: dict[str, Tensor]) -> list[str]:
    names = sorted(name for name, tensor in tensors.items() if not tensor.is_floating_point())
    return [f"{len(names)} of another kind than floating-point numbers ({shorten(names)})"] if names else []


def shorten(names: list[str]) -> str:
    """Names for a message, cut where there are too many to read."""
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


class PatchProjection(nn.Module):
    """A convolution whose patches do not overlap, as one matrix product.

    On CUDA convolutions round to TF32 unless a switch of the whole process is set, and pick their algorithm by batch;
    matrix products do neither.
    """

    def __init__(self, source: nn.Conv2d) -> None:
        super().__init__()
        self.weight, self.bias = source.weight, source.bias
        self.side = int(source.kernel_size[0])

    def forward(self, pixels: Tensor) -> Tensor:
        """``[B, 3, H, W]`` to ``[B, C, H / side, W / side]``."""
        batch, channels, height, width = pixels.shape
        side, rows, columns = self.side, height // self.side, width // self.side
        patches = pixels.view(batch, channels, rows, side, columns, side).permute(0, 2, 4, 1, 3, 5)
        flat = patches.reshape(batch, rows * columns, channels * side * side)
        projected = nn.functional.linear(flat, self.weight.flatten(1), self.bias)
        return projected.transpose(1, 2).reshape(batch, -1, rows, columns)


def _filled(module: nn.Module, values: dict[str, Tensor], device: torch.device) -> nn.Module:
    module.load_state_dict(values, assign=True)
    for name, buffer in list(module.named_buffers()):
        if buffer.is_meta:
            if not _POSITIONS.fullmatch(name):
                raise RewardError(f"{name} is no weight and has no known value: the installed transformers is too new")
            parent, _, leaf = name.rpartition(".")
            positions = torch.arange(buffer.shape[-1], device=device).expand(buffer.shape)
            setattr(module.get_submodule(parent), leaf, positions)
    for name, child in list(module.named_modules()):
        if isinstance(child, nn.Conv2d) and child.kernel_size == child.stride:
            parent, _, leaf = name.rpartition(".")
            setattr(module.get_submodule(parent), leaf, PatchProjection(child))
    return module.eval().requires_grad_(False)


def _drawn(name: str, shape: torch.Size, device: torch.device) -> Tensor:
    if name.endswith("logit_scale"):
        return torch.tensor(LOGIT_SCALE, device=device)
    if name.endswith("bias"):
        return torch.zeros(shape, device=device)
    if len(shape) == 1 and "norm" in name.lower():
        return torch.ones(shape, device=device)
    generator = torch.Generator(device).manual_seed(int(sha256_hex(name.encode())[:15], 16))
    # Tables of vectors are of size one; what sums over inputs is divided by the root of their number.
    table = "embedding" in name and "patch" not in name
    deviation = 1.0 if table else math.prod(shape[1:]) ** -0.5
    return torch.empty(shape, device=device).normal_(0.0, deviation, generator=generator)
