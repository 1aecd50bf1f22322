"""Objects of a bucket as requests tell of them, and those that need not be asked for again."""

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Final

SMALL: Final = 64 * 1024
"""Bytes of an object that is worth to be remembered."""
_REMEMBERED: Final = 128 * 1024 * 1024


@dataclass(frozen=True)
class Entry:
    """An object as a listing names it: key below the prefix, bytes, tag of its content, Unix time on the server."""

    key: str
    size: int
    etag: str
    modified: float

    @classmethod
    def of(cls, meta: Any) -> "Entry":
        """What the client says of an object."""
        return cls(str(meta["path"]), int(meta["size"]), str(meta["e_tag"]), meta["last_modified"].timestamp())


@dataclass(frozen=True)
class Body:
    """An object's bytes, the tag of this content, and when it was written by the clock of the server (Unix time)."""

    data: bytes
    etag: str
    modified: float

    @classmethod
    def of(cls, answer: Any) -> "Body":
        """The answer of the client to a request for an object, read to its end."""
        meta = answer.meta
        return cls(bytes(answer.bytes()), str(meta["e_tag"]), meta["last_modified"].timestamp())


class Bodies:
    """Small objects by key and tag, the last used ones: what a listing shows to be unchanged is not asked for again."""

    def __init__(self, limit: int = _REMEMBERED) -> None:
        self._limit = limit
        self._held = 0
        self._bodies: OrderedDict[tuple[str, str], bytes] = OrderedDict()
        self._one = threading.Lock()

    def keep(self, key: str, etag: str, data: bytes) -> None:
        """Remember a content, if it is small."""
        if len(data) > SMALL:
            return
        with self._one:
            before = self._bodies.pop((key, etag), None)
            self._held += len(data) - (len(before) if before is not None else 0)
            self._bodies[key, etag] = data
            while self._held > self._limit:
                self._held -= len(self._bodies.popitem(last=False)[1])

    def find(self, key: str, etag: str) -> bytes | None:
        """The content of a key under a tag, if it is remembered."""
        with self._one:
            if (key, etag) in self._bodies:
                self._bodies.move_to_end((key, etag))
            return self._bodies.get((key, etag))
