"""The value of a LoRA adapter: plain tensors, apart from any network."""

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from solrl_tasks.models.scope import is_matmul
from solrl_tasks.models.threads import threaded, total_bytes
from solrl_tasks.sampling.identity import stream

FORMAT = "solrl-lora-1"
BASE_DIGEST = "base"
"""Digest of every adapter that changes nothing: sampling with it is sampling from the base."""


class LoraError(ValueError):
    """An adapter that is incomplete, does not fit, or cannot be read."""


@dataclass(frozen=True, eq=False)
class LoraState:
    """A LoRA adapter (arXiv 2106.09685): W + (alpha / rank) B A for each target layer.

    Attributes:
        rank: r, the same for every layer.
        alpha: numerator of the scaling.
        weights: ``<module path>.lora_A`` [r, in] and ``<module path>.lora_B`` [out, r], float32 on the CPU,
            contiguous. Treat them as read-only.
    """

    rank: int
    alpha: float
    weights: dict[str, Tensor]

    def __post_init__(self) -> None:
        for path in self.paths:
            down, up = self.weights.get(f"{path}.lora_A"), self.weights.get(f"{path}.lora_B")
            if down is None or up is None:
                raise LoraError(f"LoRA weights of {path} are incomplete: lora_A and lora_B are both needed")
            if down.ndim != 2 or up.ndim != 2 or down.shape[0] != self.rank or up.shape[1] != self.rank:
                raise LoraError(
                    f"LoRA weights of {path} do not have rank {self.rank}: "
                    f"lora_A is {list(down.shape)}, lora_B is {list(up.shape)}"
                )
        for name, tensor in self.weights.items():
            if tensor.dtype != torch.float32 or tensor.device.type != "cpu" or not tensor.is_contiguous():
                raise LoraError(f"LoRA weight {name} must be contiguous float32 on the CPU, found {_describe(tensor)}")

    @property
    def paths(self) -> tuple[str, ...]:
        """Dotted paths of the target layers, sorted."""
        return tuple(sorted({_module_path(name) for name in self.weights}))

    @property
    def scaling(self) -> float:
        """alpha / rank."""
        return self.alpha / self.rank

    def delta(self, path: str) -> Tensor:
        """What the adapter adds to the weight of the layer at ``path``: float32 [out, in]."""
        return self.scaling * (self.weights[f"{path}.lora_B"] @ self.weights[f"{path}.lora_A"])

    @property
    def nbytes(self) -> int:
        """Of all weights."""
        return total_bytes(self.weights.values())

    @property
    def norm(self) -> float:
        """Frobenius norm of all deltas together, from the small factors: no delta is made."""
        total = 0.0
        for path in self.paths:
            down, up = (self.weights[f"{path}.lora_{side}"].double() for side in "AB")
            total += float(((up.T @ up) * (down @ down.T)).sum())
        return abs(self.scaling) * math.sqrt(max(total, 0.0))

    @property
    def is_zero(self) -> bool:
        """Whether every delta is exactly zero because one factor of each layer is."""
        return all(
            not bool(self.weights[f"{path}.lora_A"].any()) or not bool(self.weights[f"{path}.lora_B"].any())
            for path in self.paths
        )

    @cached_property
    def digest(self) -> str:
        """``base`` for an adapter that changes nothing, else sha256 (hex) of rank, alpha and weights; taken once."""
        if self.is_zero:
            return BASE_DIGEST
        state = hashlib.sha256(f"{FORMAT} {self.rank} {float(self.alpha)!r}".encode())
        for name in sorted(self.weights):
            tensor = self.weights[name]
            state.update(f"\n{name} {list(tensor.shape)}\n".encode())
            state.update(tensor.detach().numpy().data)
        return state.hexdigest()

    def lerp(self, other: "LoraState", decay: float) -> "LoraState":
        """decay * self + (1 - decay) * other, weight by weight; exact copies at 0 and 1.

        Raises:
            LoraError: the two do not have the same rank, alpha and layers.
        """
        if (self.rank, self.alpha, set(self.weights)) != (other.rank, other.alpha, set(other.weights)):
            raise LoraError("only adapters of the same rank, alpha and target layers can be averaged")
        if decay in (0.0, 1.0):
            return (self if decay else other).clone()

        def mixed(name: str) -> Tensor:
            return decay * self.weights[name] + (1.0 - decay) * other.weights[name]

        names = list(self.weights)
        return LoraState(self.rank, self.alpha, dict(zip(names, threaded(mixed, names, self.nbytes), strict=True)))

    def clone(self) -> "LoraState":
        """A copy that shares no memory."""
        copies = threaded(Tensor.clone, list(self.weights.values()), self.nbytes)
        return LoraState(self.rank, self.alpha, dict(zip(self.weights, copies, strict=True)))

    def save(self, path: Path) -> None:
        """Write one safetensors file that ``load`` reads back bit for bit."""
        metadata = {"format": FORMAT, "rank": str(self.rank), "alpha": repr(float(self.alpha))}
        save_file({name: self.weights[name] for name in sorted(self.weights)}, path, metadata=metadata)

    @classmethod
    def load(cls, path: Path) -> "LoraState":
        """Read what ``save`` wrote.

        Raises:
            LoraError: the file is absent, damaged, or something else.
        """
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise LoraError(f"LoRA file {path} cannot be read: {error}") from error
        if metadata.get("format") != FORMAT:
            found = metadata.get("format", "none")
            raise LoraError(f"LoRA file {path} is not one of this project's (format {FORMAT}, found {found})")
        return cls(int(metadata["rank"]), float(metadata["alpha"]), weights)


