"""One Zarr array filled block by block, with a ledger that says which blocks can be trusted.

On the disk, and in a bucket, an array is a Zarr group with two arrays: ``values`` [rows, columns, *item] in chunks of
one row times one block of columns, and ``ledger`` [rows, blocks, 4], an entry of ``FIELDS`` for every block, all zero
while the block is not done. Values are written first and the entry last, and both carry a CRC-32C. A block
counts as done if its entry's digest fits the values that are read back, so that any kill, truncation or
flipped bit shows.

Of a packed array both lie in ``packed/``, many blocks to a file (a shard), and what was there before is gone:
``values/zarr.json`` decides which of the two counts.
"""

import hashlib
import itertools
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.codecs import BytesCodec, Crc32cCodec, ShardingCodec, ZstdCodec
from zarr.storage import LocalStore

from solrl_tasks.store import atomic
from solrl_tasks.store.bucket_objects import Listing
from solrl_tasks.store.errors import DamagedError
from solrl_tasks.store.object_path import ObjectPath, Place
from solrl_tasks.store.object_zarr import ObjectZarr

logger = logging.getLogger(__name__)

FIELDS: Final = ("digest", "record", "device_microseconds", "written_unix_ns")
_DIGEST, _RECORD, _SECONDS, _WRITTEN = range(len(FIELDS))
# What Zarr and its codecs raise for bytes they cannot decode. A refused permission is no damage.
_UNDECODABLE: Final = (ValueError, RuntimeError, TypeError, IndexError, KeyError, EOFError)
PACKED: Final = "packed"
HEAD: Final = "zarr.json"
"""The file of an array that is written last in a bucket."""


def _nothing_to_confirm() -> None:
    """Of a folder of this machine: the kernel takes its lock from nobody who lives."""


