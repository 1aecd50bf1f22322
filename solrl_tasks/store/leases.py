"""Locks on an object store: leases that their holder renews, and that end when nobody does.

A lease is one object, written under a condition (If-None-Match, If-Match), so that of two who take it one succeeds. A
thread renews it. Whoever finds it not renewed for its whole length takes it over. Its age is told by the clock of the
server, so that clocks of clients do not matter; a holder that died on this very machine is known at once.

A lease does not stop a writer that lost it without noticing, as nothing could. It need not: what the store holds
follows from its address and carries its digest, so that a late write changes nothing, or is found; and where a late
write would replace something else, the lease is looked at first (``confirm``).
"""

import json
import logging
import os
import threading
import time
import weakref
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final, Self
from uuid import uuid4

from solrl_tasks.store.bucket import Bucket
from solrl_tasks.store.errors import LeaseLostError, LockedError, StoreError
from solrl_tasks.store.lock import HOLDER, Lock, describe, sign
from solrl_tasks.store.object_path import ObjectPath
from solrl_tasks.store.process import boot_id, start_of
from solrl_tasks.store.waits import setting

logger = logging.getLogger(__name__)

_BEATS: Final = 4.0
"""Renewals in the length of a lease: as many may fail."""
_MARGIN_SECONDS: Final = 2.0
"""Times of objects are told in whole seconds, and servers have more than one clock."""
_SHARED: Final = ".shared"
_CLOCK: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""One that goes on while the machine sleeps, where there is one."""


def lease_seconds() -> float:
    """How long a lost process blocks others: SOLRL_LEASE_SECONDS, by default 60. Raises StoreError if unusable."""
    return setting("SOLRL_LEASE_SECONDS", 60.0, 2.0)


@dataclass(frozen=True)
class _Found:
    """A lease object as it was found."""

    content: dict[str, Any]
    etag: str
    modified: float


class Lease(Lock):
    """One lock on an object store, used as ``FileLock`` is.

    Args:
        path: the lease object; its content says who holds it. Sharers have one each in a folder beside it.
        purpose: what the holder does, for the messages of those who wait.
        shared: hold it together with other sharers.
        shareable: held alone, it needs that there are no sharers either.
    """

    def __init__(self, path: ObjectPath, purpose: str, shared: bool = False, shareable: bool = False) -> None:
        self.path = path
        self.purpose = purpose
        self.shared = shared
        self.shareable = shareable
        self.lost = ""
        self.due = 0.0
        self._own: ObjectPath | None = None
        self._etag = ""
        self._content: dict[str, Any] = {}
        self._depth = 0
        self._told = 0.0
        self._lapsed = False
        self._one = threading.RLock()

    @property
    def held(self) -> bool:
        """Whether this object holds the lease, as far as it knows."""
        return self._own is not None and not self.lost

    @property
    def sure(self) -> bool:
        """Whether nobody can have taken it for lost: it was never without a sign of life for its whole length."""
        if self.held and self._late(self._told, _now()):
            self._lapsed = True
        return self.held and not self._lapsed

    def acquire(self, wait: bool = False, timeout: float | None = None) -> Self:
        """Take the lease; see ``Lock``.

        Even without ``wait`` a holder that does not renew is waited for until its lease ends: it may be dead.
        """
        if self._own is None:
            self.lost, self._lapsed = "", False
            self._wait_for(wait, timeout)
            self._plan()
            _heart.add(self)
        self._depth += 1
        return self

    def release(self) -> None:
        """Give the lease back once; see ``Lock``. One that was lost is somebody else's, and stays so."""
        if self._own is None:
            return
        self._depth -= 1
        if self._depth:
            return
        _heart.drop(self)
        with self._one:
            own, self._own = self._own, None
            if self.lost:
                return
            try:
                if self.shared:
                    own.unlink()
                else:
                    own.bucket.replace(own.key, _bytes({**self._content, "released": True}), self._etag)
            except StoreError as error:
                logger.warning("%s ends by itself within %.0f s: %s", own, self._content["seconds"], error)

    def confirm(self) -> None:
        """Look at the lease itself: is it still this object's?

        Raises:
            LeaseLostError: somebody took it over; the message names whom.
        """
        with self._one:
            if self._own is None:
                return
            if not self.lost:
                found = _look(self._own)
                if found is None or found.content.get("token") != self._content["token"]:
                    self._lose(found)
            if self.lost:
                raise LeaseLostError(self.lost)

    def renew(self) -> None:
        """Tell others that the holder lives; the heartbeat calls it."""
        with self._one:
            self._plan()
            if self._own is None or self.lost:
                return
            content = {**self._content, "beat": self._content["beat"] + 1}
            hurried = self._own.bucket.hurried(max(1.0, content["seconds"] / _BEATS))
            began = _now()
            if self.shared:
                self._renew_share(hurried, content)
            else:
                etag = hurried.replace(self._own.key, _bytes(content), self._etag)
                if etag is None:
                    self._lose(_look(self._own))
                    return
                self._etag = etag
            self._content = content
            # The server noted it at some moment between the two.
            if self._late(self._told, _now()):
                self._lapsed = True
            self._told = began

    def _renew_share(self, bucket: Bucket, content: dict[str, Any]) -> None:
        if self._own is None:
            return
        bucket.put(self._own.key, _bytes(content))
        if not self.sure or self._late(self._told, _now()):
            # Somebody may have taken it for lost and has it alone: then it is not there until that one has ended.
            gate = ObjectPath(bucket, PurePosixPath(self.path.key))
            found = _look(gate)
            if found is not None and not _is_free(found, gate):
                bucket.delete([self._own.key])
                logger.warning("%s: %s has the store alone meanwhile", self.purpose, describe(found.content))

    def _late(self, told: float, now: float) -> bool:
        return now - told > float(self._content["seconds"])

    def _plan(self) -> None:
        self.due = time.monotonic() + float(self._content["seconds"]) / _BEATS

    def forget(self) -> None:
        """Let go without a word: in a forked child the lease is the parent's."""
        self._own, self._depth = None, 0

    def _lose(self, found: _Found | None) -> None:
        taker = "nobody: its object was removed" if found is None else describe(found.content)
        self.lost = (
            f"{self.purpose}: the lease {self.path} was not renewed for {self._content['seconds']:.0f} s (this process "
            f"or the way to the server stood still) and was taken over by {taker}. What was written is kept; start "
            "again to go on"
        )
        logger.warning("%s", self.lost)

    def _wait_for(self, wait: bool, timeout: float | None) -> None:
        start = time.monotonic()
        first: tuple[str, int] | None = None
        while True:
            blocker = self._try()
            if blocker is None:
                return
            waited = time.monotonic() - start
            if wait and timeout is not None and waited >= timeout:
                raise LockedError(self._refusal(blocker, waited))
            sign = (str(blocker.content.get("token")), int(blocker.content.get("beat", 0)))
            alive = _lives_here(blocker.content) or (first is not None and sign != first)
            if not wait and alive:
                raise LockedError(self._refusal(blocker, None))
            if first is None:
                logger.warning("%s waits for %s", self.purpose, describe(blocker.content))
                first = sign
            # Rather often, so that a short one costs little time, but a request each.
            time.sleep(max(0.05, float(blocker.content["seconds"]) / 60))

    def _try(self) -> _Found | None:
        """Take it; otherwise who holds it."""
        self._content = _signature(self.purpose)
        self._told = _now()
        return self._try_shared() if self.shared else self._try_alone()

    def _try_alone(self) -> _Found | None:
        key, bucket = self.path.key, self.path.bucket
        found = _look(self.path)
        if found is not None and not _is_free(found, self.path):
            return found
        data = _bytes(self._content)
        etag = bucket.create(key, data) if found is None else bucket.replace(key, data, found.etag)
        if etag is None:
            return _look(self.path) or found
        self._own, self._etag = self.path, etag
        sharer = self._sharer() if self.shareable else None
        if sharer is not None:
            bucket.replace(key, _bytes({**self._content, "released": True}), etag)
            self._own = None
        return sharer

    def _try_shared(self) -> _Found | None:
        # Both sides write first and look then, so that of two at one moment at least one sees the other.
        own = self._sharers() / self._content["token"]
        own.bucket.put(own.key, _bytes(self._content))
        found = _look(self.path)
        if found is not None and not _is_free(found, self.path):
            own.unlink()
            return found
        self._own = own
        return None

    def _sharers(self) -> ObjectPath:
        return self.path.with_name(f"{self.path.name}{_SHARED}")

    def _sharer(self) -> _Found | None:
        """Some sharer; what dead ones left is removed."""
        for path in self._sharers().iterdir():
            found = _look(path)
            if found is not None and not _is_free(found, path):
                return found
            path.unlink()
        return None

    def _refusal(self, blocker: _Found, waited: float | None) -> str:
        after = "" if waited is None else f" after {waited:.0f} s of waiting"
        return (
            f"{self.purpose}: the lock is held by {describe(blocker.content)}{after}; wait for it to end, or stop it; "
            f"if it is lost, its lease ends {blocker.content['seconds']:.0f} s after its last sign of life (lease "
            f"{self.path})"
        )


