"""Time and memory of what a device does."""

import time
from collections.abc import Callable
from typing import Any

import torch


class Clock:
    """Times calls on one device. Everything that it was given before is waited for first."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._cuda = device.type == "cuda"

    def wall(self, call: Callable[[], Any]) -> tuple[float, Any]:
        """Seconds from the call to the end of all its work, on any stream, and what it returned."""
        self.wait()
        started = time.perf_counter()
        result = call()
        self.wait()
        return time.perf_counter() - started, result

    def span(self, call: Callable[[], Any]) -> float:
        """Seconds between the first and the last of the call's work on the current stream, by the device's clock.

        The host is not made to wait within the call. On a CPU it is ``wall``.
        """
        if not self._cuda:
            return self.wall(call)[0]
        self.wait()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        call()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) / 1000

    def wait(self) -> None:
        """Until the device has done all that it was given."""
        if self._cuda:
            torch.cuda.synchronize(self.device)

    def reset_peak(self) -> None:
        """Begin a measurement of memory. What the allocator keeps it keeps, or the next call would be slow."""
        if self._cuda:
            self.wait()
            torch.cuda.reset_peak_memory_stats(self.device)

    def peak(self) -> int | None:
        """The most bytes allocated since ``reset_peak``; None on a CPU."""
        if not self._cuda:
            return None
        self.wait()
        return int(torch.cuda.max_memory_allocated(self.device))
