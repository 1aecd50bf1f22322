"""An S3-compatible bucket: every request that the store makes, with bounded patience and errors for people."""

import logging
import os
import re
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit
from uuid import uuid4

from solrl_tasks.store.errors import StoreError, UnreachableError

logger = logging.getLogger(__name__)

SCHEME: Final = "s3://"
_BUCKET_NAME: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_STATUS: Final = re.compile(r"status code: (\d{3})")
_CODE: Final = re.compile(r"<Code>([^<]+)</Code>")
_MESSAGE: Final = re.compile(r"<Message>([^<]+)</Message>")
_CONFLICT: Final = 409
_AGAIN: Final = frozenset({408, _CONFLICT, 425, 429})
"""Statuses below 500 that may pass by themselves."""
_FIRST_PAUSE: Final = 0.2
_LONGEST_PAUSE: Final = 5.0
_PARALLEL: Final = 16
_CLOCK_SECONDS: Final = 300.0
CLOCK: Final = "locks/clock"
_SMALL: Final = 64 * 1024
_REMEMBERED: Final = 128 * 1024 * 1024
_CHECKS: Final = (
    "check SOLRL_STORE, AWS_ENDPOINT_URL and AWS_REGION, and that the server runs; what was done is kept, and the same "
    "command goes on from there"
)


@dataclass(frozen=True)
class Entry:
    """An object as a listing names it: key below the prefix, bytes, tag of its content, Unix time on the server."""

    key: str
    size: int
    etag: str
    modified: float


@dataclass(frozen=True)
class Body:
    """An object's bytes, the tag of this content, and when it was written by the clock of the server (Unix time)."""

    data: bytes
    etag: str
    modified: float