def init_lora(transformer: nn.Module, paths: Sequence[str], rank: int, alpha: float, seed: int) -> LoraState:
    """A fresh adapter: A is Gaussian with standard deviation 1 / rank, B is zero, so nothing changes yet.

    Each layer draws from a stream of its own, so a layer's A depends on the seed, its path and its shape
    only.

    Raises:
        LoraError: there is no path, or one does not lead to a Linear or 1x1 convolution layer of
            ``transformer``.
    """
    if not paths:
        raise LoraError("a LoRA needs at least one target layer")
    weights = {}
    for path in sorted(paths):
        features_out, features_in = matmul_shape(transformer, path)
        draw = stream("lora", seed, path).standard_normal((rank, features_in), dtype=np.float32)
        weights[f"{path}.lora_A"] = torch.from_numpy(draw) / rank
        weights[f"{path}.lora_B"] = torch.zeros(features_out, rank)
    return LoraState(rank, alpha, weights)


def matmul_shape(root: nn.Module, path: str) -> tuple[int, int]:
    """(out, in) of the layer at ``path``.

    Raises:
        LoraError: there is no such layer, or it is not one matrix multiplication a position.
    """
    try:
        layer = root.get_submodule(path)
    except AttributeError as error:
        raise LoraError(f"LoRA target {path}: the model has no such layer") from error
    if not is_matmul(layer):
        raise LoraError(f"LoRA target {path} is a {type(layer).__name__}, not a Linear or 1x1 convolution layer")
    weight = layer.weight
    assert isinstance(weight, Tensor)
    return weight.shape[0], weight.shape[1]


def from_named(rank: int, alpha: float, paths: Sequence[str], read: Callable[[str], Tensor]) -> LoraState:
    """An adapter copied from where ``read`` finds the tensors ``<path>.lora_A`` and ``<path>.lora_B``."""
    names = [f"{path}.{factor}" for path in sorted(paths) for factor in ("lora_A", "lora_B")]
    found = [read(name).detach() for name in names]
    copies = threaded(_copied, found, total_bytes(found))
    return LoraState(rank, alpha, dict(zip(names, copies, strict=True)))


def _copied(tensor: Tensor) -> Tensor:
    return tensor.to("cpu", torch.float32, copy=True).contiguous()


def _module_path(name: str) -> str:
    path, _, factor = name.rpartition(".")
    if factor not in ("lora_A", "lora_B") or not path:
        raise LoraError(f"LoRA weight {name!r}: names end in .lora_A or .lora_B")
    return path


def _describe(tensor: Tensor) -> str:
    layout = "contiguous" if tensor.is_contiguous() else "not contiguous"
    return f"{tensor.dtype} on {tensor.device}, {layout}"
