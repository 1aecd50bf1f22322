"""An S3-compatible bucket: what the store reads, writes and asks of it."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Final
from uuid import uuid4
from weakref import WeakSet

from solrl_tasks.store.bucket_objects import Bodies, Body, Entry, Listing
from solrl_tasks.store.errors import StoreError, UnreachableError
from solrl_tasks.store.known import Known
from solrl_tasks.store.memory import Memory
from solrl_tasks.store.s3_client import Refused, S3Client
from solrl_tasks.store.side_by_side import side_by_side

logger = logging.getLogger(__name__)

SCHEME: Final = "s3://"
CLOCK: Final = "locks/clock"
_CLOCK_SECONDS: Final = 300.0
_STAMPS_LIMIT: Final = 16 * 1024 * 1024
_STAMP_BYTES: Final = 200
"""What a remembered stamp takes in memory, roughly."""


class Bucket:
    """The objects below one prefix of a bucket.

    Keys are relative to the prefix. Requests are sent, and refused, as ``S3Client`` says. What is remembered is
    bounded, and is used by those only who can say why it still holds.

    Attributes:
        bodies: contents by key and tag, for those who were told the tag just now.
        known: what stands as long as this process has the store in use.

    Raises:
        StoreError: the URL is not ``s3://bucket/prefix``.
    """

    def __init__(self, url: str, patience: float | None = None, insistent: bool = True) -> None:
        self._client = S3Client(url, patience, insistent)
        self.url = self._client.url
        self._offset: tuple[float, float] | None = None
        self._conditions = False
        self._hurried: dict[float, Bucket] = {}
        self.bodies = Bodies()
        self.known = Known()
        self._stamps: Memory[int, bool] = Memory(_STAMPS_LIMIT)
        self._followed: dict[str, WeakSet[Listing]] = {}
        self._following = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return bucket_at, (self.url,)

    def hurried(self, patience: float) -> "Bucket":
        """The same bucket with another patience, which is never exceeded; requests are counted together."""
        if patience not in self._hurried:
            other = Bucket(self.url, patience, insistent=False)
            other._client.requests, other.bodies, other.known = self.requests, self.bodies, self.known
            other._followed, other._following = self._followed, self._following
            self._hurried[patience] = other
        return self._hurried[patience]

    @property
    def endpoint(self) -> str:
        """The address asked, in words."""
        return self._client.endpoint

    @property
    def requests(self) -> Counter[str]:
        """Requests sent so far, by verb."""
        return self._client.requests

    def get(self, key: str) -> Body:
        """An object. Raises FileNotFoundError if there is none."""
        found = self._client.ask("get", key, lambda store: Body.of(store.get(key)))
        if found is None:
            raise FileNotFoundError(f"{self.url}/{key}")
        body: Body = found
        self.bodies.keep(key, body.etag, body.data)
        return body

    def get_many(self, entries: Iterable[Entry]) -> dict[str, bytes]:
        """The bytes of listed objects by key, asked for side by side; what has vanished is left out.

        Small objects whose tag is known from before are not asked for.
        """
        known: dict[str, bytes] = {}
        asked = []
        for entry in entries:
            data = self.bodies.find(entry.key, entry.etag)
            if data is None:
                asked.append(entry.key)
            else:
                known[entry.key] = data
        for key, body in zip(asked, side_by_side(self._found, asked), strict=True):
            if body is not None:
                known[key] = body.data
        return known

    def head(self, key: str) -> Entry | None:
        """An object as a listing would name it; None if there is none."""
        found = self._client.ask("head", key, lambda store: store.head(key))
        return None if found is None else Entry.of(found)

    def put(self, key: str, data: bytes) -> str:
        """Write an object, whatever was there, and return the tag of its content."""
        return self._kept(key, data, self._client.ask("put", key, lambda store: store.put(key, data, mode="overwrite")))

    def create(self, key: str, data: bytes) -> str | None:
        """Write an object if there is none (If-None-Match); its tag, or None if there is another content.

        The same content there already counts as written, so that a request may be sent twice.
        """
        while True:
            answer = self._client.ask("put", key, lambda store: store.put(key, data, mode="create"))
            if not isinstance(answer, Refused):
                return self._kept(key, data, answer)
            body = self._met(key)
            if body is not None:
                return body.etag if body.data == data else None

    def replace(self, key: str, data: bytes, etag: str) -> str | None:
        """Write an object if its content has this tag (If-Match); the new tag, or None if it has another."""
        answer = self._client.ask("put", key, lambda store: store.put(key, data, mode={"e_tag": etag}))
        if not isinstance(answer, Refused):
            return self._kept(key, data, answer)
        body = self._met(key)
        return body.etag if body is not None and body.data == data else None

    def delete(self, keys: Sequence[str]) -> None:
        """Remove objects, side by side and in no order; one that is not there is no fault."""
        # One request each: the request for many at once is the one that compatible servers most often lack.
        side_by_side(self._delete, keys)

    def _delete(self, key: str) -> None:
        self._client.ask("delete", key, lambda store: store.delete(key))
        self._changed(key, None)

    def copy(self, key: str, target: str) -> bool:
        """Copy an object within the bucket; False if there is none."""
        self.known.drop(target)
        return self._client.ask("copy", key, lambda store: store.copy(key, target) or True) is not None

    def below(self, prefix: str) -> list[Entry]:
        """All objects below a folder, by key; a request for every thousand."""
        pages = self._client.ask("list", prefix, lambda store: list(store.list(prefix or None)))
        found = sorted((Entry.of(item) for page in pages for item in page), key=lambda entry: entry.key)
        self.requests["list"] += max(0, len(found) - 1) // 1000
        return found

    def listing(self, prefix: str) -> Listing:
        """As ``below``, kept up to date by what this process writes and removes from now on."""
        found = Listing(prefix, self.known.since)
        with self._following:
            for folder in [folder for folder, held in self._followed.items() if not held]:
                del self._followed[folder]
            self._followed.setdefault(prefix, WeakSet()).add(found)
        found.fill(self.below(prefix))
        return found

    def read_anew(self, prefix: str = "") -> None:
        """Remember no content below a folder, and of nothing that it was verified."""
        self.bodies.drop_below(prefix)
        self._stamps.forget()

    def vouch(self, stamp: int) -> None:
        """Remember that objects were found to fit each other; see ``ObjectZarr.vouch``."""
        self._stamps.keep(stamp, True, _STAMP_BYTES)

    def is_vouched(self, stamp: int) -> bool:
        """Whether they were."""
        return self._stamps.find(stamp) is not None

    def folder(self, prefix: str) -> tuple[list[str], list[Entry]]:
        """What lies directly in a folder: keys of folders, and objects."""
        found = self._client.ask("list", prefix, lambda store: store.list_with_delimiter(prefix or None))
        return sorted(found["common_prefixes"]), [Entry.of(item) for item in found["objects"]]

    def now(self) -> float:
        """Unix time by the clock of the server, to a second: ages of objects are told by it, not by clocks of clients.

        The server tells it by the time of a small object that is written for this; asked for anew every few minutes.
        """
        if self._offset is None or time.monotonic() - self._offset[1] > _CLOCK_SECONDS:
            told = self._time_told()
            measured = time.monotonic()
            self._offset = (told - measured, measured)
        return self._offset[0] + time.monotonic()

    def _time_told(self) -> float:
        try:
            self.put(CLOCK, uuid4().hex.encode())
            entry = self.head(CLOCK)
        except UnreachableError:
            raise
        except StoreError as error:
            # Whoever may only read takes no locks, and is told at most a wrong state of somebody else's.
            logger.warning("the clock of this machine stands in for that of the server: %s", error)
            entry = None
        return entry.modified if entry else time.time()

    def require_conditions(self, key: str) -> None:
        """Find out, with an object that is there, whether the server keeps to If-None-Match and If-Match.

        Raises:
            StoreError: it does not: two writers could overwrite each other's locks.
        """
        if self._conditions:
            return
        data = self.get(key).data
        lax = []
        for condition, mode in (("If-None-Match", "create"), ("If-Match", {"e_tag": '"0123456789abcdef"'})):
            answer = self._client.ask("put", key, partial(_put, key=key, data=data, mode=mode))
            if not isinstance(answer, Refused):
                lax.append(condition)
        if lax:
            raise StoreError(
                f"{self.url} at {self.endpoint}: the server ignores {' and '.join(lax)} in PUT, so that "
                "nothing could be locked; use a server that has conditional writes (AWS S3, MinIO, Ceph, R2, ... "
                "of this year), or a folder"
            )
        self._conditions = True

    def _found(self, key: str) -> Body | None:
        try:
            return self.get(key)
        except FileNotFoundError:
            return None

    def _met(self, key: str) -> Body | None:
        """What a conditional write found in its place: its own content where an answer was lost."""
        body = self._found(key)
        if body is not None:
            self._changed(key, Entry(key, len(body.data), body.etag, body.modified))
        return body

    def _kept(self, key: str, data: bytes, answer: Any) -> str:
        etag = str(answer["e_tag"])
        self.bodies.keep(key, etag, data)
        self._changed(key, Entry(key, len(data), etag, 0.0))
        return etag

    def _changed(self, key: str, entry: Entry | None) -> None:
        self.known.drop(key)
        parts = key.split("/")
        with self._following:
            for depth in range(len(parts)):
                for listing in list(self._followed.get("/".join(parts[:depth]), ())):
                    listing.note(key, entry)


_buckets: dict[str, Bucket] = {}


def bucket_at(url: str) -> Bucket:
    """The bucket of a URL, one object for a process: connection, clock and what is remembered are shared."""
    url = url.rstrip("/")
    if url not in _buckets:
        _buckets[url] = Bucket(url)
    return _buckets[url]


def _put(store: Any, key: str, data: bytes, mode: Any) -> Any:
    return store.put(key, data, mode=mode)
