"""The factors of an adapter, brought to where the weights are."""

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from solrl_tasks.models.lora import LoraState

_STAGE: Final = 1 << 23
"""Numbers copied at a time: large enough for a transfer at full speed, small enough to overlap with what uses it."""


@dataclass(frozen=True)
class Factors:
    """What an adapter adds to one layer: scaling * up @ down.

    Attributes:
        down: [r, in], float32.
        up: [out, r], float32.
    """

    down: Tensor
    up: Tensor
    scaling: float

    def delta(self) -> Tensor:
        """scaling * (up @ down): float32 [out, in]."""
        if self.down.is_cuda:
            # The scaling in the same pass over memory; beta is 0, so that the first tensor is not looked at.
            return torch.addmm(self.up.new_zeros(1, 1), self.up, self.down, beta=0, alpha=self.scaling)
        return self.scaling * (self.up @ self.down)


class FactorLoader:
    """Brings factors to a device.

    To an accelerator they go in a few large copies out of pinned memory, which is kept: one small copy for each factor
    of a large network takes longer than what is done with them. Two stages take turns, so that the host fills one
    while the other is under way. Of the current stream.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stages: list[_Stage] = []

    def load(self, lora: LoraState, paths: Iterable[str]) -> Iterator[tuple[str, Factors]]:
        """The factors of these layers, in this order."""
        if self._device.type == "cpu":
            for path in paths:
                down, up = _pair(lora, path)
                yield path, Factors(down, up, lora.scaling)
            return
        for turn, batch in enumerate(_batches(lora, paths)):
            yield from self._copied(turn, lora, batch)

    def _copied(self, turn: int, lora: LoraState, batch: list[str]) -> Iterator[tuple[str, Factors]]:
        pairs = [_pair(lora, path) for path in batch]
        on_device = self._stage(turn).send([factor for pair in pairs for factor in pair])
        for path, down, up in zip(batch, on_device[::2], on_device[1::2], strict=True):
            yield path, Factors(down, up, lora.scaling)

    def _stage(self, turn: int) -> "_Stage":
        if not self._stages:
            self._stages = [_Stage(self._device) for _ in range(2)]
        return self._stages[turn % len(self._stages)]


class _Stage:
    """Pinned memory, and when it may be written again."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._memory = torch.empty(_STAGE, pin_memory=True)
        self._sent = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def send(self, tensors: list[Tensor]) -> list[Tensor]:
        sizes = [tensor.numel() for tensor in tensors]
        self._sent.synchronize()
        if sum(sizes) > len(self._memory):
            self._memory = torch.empty(sum(sizes), pin_memory=True)
        staged = self._memory[: sum(sizes)]
        for tensor, place in zip(tensors, _parts(staged, sizes), strict=True):
            place.copy_(tensor.flatten())
        there = staged.to(self._device, non_blocking=True)
        self._sent.record(torch.cuda.current_stream(self._device))
        return [part.view(tensor.shape) for tensor, part in zip(tensors, _parts(there, sizes), strict=True)]


def _parts(memory: Tensor, sizes: list[int]) -> list[Tensor]:
    ends = itertools.accumulate(sizes)
    return [memory[end - size : end] for size, end in zip(sizes, ends, strict=True)]


def _pair(lora: LoraState, path: str) -> tuple[Tensor, Tensor]:
    return lora.weights[f"{path}.lora_A"], lora.weights[f"{path}.lora_B"]


def _batches(lora: LoraState, paths: Iterable[str]) -> Iterator[list[str]]:
    """Paths whose factors fit into a stage together; a layer that does not fit alone is a batch."""
    batch: list[str] = []
    filled = 0
    for path in paths:
        size = sum(factor.numel() for factor in _pair(lora, path))
        if batch and filled + size > _STAGE:
            yield batch
            batch, filled = [], 0
        batch.append(path)
        filled += size
    if batch:
        yield batch
