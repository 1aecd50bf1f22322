"""What locks of files and leases of a bucket have in common."""

import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, Final, Self

HOLDER: Final = ("pid", "host", "since", "purpose")
"""What a lock says of who holds it."""


class Lock(ABC):
    """Held by one at a time, and entered again by the same object; see ``FileLock`` and ``Lease``."""

    purpose: str

    @property
    @abstractmethod
    def held(self) -> bool:
        """Whether this object holds it now, as far as it knows."""

    @abstractmethod
    def acquire(self, wait: bool = False, timeout: float | None = None) -> Self:
        """Take it.

        Args:
            wait: wait until it is free, after a message that names the holder, instead of an error.
            timeout: the longest wait in seconds; None is for ever.

        Raises:
            LockedError: somebody else holds it; the message names process, host, purpose and since when.
        """

    @abstractmethod
    def release(self) -> None:
        """Give it back once; it is free when given back as often as it was taken."""

    @abstractmethod
    def confirm(self) -> None:
        """Make sure that it is still held. Raises LeaseLostError if somebody took it over."""

    @contextmanager
    def hold(self, wait: bool = False, timeout: float | None = None) -> Iterator[Self]:
        """``acquire`` for the length of a context."""
        self.acquire(wait, timeout)
        try:
            yield self
        finally:
            self.release()


def sign(purpose: str) -> dict[str, Any]:
    """This process as the holder of a lock, by the names of ``HOLDER``."""
    return {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
        "purpose": purpose,
    }


def describe(holder: Mapping[str, Any]) -> str:
    """A holder in words."""
    return f"{holder['purpose']} (process {holder['pid']} on {holder['host']}, since {holder['since']})"
