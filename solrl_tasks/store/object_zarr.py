"""Zarr arrays in a bucket: what a listing shows to be absent or unchanged costs no request."""

import asyncio
import builtins
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from zarr.abc.store import ByteRequest, OffsetByteRequest, RangeByteRequest, Store, SuffixByteRequest
from zarr.core.buffer import Buffer, BufferPrototype

from solrl_tasks.store.bucket_objects import Entry, Listing
from solrl_tasks.store.object_path import ObjectPath

_AHEAD_BYTES: Final = 64 * 1024 * 1024
_pool: Final = ThreadPoolExecutor(8, thread_name_prefix="store-zarr")


class ObjectZarr(Store):  # type: ignore[misc]
    """The Zarr store below a place in a bucket.

    A value that is there with another content is replaced under a condition only, and after ``confirm``: a writer that
    lost its lease unnoticed changes nothing. One listing (``look``) tells what is there for as long as this object is
    used, kept up to date by the writes of this process: it is exact where the caller holds the lease.

    Args:
        path: the root of the hierarchy.
        confirm: raises if the caller holds the lease no more.
        listing: of a folder that holds it, if there is one already.
    """

    supports_writes = True
    supports_deletes = True
    supports_partial_writes = False
    supports_listing = True

    def __init__(self, path: ObjectPath, confirm: Callable[[], None], listing: Listing | None = None) -> None:
        super().__init__(read_only=False)
        self._is_open = True
        self.path = path
        self._bucket = path.bucket
        self.confirm = confirm
        self._listing = listing
        self._bodies: dict[str, bytes] = {}
        self._fetched: set[str] = set()

    def look(self) -> Listing:
        """List the hierarchy: no request is needed from then on to know what is there."""
        if self._listing is None:
            self._listing = self._bucket.listing(self.path.key)
        return self._listing

    def fetch(self, part: str) -> None:
        """Get all objects of a part (an array), side by side; what is remembered from before costs no request."""
        if part in self._fetched:
            return
        self._fetched.add(part)
        entries = self.look().below(self._key(part))
        self._bodies.update(self._bucket.get_many(entry for entry in entries if entry.key not in self._bodies))

    def ahead(self, keys: Iterable[str]) -> Iterator[str]:
        """The same keys in order; the objects of the next ones are got side by side, a bounded amount at a time.

        Without a listing (``look``) each is got when it is read.
        """
        batch: builtins.list[Entry | str] = []
        size = 0
        for key in keys:
            entry = self._entry(key)
            batch.append(entry or key)
            size += entry.size if entry else 0
            if size >= _AHEAD_BYTES:
                yield from self._through(batch)
                batch, size = [], 0
        yield from self._through(batch)

    def vouch(self, *keys: str) -> None:
        """Remember that these objects were found to fit each other, as long as their tags are the same."""
        stamp = self._stamp(keys)
        if stamp is not None:
            self._bucket.vouch(stamp)

    def is_vouched(self, *keys: str) -> bool:
        """Whether they were found to fit each other, by this process, and are unchanged by the listing."""
        stamp = self._stamp(keys)
        return stamp is not None and self._bucket.is_vouched(stamp)

    def _through(self, batch: "builtins.list[Entry | str]") -> Iterator[str]:
        entries = [entry for entry in batch if isinstance(entry, Entry) and entry.key not in self._bodies]
        got = self._bucket.get_many(entries)
        self._bodies.update(got)
        for entry in batch:
            yield entry.key.removeprefix(f"{self.path.key}/") if isinstance(entry, Entry) else entry
        for key in got:
            self._bodies.pop(key, None)

    def _stamp(self, keys: Iterable[str]) -> int | None:
        entries = [self._entry(key) for key in keys]
        if None in entries:
            return None
        return hash(tuple((entry.key, entry.etag) for entry in entries if entry is not None))

    def _entry(self, key: str) -> Entry | None:
        return None if self._listing is None else self._listing.find(self._key(key))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectZarr) and other.path == self.path

    def __hash__(self) -> int:
        return hash(self.path)

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        data = await self._aside(self._get, key)
        return None if data is None else prototype.buffer.from_bytes(_part(data, byte_range))

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> builtins.list[Buffer | None]:
        return [await self.get(key, prototype, byte_range) for key, byte_range in key_ranges]

    async def exists(self, key: str) -> bool:
        return await self._aside(self._get, key) is not None

    async def set(self, key: str, value: Buffer) -> None:
        await self._aside(self._set, key, value.to_bytes())

    async def delete(self, key: str) -> None:
        await self._aside(self._delete, key)

    async def list(self) -> AsyncIterator[str]:
        async for key in self.list_prefix(""):
            yield key

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        for entry in await self._aside(self.path.entries):
            key = entry.key.removeprefix(f"{self.path.key}/")
            if key.startswith(prefix):
                yield key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        place = self.path / prefix if prefix else self.path
        for path in await self._aside(lambda: list(place.iterdir())):
            yield path.name

    async def _aside(self, call: Callable[..., Any], *args: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(_pool, call, *args)

    def _key(self, key: str) -> str:
        return f"{self.path.key}/{key}"

    def _get(self, key: str) -> bytes | None:
        full = self._key(key)
        if full in self._bodies:
            return self._bodies[full]
        if self._listing is not None:
            entry = self._listing.find(full)
            known = None if entry is None else self._bucket.bodies.find(full, entry.etag)
            if entry is None or known is not None:
                return known
        try:
            return self._bucket.get(full).data
        except FileNotFoundError:
            return None

    def _set(self, key: str, data: bytes) -> None:
        full = self._key(key)
        there = self._entry(key)
        etag = self._bucket.create(full, data) if there is None else self._replace(full, data, there)
        while etag is None:
            there = self._bucket.head(full)
            etag = self._bucket.create(full, data) if there is None else self._replace(full, data, there)
        if self._listing is not None:
            self._listing.note(full, Entry(full, len(data), etag, 0.0))
        self._bodies.pop(full, None)

    def _replace(self, full: str, data: bytes, there: Entry) -> str | None:
        self.confirm()
        return self._bucket.replace(full, data, there.etag)

    def _delete(self, key: str) -> None:
        full = self._key(key)
        self.confirm()
        self._bucket.delete([full])
        if self._listing is not None:
            self._listing.note(full, None)
        self._bodies.pop(full, None)


def _part(data: bytes, byte_range: ByteRequest | None) -> bytes:
    if isinstance(byte_range, RangeByteRequest):
        return data[byte_range.start : byte_range.end]
    if isinstance(byte_range, OffsetByteRequest):
        return data[byte_range.offset :]
    if isinstance(byte_range, SuffixByteRequest):
        return data[-byte_range.suffix :]
    return data
