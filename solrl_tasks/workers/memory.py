"""How much of a device's memory is held, and how much more work would fit."""

import gc
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, Protocol, TypeVar

import torch

from solrl_tasks.engines.base import hardware_name

T = TypeVar("T")
SIZES: Final = (1, 2, 4, 8, 16, 24, 32, 48, 96)
"""What ``largest_fit`` chooses from: coarse, so that a little more or less memory seldom changes the choice."""
SHARE: Final = 0.9
"""Of the device's memory that a choice may fill: the rest is for what the allocator cannot use and for the driver."""


class DeviceMemoryError(RuntimeError):
    """Work that does not fit in a device's memory; the message names the field to change, and a value that fits."""


class Meter(Protocol):
    """Reads a device's memory, in bytes of this process's own tensors."""

    @property
    def total(self) -> int:
        """What the device has."""
        ...

    def held(self) -> int:
        """Now."""
        ...

    def peak(self, work: Callable[[], Any]) -> int:
        """The most that was held while ``work`` was done, what was held before included."""
        ...


class CudaMeter:
    """Of a CUDA device, as torch's allocator counts."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    @property
    def total(self) -> int:
        """As the driver says: it does not depend on what else runs there."""
        return int(torch.cuda.get_device_properties(self._device).total_memory)

    def held(self) -> int:
        """What tensors hold."""
        torch.cuda.synchronize(self._device)
        return int(torch.cuda.memory_allocated(self._device))

    def peak(self, work: Callable[[], Any]) -> int:
        """The most that tensors held."""
        torch.cuda.synchronize(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        work()
        torch.cuda.synchronize(self._device)
        return int(torch.cuda.max_memory_allocated(self._device))


def largest_fit(need: Callable[[int], int], budget: int, sizes: Iterable[int] = SIZES) -> int | None:
    """The last of ascending sizes whose need is within a budget; None if not even the first one's is.

    Each size is tried in turn. One is not, and ends the search, where the two before it foretell that it would not fit.

    Args:
        need: bytes that a size takes, found by doing it; may raise ``torch.OutOfMemoryError``.
    """
    seen: list[tuple[int, int]] = []
    for size in sizes:
        if len(seen) > 1 and _foretold(seen[-2], seen[-1], size) > budget:
            break
        needed = attempt(partial(need, size))
        if needed is None or needed > budget:
            break
        seen.append((size, needed))
    return seen[-1][0] if seen else None


def halving(works: Callable[[int], Any], size: int) -> int | None:
    """The first of size / 2, size / 4, ... 1 that can be done at all; None if none can.

    Args:
        works: does it; may raise ``torch.OutOfMemoryError``.
    """
    while size > 1:
        size //= 2
        if attempt(partial(_done, works, size)):
            return size
    return None


def attempt(work: Callable[[], T]) -> T | None:
    """What ``work`` returns, or None where memory was short: then everything that it held is given back."""
    try:
        return work()
    except torch.OutOfMemoryError:
        pass
    # Only here, outside the handler, has the error let go of the frames whose tensors it kept alive.
    give_back()
    return None


def give_back() -> None:
    """Return to the driver what no tensor holds any more."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@contextmanager
def explained(what: str, device: torch.device, report: Callable[[], Mapping[str, int]]) -> Iterator[None]:
    """Turn a shortage of memory into an error that says what was to be done and who holds how much.

    Raises:
        DeviceMemoryError: memory was short.
    """
    try:
        yield
    except torch.OutOfMemoryError as error:
        raise DeviceMemoryError(
            f"{what} does not fit in the memory of {hardware_name(device)}: {told(error)}. Held: {listed(report())}"
        ) from None


def told(error: BaseException) -> str:
    """What torch says of a shortage, without its advice to those who program it."""
    said = " ".join(str(error).split())
    return said.split(" Of the allocated memory")[0].split(" If reserved")[0].rstrip(".")


def listed(report: Mapping[str, int]) -> str:
    """A memory report in words; what is too little to matter is left out."""
    amounts = {name: f"{amount / 2**30:.2f}" for name, amount in report.items()}
    return ", ".join(f"{name} {amount} GiB" for name, amount in amounts.items() if float(amount)) or "next to nothing"


def _done(works: Callable[[int], Any], size: int) -> bool:
    works(size)
    return True


def _foretold(one: tuple[int, int], other: tuple[int, int], size: int) -> float:
    (low, little), (high, much) = one, other
    return much + (much - little) / (high - low) * (size - high)