class BlockArray:
    """An array [rows, columns, *item]; columns come in whole chunks and can only grow.

    Only one process may write at a time; the caller holds the lock. ``path`` is the folder of the array.
    """

    def __init__(
        self, path: Place, values: Any, ledger: Any, remote: ObjectZarr | None = None, packed: bool = False
    ) -> None:
        self.path = path
        self.packed = packed
        self._values = values
        self._ledger = ledger
        self._remote = remote
        self.chunk: int = values.chunks[1]
        self.item: tuple[int, ...] = values.shape[2:]
        self.rows: int = values.shape[0]

    @classmethod
    def create(
        cls,
        path: Place,
        rows: int,
        columns: int,
        chunk: int,
        item: tuple[int, ...],
        dtype: str,
        confirm: Callable[[], None] = _nothing_to_confirm,
        listing: Listing | None = None,
    ) -> Self:
        """Make an empty array, all at once.

        Args:
            columns: a multiple of ``chunk``.
            dtype: ``float32`` (fill NaN, stored as it is) or ``uint8`` (fill 0, compressed without loss).
            confirm, listing: as of ``open``.
        """
        with atomic.publish_folder(path, HEAD) as temporary:
            atomic.write_json(temporary / HEAD, group_metadata({"ledger_fields": list(FIELDS)}))
            folder = LocalStore(temporary)
            blocks = columns // chunk
            make_array(folder, "values", (rows, columns, *item), (1, chunk, *item), dtype)
            make_array(folder, "ledger", (rows, blocks, len(FIELDS)), (1, 1, len(FIELDS)), "uint64")
        return cls.open(path, rows, chunk, item, dtype, confirm, listing)

    @classmethod
    def open(
        cls,
        path: Place,
        rows: int,
        chunk: int,
        item: tuple[int | None, ...],
        dtype: str,
        confirm: Callable[[], None] = _nothing_to_confirm,
        listing: Listing | None = None,
    ) -> Self:
        """Open an array that is there.

        Args:
            item: the expected item; None is any length.
            confirm: raises if the caller's lock is lost; called before something in a bucket is replaced.
            listing: of a folder of the bucket that holds it: what is there is not asked for again.

        Raises:
            DamagedError: its metadata cannot be read, or is not what ``create`` wrote.
        """
        try:
            return cls._open_part(path, path, rows, chunk, item, dtype, confirm, listing)
        except DamagedError:
            if _has_head(path / "values", listing) or not is_published(path / PACKED, listing):
                raise
        return cls._open_part(path, path / PACKED, rows, chunk, item, dtype, confirm, listing)

    @classmethod
    def _open_part(
        cls,
        path: Place,
        part: Place,
        rows: int,
        chunk: int,
        item: tuple[int | None, ...],
        dtype: str,
        confirm: Callable[[], None],
        listing: Listing | None = None,
    ) -> Self:
        remote = ObjectZarr(part, confirm, listing) if isinstance(part, ObjectPath) else None
        folder = LocalStore(part) if isinstance(part, Path) else remote
        values, ledger = _open(folder, part, "values"), _open(folder, part, "ledger")
        packed = part != path
        fits = (
            _is_made_so(values, rows, (1, chunk, *values.shape[2:]), dtype, packed)
            and _is_made_so(ledger, rows, (1, 1, len(FIELDS)), "uint64", packed)
            and values.shape[1] % chunk == 0
            and ledger.shape[2:] == (len(FIELDS),)
            and item_fits(values.shape[2:], item)
        )
        if not fits:
            raise DamagedError(path, "the metadata of the array is not what was written")
        return cls(path, values, ledger, remote, packed)

    @property
    def columns(self) -> int:
        """Columns that can be written, a multiple of the chunk."""
        return int(min(self._values.shape[1], self._ledger.shape[1] * self.chunk))

    def packed_beside(self) -> "BlockArray":
        """The packed array that lies beside this one and does not count yet. Raises as ``open``."""
        confirm = _nothing_to_confirm if self._remote is None else self._remote.confirm
        return self._open_part(self.path, self.path / PACKED, self.rows, self.chunk, self.item, self.dtype, confirm)

    @property
    def _part(self) -> Place:
        return self.path / PACKED if self.packed else self.path

    @property
    def dtype(self) -> str:
        """Type of the values."""
        return str(self._values.dtype)

    def grow(self, columns: int) -> None:
        """Make room for at least ``columns``, a multiple of the chunk; never shrinks."""
        if self._values.shape[1] < columns:
            self._values.resize((self.rows, columns, *self.item))
            atomic.sync_file(self._part / "values" / HEAD)
        if self._ledger.shape[1] * self.chunk < columns:
            self._ledger.resize((self.rows, columns // self.chunk, len(FIELDS)))
            atomic.sync_file(self._part / "ledger" / HEAD)

    def entries(self, blocks: int) -> NDArray[np.uint64]:
        """Ledger entries of the first ``blocks`` of every row, [rows, blocks, 4]; zero where not done."""
        self._look("ledger")
        table = np.zeros((self.rows, blocks, len(FIELDS)), dtype=np.uint64)
        there = min(blocks, self.columns // self.chunk)
        try:
            table[:, :there] = self._ledger[:, :there]
        except _UNDECODABLE:
            for row, index in np.ndindex(self.rows, there):
                table[row, index] = self.entry(row, index)
        return table

    def entry(self, row: int, index: int) -> NDArray[np.uint64]:
        """The ledger entry of one block, [4]; zero where it is not done or cannot be read."""
        if index >= self.columns // self.chunk:
            return np.zeros(len(FIELDS), dtype=np.uint64)
        try:
            return np.asarray(self._ledger[row, index], dtype=np.uint64)
        except _UNDECODABLE:
            return np.zeros(len(FIELDS), dtype=np.uint64)

    def read(self, row: int, index: int) -> NDArray[Any] | None:
        """The values of one block, [chunk, *item]; None if it is not done or does not fit its entry."""
        entry = self.entry(row, index)
        if not entry[_DIGEST]:
            return None
        values = self._values_of(row, index)
        return values if self._fits(row, index, int(entry[_DIGEST]), values) else None

    def read_rows(self, blocks: int) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Values [rows, blocks * chunk, *item] of the first blocks, and which are done, [rows, blocks].

        Values of blocks that are not done are the fill value.
        """
        entries = self.entries(blocks)
        # Small items are read in one go; large ones block by block, so that they are in memory once.
        found = None if self.item else self._bulk(blocks)
        out = self._empty(blocks)
        done = np.zeros((self.rows, blocks), dtype=np.bool_)
        places = np.argwhere(entries[:, :, _DIGEST]).tolist()
        for row, index in places if found is not None else self._ahead(places):
            part = slice(index * self.chunk, (index + 1) * self.chunk)
            values = self._values_of(row, index) if found is None else found[row, part]
            if self._fits(row, index, int(entries[row, index, _DIGEST]), values):
                out[row, part] = values
                done[row, index] = True
        return out, done

    def read_region(
        self, entries: NDArray[np.uint64], rows: slice, blocks: slice
    ) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Values [rows, blocks * chunk, *item] of a part of the array, and which of its blocks are done.

        Args:
            entries: of the whole array, [rows, blocks, 4].
        """
        marks = entries[rows, blocks, _DIGEST]
        out = np.full((len(marks), marks.shape[1] * self.chunk, *self.item), self._values.fill_value, self.dtype)
        done = np.zeros(marks.shape, dtype=np.bool_)
        found: NDArray[Any] | None = None
        try:
            found = np.asarray(self._values[rows, blocks.start * self.chunk : blocks.stop * self.chunk])
        except _UNDECODABLE:
            logger.debug("%s: read block by block", self.path)
        for row, index in np.argwhere(marks).tolist():
            part = slice(index * self.chunk, (index + 1) * self.chunk)
            place = rows.start + row, blocks.start + index
            values = self._values_of(*place) if found is None else found[row, part]
            if self._fits(*place, int(marks[row, index]), values):
                out[row, part] = values
                done[row, index] = True
        return out, done

    def verified(self, blocks: int) -> NDArray[np.bool_]:
        """Which of the first blocks are done and fit their entries, [rows, blocks]."""
        if not self.item:
            return self.read_rows(blocks)[1]
        marked = self.entries(blocks)[:, :, _DIGEST] != 0
        done = self._vouched(marked)
        left = np.argwhere(marked & ~done).tolist()
        for row, index in self._ahead(left):
            done[row, index] = self.read(row, index) is not None
        return done

    def write(self, row: int, index: int, values: NDArray[Any], record: int, seconds: float, written: int) -> None:
        """Write a block: values first, entry last.

        Args:
            values: [chunk, *item] of the array's type.
            record: 64 bits that name the environment it was computed in.
            seconds: device seconds of the computation.
            written: Unix time in ns; what one computation made has one time, so that its cost counts once.
        """
        stored = _stored_form(values)
        self._look("ledger")
        if not self._is_blank(row, index):
            self._put(self._ledger, row, index, np.zeros(len(FIELDS), dtype=np.uint64))
        self._put(self._values, row, index, stored)
        entry = np.array([block_digest(stored, row, index), record, round(seconds * 1e6), written], dtype=np.uint64)
        self._put(self._ledger, row, index, entry)
        self._vouch(row, index)

    def _put(self, array: Any, row: int, index: int, stored: NDArray[Any]) -> None:
        width = array.chunks[1]
        target = (row, slice(index * width, (index + 1) * width))
        block = stored.reshape(width, *array.shape[2:])
        try:
            array[target] = block
        except _UNDECODABLE:
            if not self.packed:
                raise
            # A shard whose index is damaged takes no block. What it held is lost in any case.
            atomic.remove_file(self._part / self._shard_key(array, row, index * width))
            array[target] = block

    def _vouch(self, row: int, index: int) -> None:
        # The tag of a shard changes with any of its blocks, and stands for all of them.
        if self._remote is not None and not self.packed:
            self._remote.vouch(*self._keys(row, index))

    def _is_blank(self, row: int, index: int) -> bool:
        try:
            return not np.any(self._ledger[row, index])
        except _UNDECODABLE:
            return False

    def _values_of(self, row: int, index: int) -> NDArray[Any] | None:
        try:
            return np.asarray(self._values[row, index * self.chunk : (index + 1) * self.chunk])
        except _UNDECODABLE:
            return None

    def _fits(self, row: int, index: int, expected: int, values: NDArray[Any] | None) -> bool:
        if values is not None and block_digest(values, row, index) == expected:
            self._vouch(row, index)
            return True
        columns = f"{index * self.chunk} to {(index + 1) * self.chunk - 1}"
        where = f"{self.path.parent.parent.name}/{self.path.name}: row {row}, columns {columns}"
        logger.warning("%s: the stored values do not fit their ledger entry and count as not done", where)
        return False

    def _keys(self, row: int, index: int) -> tuple[str, str]:
        """Names of the values and of the entry of a block."""
        return f"values/c/{row}/{index}{'/0' * len(self.item)}", f"ledger/c/{row}/{index}/0"

    def _shard_of(self, place: list[int]) -> str:
        return self._shard_key(self._values, place[0], place[1] * self.chunk)

    def _shard_key(self, array: Any, row: int, column: int) -> str:
        """Name of the file of a packed array that holds a place of it."""
        rows, columns, *items = array.shards
        part = "values" if array is self._values else "ledger"
        return f"{part}/c/{row // rows}/{column // columns}{'/0' * len(items)}"

    def _vouched(self, marked: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which of marked blocks in a bucket this process has verified, and are unchanged since, [rows, blocks]."""
        known = np.zeros_like(marked)
        if self._remote is not None and not self.packed:
            self._remote.look()
            for row, index in np.argwhere(marked).tolist():
                known[row, index] = self._remote.is_vouched(*self._keys(row, index))
        return known

    def _ahead(self, places: list[list[int]]) -> Iterator[list[int]]:
        """Places of blocks in order; in a bucket the values of the next ones are got side by side."""
        if self._remote is None:
            yield from places
            return
        self._remote.look()
        if self.packed:
            # A shard is got once for all of its blocks that stand next to each other.
            for shard, blocks in itertools.groupby(places, self._shard_of):
                members = list(blocks)
                for _ in self._remote.ahead([shard]):
                    yield from members
            return
        keys = self._remote.ahead(self._keys(row, index)[0] for row, index in places)
        yield from (place for place, _ in zip(places, keys, strict=True))

    def _look(self, part: str) -> None:
        if self._remote is not None:
            self._remote.fetch(part)

    def _bulk(self, blocks: int) -> NDArray[Any] | None:
        self._look("values")
        there = min(blocks * self.chunk, self.columns)
        found = self._empty(blocks)
        try:
            found[:, :there] = self._values[:, :there]
        except _UNDECODABLE:
            return None
        return found

    def _empty(self, blocks: int) -> NDArray[Any]:
        shape = (self.rows, blocks * self.chunk, *self.item)
        return np.full(shape, self._values.fill_value, dtype=self._values.dtype)


def is_published(folder: Place, listing: Listing | None = None) -> bool:
    """Whether the folder of an array is there whole; of a bucket by a listing, if there is one."""
    if isinstance(folder, ObjectPath) and listing is not None:
        return (folder / HEAD).key in listing
    return atomic.is_published(folder, HEAD)


def _has_head(folder: Place, listing: Listing | None) -> bool:
    if isinstance(folder, ObjectPath):
        return is_published(folder, listing)
    return (folder / HEAD).exists()


def item_fits(found: tuple[int, ...], expected: tuple[int | None, ...]) -> bool:
    """Whether an item has the expected shape; None is any length."""
    return len(found) == len(expected) and all(
        want is None or have == want for have, want in zip(found, expected, strict=True)
    )


def block_digest(values: NDArray[Any], row: int, index: int) -> int:
    """64 bits of the sha256 over a block's values, type and place; never 0, which means not done.

    The place is part of it, so that a chunk file in the place of another is found.
    """
    head = f"{values.dtype.str} {values.shape} {row} {index} ".encode()
    state = hashlib.sha256(head)
    state.update(np.ascontiguousarray(values).data)
    return int.from_bytes(state.digest()[:8], "little") or 1


def hash_values(state: "hashlib._Hash", name: str, values: NDArray[Any]) -> None:
    """Add a named array to a sha256: name, type, shape and values."""
    state.update(f"{name} {values.dtype.str} {values.shape} ".encode())
    state.update(np.ascontiguousarray(values).data)


def group_metadata(attributes: dict[str, Any]) -> dict[str, Any]:
    """The metadata of a Zarr v3 group."""
    return {"zarr_format": 3, "node_type": "group", "attributes": attributes}


def _stored_form(values: NDArray[Any]) -> NDArray[Any]:
    if values.dtype.kind == "f":
        # One bit pattern for all NaN, so that equal results have equal digests.
        values = np.where(np.isnan(values), np.asarray(np.nan, dtype=values.dtype), values)
    return np.ascontiguousarray(values)


def make_array(
    folder: LocalStore,
    name: str,
    shape: tuple[int, ...],
    chunks: tuple[int, ...],
    dtype: str,
    shards: tuple[int, ...] | None = None,
) -> Any:
    """One of the two Zarr arrays, empty; with ``shards`` many chunks lie in a file."""
    compressors: list[Any] = [ZstdCodec(level=3)] if dtype == "uint8" else []
    return zarr.create_array(
        folder,
        name=name,
        shape=shape,
        chunks=chunks,
        shards=shards,
        dtype=dtype,
        fill_value=_fill(dtype),
        filters=[],
        serializer=BytesCodec(endian=None if dtype == "uint8" else "little"),
        compressors=[*compressors, Crc32cCodec()],
        zarr_format=3,
    )


def _fill(dtype: str) -> Any:
    return np.float32(np.nan) if dtype == "float32" else np.dtype(dtype).type(0)


def _open(folder: Any, path: Place, name: str) -> Any:
    try:
        array = zarr.open_array(folder, path=name, mode="r+", zarr_format=3)
        # Otherwise a chunk that equals the fill value would leave no file.
        return array.with_config({"write_empty_chunks": True})
    except (FileNotFoundError, KeyError, ValueError, TypeError, AttributeError) as error:
        raise DamagedError(path / name, f"its metadata cannot be read ({error})") from error


def _is_made_so(array: Any, rows: int, chunks: tuple[int, ...], dtype: str, packed: bool) -> bool:
    outer = list(array.metadata.codecs)
    if packed != (len(outer) == 1 and isinstance(outer[0], ShardingCodec)):
        return False
    codecs = [codec.to_dict()["name"] for codec in (outer[0].codecs if packed else outer)]
    expected = ["bytes", "zstd", "crc32c"] if dtype == "uint8" else ["bytes", "crc32c"]
    fill = np.asarray(array.fill_value)
    return bool(
        array.dtype == np.dtype(dtype)
        and array.shape[0] == rows
        and array.chunks == chunks
        and codecs == expected
        and np.array_equal(fill, np.asarray(_fill(dtype)), equal_nan=dtype == "float32")
    )
