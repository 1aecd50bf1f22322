"""Locks between processes by ``flock``: the kernel drops them with the process, however it ends.

They work on local file systems and wherever the file system passes ``flock`` on to its server.
"""

import fcntl
import json
import logging
import os
import time
import weakref
from pathlib import Path
from typing import Any, Self

from solrl_tasks.store.atomic import name_place
from solrl_tasks.store.errors import LockedError
from solrl_tasks.store.lock import HOLDER, Lock, describe, sign

logger = logging.getLogger(__name__)
_POLL_SECONDS = 0.1
_LOOK_SECONDS = 0.2
"""Whoever only looks who holds a lock (``holder``) has it for a moment: that is no holder to be refused for."""


class FileLock(Lock):
    """One lock file, held by at most one process or, if ``shared``, by any number of sharers alone.

    The file says who holds it. It may be entered again by the same object. The file is never removed: a lock
    on a removed file would exclude nobody.

    Args:
        path: the lock file, made with its folder.
        purpose: what the holder does, for the messages of those who wait, such as ``run demo``.
        shared: hold it together with other sharers.
    """

    def __init__(self, path: Path, purpose: str, shared: bool = False) -> None:
        self.path = path
        self.purpose = purpose
        self.shared = shared
        self._handle: int | None = None
        self._depth = 0

    @property
    def held(self) -> bool:
        """Whether this object holds the lock now."""
        return self._handle is not None

    def acquire(self, wait: bool = False, timeout: float | None = None) -> Self:
        """Take the lock; see ``Lock``."""
        if self._handle is None:
            self._handle = self._take(wait, timeout)
            _held.add(self)
        self._depth += 1
        return self

    def release(self) -> None:
        """Give the lock back once; see ``Lock``."""
        if self._handle is None:
            return
        self._depth -= 1
        if self._depth == 0:
            handle, self._handle = self._handle, None
            _held.discard(self)
            fcntl.flock(handle, fcntl.LOCK_UN)
            os.close(handle)

    def confirm(self) -> None:
        """Nothing to find out: the kernel takes a lock from nobody who lives."""

    def _take(self, wait: bool, timeout: float | None) -> int:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            self._wait_for(handle, wait, timeout)
            if not self.shared:
                self._sign(handle)
        except BaseException:
            os.close(handle)
            raise
        return handle

    def _wait_for(self, handle: int, wait: bool, timeout: float | None) -> None:
        mode = fcntl.LOCK_SH if self.shared else fcntl.LOCK_EX
        start = time.monotonic()
        told = False
        while True:
            try:
                fcntl.flock(handle, mode | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                waited = time.monotonic() - start
                if not wait and waited < _LOOK_SECONDS:
                    time.sleep(_LOOK_SECONDS / 10)
                    continue
                if not wait or (timeout is not None and waited >= timeout):
                    raise LockedError(self._refusal(waited if wait else None)) from None
            if not told:
                logger.warning("%s waits for %s", self.purpose, describe_holder(self.path))
                told = True
            time.sleep(_POLL_SECONDS)

    def _refusal(self, waited: float | None) -> str:
        after = "" if waited is None else f" after {waited:.0f} s of waiting"
        return (
            f"{self.purpose}: the lock is held by {describe_holder(self.path)}{after}; wait for it to end, "
            f"or stop it (lock file {self.path})"
        )

    def _sign(self, handle: int) -> None:
        try:
            os.ftruncate(handle, 0)
            os.pwrite(handle, json.dumps(sign(self.purpose)).encode(), 0)
        except OSError as error:
            name_place(error, self.path)
            raise


def holder(path: Path) -> dict[str, Any] | None:
    """Who holds the lock file alone now: pid, host, since, purpose (empty if unreadable); None if free."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _signature(path)
    finally:
        os.close(handle)
    return None


def describe_holder(path: Path) -> str:
    """The last holder of a lock file in words."""
    found = _signature(path)
    return describe(found) if found else "another process"


def _signature(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) and all(field in content for field in HOLDER) else {}


_held: "weakref.WeakSet[FileLock]" = weakref.WeakSet()


def _drop_inherited() -> None:
    # A forked child shares the open file, and would keep a dead parent's lock for as long as it lives.
    for lock in list(_held):
        if lock._handle is not None:
            os.close(lock._handle)
        lock._handle, lock._depth = None, 0
    _held.clear()


os.register_at_fork(after_in_child=_drop_inherited)