class Bucket:
    """The objects below one prefix of a bucket.

    A request that fails for a reason that may pass (no connection, a time-out, a status of 500 and more) is sent again
    until ``patience`` seconds are over. Keys are relative to the prefix. Endpoint, region and credentials are those of
    the usual AWS variables; no file of the store and no record holds them.

    Raises:
        StoreError: the URL is not ``s3://bucket/prefix``.
    """

    def __init__(self, url: str, patience: float | None = None) -> None:
        self.url = url.rstrip("/")
        parts = urlsplit(self.url)
        if parts.scheme != "s3" or not _BUCKET_NAME.fullmatch(parts.netloc) or parts.query or parts.fragment:
            raise StoreError(f"{url!r} names no bucket: an object store is called s3://bucket/prefix")
        self.name, self.prefix = parts.netloc, parts.path.strip("/")
        self.patience = setting("SOLRL_STORE_TIMEOUT", 60.0, 1.0) if patience is None else patience
        self.requests: Counter[str] = Counter()
        self._made: tuple[int, Any] | None = None
        self._making = threading.Lock()
        self._offset: tuple[float, float] | None = None
        self._conditions = False
        self._hurried: dict[float, Bucket] = {}
        self.bodies = Bodies()
        self.vouched: set[int] = set()
        """Stamps of objects that were found to fit each other; see ``ObjectZarr.vouch``."""

    def __reduce__(self) -> tuple[Any, ...]:
        return bucket_at, (self.url,)

    def hurried(self, patience: float) -> "Bucket":
        """The same bucket with another patience; requests are counted together."""
        if patience not in self._hurried:
            other = Bucket(self.url, patience)
            other.requests, other.bodies = self.requests, self.bodies
            self._hurried[patience] = other
        return self._hurried[patience]

    @property
    def endpoint(self) -> str:
        """The address asked, in words."""
        return _endpoint() or "the endpoint of AWS"

    def get(self, key: str) -> Body:
        """An object. Raises FileNotFoundError if there is none."""
        found = self._ask("get", key, lambda store: _read(store, key))
        if found is None:
            raise FileNotFoundError(f"{self.url}/{key}")
        body: Body = found
        if len(body.data) <= _SMALL:
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
        found = self._ask("head", key, lambda store: store.head(key))
        return None if found is None else _entry(found)

    def put(self, key: str, data: bytes) -> str:
        """Write an object, whatever was there, and return the tag of its content."""
        return self._kept(key, data, self._ask("put", key, lambda store: store.put(key, data, mode="overwrite")))

    def create(self, key: str, data: bytes) -> str | None:
        """Write an object if there is none (If-None-Match); its tag, or None if there is another content.

        The same content there already counts as written, so that a request may be sent twice.
        """
        while True:
            answer = self._ask("put", key, lambda store: store.put(key, data, mode="create"))
            if not isinstance(answer, _Refused):
                return self._kept(key, data, answer)
            body = self._found(key)
            if body is not None:
                return body.etag if body.data == data else None

    def replace(self, key: str, data: bytes, etag: str) -> str | None:
        """Write an object if its content has this tag (If-Match); the new tag, or None if it has another."""
        answer = self._ask("put", key, lambda store: store.put(key, data, mode={"e_tag": etag}))
        if not isinstance(answer, _Refused):
            return self._kept(key, data, answer)
        body = self._found(key)
        return body.etag if body is not None and body.data == data else None

    def delete(self, keys: Sequence[str]) -> None:
        """Remove objects, side by side and in no order; one that is not there is no fault."""
        # One request each: the request for many at once is the one that compatible servers most often lack.
        side_by_side(lambda key: self._ask("delete", key, lambda store: store.delete(key)), keys)

    def copy(self, key: str, target: str) -> bool:
        """Copy an object within the bucket; False if there is none."""
        return self._ask("copy", key, lambda store: store.copy(key, target) or True) is not None

    def below(self, prefix: str) -> list[Entry]:
        """All objects below a folder, by key; a request for every thousand."""
        pages = self._ask("list", prefix, lambda store: list(store.list(prefix or None)))
        found = sorted((_entry(item) for page in pages for item in page), key=lambda entry: entry.key)
        self.requests["list"] += max(0, len(found) - 1) // 1000
        return found

    def folder(self, prefix: str) -> tuple[list[str], list[Entry]]:
        """What lies directly in a folder: keys of folders, and objects."""
        found = self._ask("list", prefix, lambda store: store.list_with_delimiter(prefix or None))
        return sorted(found["common_prefixes"]), [_entry(item) for item in found["objects"]]

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
            answer = self._ask("put", key, partial(_put, key=key, data=data, mode=mode))
            if not isinstance(answer, _Refused):
                lax.append(condition)
        if lax:
            raise StoreError(
                f"{self.url} at {self.endpoint}: the server ignores {' and '.join(lax)} in PUT, so that nothing could "
                "be locked; use a server that has conditional writes (AWS S3, MinIO, Ceph, R2, ... of this year), or "
                "a folder"
            )
        self._conditions = True

    def _found(self, key: str) -> Body | None:
        try:
            return self.get(key)
        except FileNotFoundError:
            return None

    def _kept(self, key: str, data: bytes, answer: Any) -> str:
        etag = str(answer["e_tag"])
        if len(data) <= _SMALL:
            self.bodies.keep(key, etag, data)
        return etag

    def _ask(self, verb: str, key: str, call: Callable[[Any], Any]) -> Any:
        """One request; None where there is no such object, ``_Refused`` where a condition did not hold."""
        deadline = time.monotonic() + self.patience
        pause = _FIRST_PAUSE
        told = False
        while True:
            self.requests[verb] += 1
            try:
                return self._send(verb, key, call)
            except _PassingError as error:
                why = str(error)
            if time.monotonic() + pause > deadline:
                raise UnreachableError(f"{self.url} at {self.endpoint}: no {verb} of {key or '/'} ({why}); {_CHECKS}")
            if not told:
                logger.warning("%s at %s: %s of %s: %s; trying again", self.url, self.endpoint, verb, key or "/", why)
                told = True
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _send(self, verb: str, key: str, call: Callable[[Any], Any]) -> Any:
        store = self._store()
        from obstore import exceptions

        try:
            return call(store)
        except FileNotFoundError as error:
            self._refuse(verb, key, error, only="NoSuchBucket")
            return None
        except exceptions.PreconditionError:
            return _Refused()
        except exceptions.AlreadyExistsError as error:
            # The server's answer to two conditional writes at one moment: neither condition has failed.
            if _status(error) == _CONFLICT:
                raise _PassingError(_told(error)) from error
            return _Refused()
        except exceptions.BaseError as error:
            status = _status(error)
            if status is not None and status < 500 and status not in _AGAIN:
                self._refuse(verb, key, error)
            if status == 501:
                self._refuse(verb, key, error)
            raise _PassingError(_told(error)) from error

    def _refuse(self, verb: str, key: str, error: Exception, only: str = "") -> None:
        code = _CODE.search(str(error))
        if only and (code is None or code[1] != only):
            return
        raise StoreError(
            f"{self.url} at {self.endpoint} refuses {verb} of {key or '/'}: {_told(error)}; check that the bucket "
            "exists and that AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY (or the role), AWS_REGION and AWS_ENDPOINT_URL "
            "are those of it"
        ) from error

    def _store(self) -> Any:
        with self._making:
            # Threads of the client do not outlive a fork.
            if self._made is None or self._made[0] != os.getpid():
                self._made = (os.getpid(), self._connect())
            return self._made[1]

    def _connect(self) -> Any:
        try:
            from obstore.store import S3Store
        except ImportError as error:
            raise StoreError(f"a store in {self.url} needs obstore: pip install 'sol-rl[s3]' ({error})") from error
        endpoint = _endpoint()
        config: Any = {"endpoint": endpoint} if endpoint else {}
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        if region or endpoint:
            config["region"] = region or "us-east-1"
        seconds = timedelta(seconds=self.patience)
        return S3Store(
            self.name,
            prefix=self.prefix or None,
            config=config,
            client_options={
                "allow_http": _plain_http_allowed(endpoint),
                "timeout": seconds,
                "connect_timeout": min(timedelta(seconds=5), seconds),
            },
            # Retries are ours, so that they are told of, bounded and counted.
            retry_config={"max_retries": 0, "retry_timeout": seconds},
        )


