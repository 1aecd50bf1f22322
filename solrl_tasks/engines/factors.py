"""The factors of an adapter, brought to where the weights are."""

import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
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
            # The scaling in the same pass over memory; beta is 0, so any number may stand where one is added.
            return torch.addmm(self.up[:1, :1], self.up, self.down, beta=0, alpha=self.scaling)
        return self.scaling * (self.up @ self.down)


class FactorLoader:
    """Brings factors to a device.

    To an accelerator they go in a few large copies out of pinned memory, which is kept: one small copy for each factor
    of a large network takes longer than what is done with them. Two stages take turns, and a thread fills one while the
    layers of the other are written. Copies have a stream of their own; the one that is current where ``load`` is called
    waits for them.
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
        stream = torch.cuda.current_stream(self._device)
        with ThreadPoolExecutor(max_workers=1) as thread:
            sent: deque[Future[_Sent]] = deque()
            for turn, batch in enumerate(_batches(lora, paths)):
                sent.append(thread.submit(self._stage(turn).send, lora, batch, stream))
                if len(sent) > 1:
                    yield from sent.popleft().result().arrive(stream)
            while sent:
                yield from sent.popleft().result().arrive(stream)

    def _stage(self, turn: int) -> "_Stage":
        if not self._stages:
            copies = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
            self._stages = [_Stage(copies) for _ in range(2)]
        return self._stages[turn % len(self._stages)]


@dataclass(frozen=True)
class _Sent:
    """Factors on their way to the device, and the event of their arrival."""

    factors: list[tuple[str, Factors]]
    arrival: torch.cuda.Event

    def arrive(self, stream: torch.cuda.Stream) -> list[tuple[str, Factors]]:
        """Let a stream wait for them, not the host."""
        stream.wait_event(self.arrival)
        return self.factors


class _Stage:
    """Pinned memory, and when it may be written again.

    Args:
        copies: the stream of the copies.
    """

    def __init__(self, copies: torch.cuda.Stream) -> None:
        self._copies = copies
        self._memory = torch.empty(_STAGE, pin_memory=True)
        self._arrival = torch.cuda.Event()  # type: ignore[no-untyped-call]

    @torch.no_grad()
    def send(self, lora: LoraState, batch: list[str], user: torch.cuda.Stream) -> _Sent:
        """Start to copy the factors of a batch, which ``user`` will read."""
        tensors = [factor for path in batch for factor in _pair(lora, path)]
        sizes = [tensor.numel() for tensor in tensors]
        self._arrival.synchronize()
        if sum(sizes) > len(self._memory):
            self._memory = torch.empty(sum(sizes), pin_memory=True)
        staged = self._memory[: sum(sizes)]
        for tensor, place in zip(tensors, _parts(staged, sizes), strict=True):
            place.copy_(tensor.flatten())
        with torch.cuda.stream(self._copies):
            there = staged.to(self._copies.device, non_blocking=True)
            self._arrival.record(self._copies)
        # Its memory is of the stream of copies, which could give it away while the user still reads.
        there.record_stream(user)
        parts = [part.view(tensor.shape) for tensor, part in zip(tensors, _parts(there, sizes), strict=True)]
        factors = [Factors(down, up, lora.scaling) for down, up in zip(parts[::2], parts[1::2], strict=True)]
        return _Sent(list(zip(batch, factors, strict=True)), self._arrival)


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