def lease_holder(path: ObjectPath) -> dict[str, Any] | None:
    """Who holds a lease alone now: pid, host, since, purpose; None if free."""
    found = _look(path)
    if found is None or _is_free(found, path):
        return None
    return {name: found.content[name] for name in HOLDER}


def _signature(purpose: str) -> dict[str, Any]:
    return {
        **sign(purpose),
        "seconds": lease_seconds(),
        "boot": boot_id(),
        "start": start_of(os.getpid()),
        "token": uuid4().hex,
        "beat": 0,
        "released": False,
    }


def _now() -> float:
    return time.clock_gettime(_CLOCK)


def _bytes(content: dict[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True).encode()


def _look(path: ObjectPath) -> _Found | None:
    try:
        body = path.bucket.get(path.key)
    except FileNotFoundError:
        return None
    try:
        content = json.loads(body.data)
        whole = {**_signature(""), "seconds": lease_seconds(), **content}
        float(whole["seconds"])
    except (ValueError, TypeError) as error:
        raise StoreError(f"{path} is no lease ({error}): nobody but the store may write there; remove it") from error
    return _Found(whole, body.etag, body.modified)


def _is_free(found: _Found, path: ObjectPath) -> bool:
    content = found.content
    if content["released"] or _died_here(content):
        return True
    return bool(path.bucket.now() - found.modified > float(content["seconds"]) + _MARGIN_SECONDS)


def _is_from_here(content: dict[str, Any]) -> bool:
    return bool(content["boot"]) and content["boot"] == boot_id()


def _died_here(content: dict[str, Any]) -> bool:
    return _is_from_here(content) and start_of(int(content["pid"])) != int(content["start"])


def _lives_here(content: dict[str, Any]) -> bool:
    return _is_from_here(content) and not _died_here(content)


class _Heart:
    """The thread that renews all leases of a process."""

    def __init__(self) -> None:
        self._leases: weakref.WeakSet[Lease] = weakref.WeakSet()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def add(self, lease: Lease) -> None:
        with self._changed:
            self._leases.add(lease)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._beat, name="leases", daemon=True)
                self._thread.start()
            self._changed.notify()

    def drop(self, lease: Lease) -> None:
        with self._changed:
            self._leases.discard(lease)

    def forget(self) -> None:
        for lease in list(self._leases):
            lease.forget()
        self._leases = weakref.WeakSet()
        self._changed = threading.Condition()
        self._thread = None

    def _beat(self) -> None:
        while True:
            with self._changed:
                now = time.monotonic()
                due = [lease for lease in self._leases if lease.due <= now]
                if not due:
                    self._changed.wait(min((lease.due - now for lease in self._leases), default=None))
                    continue
            for lease in due:
                try:
                    lease.renew()
                except StoreError as error:
                    logger.warning("the lease %s could not be renewed, and is tried again: %s", lease.path, error)
            # Nothing may be held on to while the thread waits: a lease that nobody holds any more is not renewed.
            del due, lease


_heart = _Heart()
os.register_at_fork(after_in_child=_heart.forget)