class Bodies:
    """Small objects by key and tag, the last used ones: what a listing shows to be unchanged is not asked for again."""

    def __init__(self, limit: int = _REMEMBERED) -> None:
        self._limit = limit
        self._held = 0
        self._bodies: OrderedDict[tuple[str, str], bytes] = OrderedDict()
        self._one = threading.Lock()

    def keep(self, key: str, etag: str, data: bytes) -> None:
        """Remember a content."""
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


class _PassingError(Exception):
    """A failure that may pass by itself."""


class _Refused:
    """The answer to a conditional write whose condition does not hold."""


def side_by_side(call: Callable[[Any], Any], items: Iterable[Any]) -> list[Any]:
    """Results of a call for every item, in order, several at a time."""
    asked = list(items)
    if len(asked) <= 1:
        return [call(item) for item in asked]
    with ThreadPoolExecutor(min(_PARALLEL, len(asked)), thread_name_prefix="store") as pool:
        return list(pool.map(call, asked))


def setting(name: str, default: float, least: float) -> float:
    """A number of seconds from the environment.

    Raises:
        StoreError: it is no number, or less than ``least``.
    """
    text = os.environ.get(name) or str(default)
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not least <= value < float("inf"):
        raise StoreError(f"{name} is {text!r}: a number of seconds, at least {least:g}, is wanted")
    return value


_buckets: dict[str, Bucket] = {}


def bucket_at(url: str) -> Bucket:
    """The bucket of a URL, one object for a process: connection, clock and what is remembered are shared."""
    url = url.rstrip("/")
    if url not in _buckets:
        _buckets[url] = Bucket(url)
    return _buckets[url]


def _endpoint() -> str:
    return next((os.environ[n] for n in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL") if os.environ.get(n)), "")


def _plain_http_allowed(endpoint: str) -> bool:
    parts = urlsplit(endpoint)
    if parts.scheme != "http":
        return False
    if parts.hostname in ("localhost", "127.0.0.1", "::1") or os.environ.get("AWS_ALLOW_HTTP", "").lower() == "true":
        return True
    raise StoreError(
        f"AWS_ENDPOINT_URL is {endpoint}, which is not encrypted: use https, or set AWS_ALLOW_HTTP=true if the network "
        "between is trusted"
    )


def _read(store: Any, key: str) -> Body:
    found = store.get(key)
    meta = found.meta
    return Body(bytes(found.bytes()), str(meta["e_tag"]), meta["last_modified"].timestamp())


def _put(store: Any, key: str, data: bytes, mode: Any) -> Any:
    return store.put(key, data, mode=mode)


def _entry(meta: Any) -> Entry:
    return Entry(str(meta["path"]), int(meta["size"]), str(meta["e_tag"]), meta["last_modified"].timestamp())


def _status(error: Exception) -> int | None:
    found = _STATUS.search(str(error))
    return int(found[1]) if found else None


def _told(error: Exception) -> str:
    """What went wrong, short, and without what a URL may hold."""
    text = str(error)
    code, message, status = _CODE.search(text), _MESSAGE.search(text), _status(error)
    if code:
        return f"{code[1]}{f': {message[1]}' if message else ''}"
    if status:
        return f"status {status}"
    head = text.partition("\n")[0]
    return head.rpartition(" - ")[2][:200] or type(error).__name__
