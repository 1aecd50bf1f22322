"""Objects of a bucket as requests tell of them, and those that need not be asked for again."""

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from solrl_tasks.store.memory import Memory

SMALL: Final = 64 * 1024
"""Bytes up to which an object is a small one: marks, manifests, rewards."""
MIDDLING: Final = 2 * 1024 * 1024
"""Bytes of an object that is worth to be remembered: beyond it, asking is mostly reading."""
_SMALL_LIMIT: Final = 96 * 1024 * 1024
_MIDDLING_LIMIT: Final = 64 * 1024 * 1024
_BODY_BYTES: Final = 400
_ENTRY_BYTES: Final = 300
"""What a content, or an entry of a listing, takes in memory besides itself and its key, as measured and rounded up."""


@dataclass(frozen=True, slots=True)
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
    """Objects by key and tag, the last used ones: what a listing shows to be unchanged is not asked for again.

    Larger ones have a memory of their own, so that some pictures do not drive a thousand marks out.
    """

    def __init__(self, small: int = _SMALL_LIMIT, middling: int = _MIDDLING_LIMIT) -> None:
        self._small: Memory[tuple[str, str], bytes] = Memory(small)
        self._middling: Memory[tuple[str, str], bytes] = Memory(middling)

    @property
    def held(self) -> int:
        """Bytes of what is remembered."""
        return self._small.held + self._middling.held

    def keep(self, key: str, etag: str, data: bytes) -> None:
        """Remember a content, unless it is large."""
        if len(data) <= MIDDLING:
            memory = self._small if len(data) <= SMALL else self._middling
            memory.keep((key, etag), data, _BODY_BYTES + len(key) + len(data))

    def find(self, key: str, etag: str) -> bytes | None:
        """The content of a key under a tag, if it is remembered."""
        found = self._small.find((key, etag))
        return self._middling.find((key, etag)) if found is None else found

    def drop_below(self, prefix: str) -> None:
        """Forget what is below a folder; of the root everything."""
        start = f"{prefix}/" if prefix else ""
        for memory in (self._small, self._middling):
            memory.drop_where(lambda key: key[0].startswith(start))


class Listing:
    """All objects below a folder, as requests named them and as this process has changed them since.

    Attributes:
        prefix: key of the folder.
        since: what was trusted when the requests were sent; see ``Known``.
    """

    def __init__(self, prefix: str, since: int) -> None:
        self.prefix = prefix
        self.since = since
        self._entries: dict[str, Entry | None] = {}
        self._one = threading.Lock()

    def __contains__(self, key: str) -> bool:
        return self._entries.get(key) is not None

    def fill(self, entries: Iterable[Entry]) -> None:
        """What requests named; what this process has done meanwhile stands."""
        with self._one:
            for entry in entries:
                self._entries.setdefault(entry.key, entry)

    def note(self, key: str, entry: Entry | None) -> None:
        """An object was written or, None, removed."""
        with self._one:
            self._entries[key] = entry

    def find(self, key: str) -> Entry | None:
        """The object of a key; None if there is none."""
        return self._entries.get(key)

    def below(self, prefix: str) -> list[Entry]:
        """The objects below a folder of it."""
        start = f"{prefix}/"
        with self._one:
            return [entry for key, entry in self._entries.items() if entry is not None and key.startswith(start)]

    @property
    def bytes(self) -> int:
        """What it takes in memory, roughly."""
        with self._one:
            return sum(_ENTRY_BYTES + len(key) for key in self._entries)
