"""One array filled block by block, with a ledger that says which blocks can be trusted.

On the disk, and in a bucket, an array is a Zarr group with two arrays: ``values`` [rows, columns, *item] in chunks of
one row times one block of columns, and ``ledger`` [rows, blocks, 4], an entry for every block, all zero while the block
is not done. Values are written first and the entry last, and both carry a CRC-32C. A block counts as done if its
entry's digest fits the values that are read back, so that any kill, truncation or flipped bit shows.

Of a packed array both lie in ``packed/``, many blocks to a file (a shard), and what was there before is gone:
``values/zarr.json`` decides which of the two counts.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray
from zarr.storage import LocalStore

from solrl_tasks.store import atomic
from solrl_tasks.store.array_names import item_fits
from solrl_tasks.store.array_objects import ArrayObjects, nothing_to_confirm
from solrl_tasks.store.bucket_objects import Listing
from solrl_tasks.store.digests import block_digest, with_one_nan
from solrl_tasks.store.errors import DamagedError
from solrl_tasks.store.ledger import DIGEST, FIELDS, Ledger
from solrl_tasks.store.object_path import ObjectPath, Place
from solrl_tasks.store.object_zarr import ObjectZarr
from solrl_tasks.store.zarr_array import HEAD, ZarrArray, group_metadata, make_array

logger = logging.getLogger(__name__)

PACKED: Final = "packed"


class BlockArray:
    """An array [rows, columns, *item]; columns come in whole chunks and can only grow.

    Only one process may write at a time; the caller holds the lock. ``path`` is the folder of the array.
    """

    def __init__(
        self, path: Place, values: ZarrArray, ledger: ZarrArray, remote: ObjectZarr | None = None, packed: bool = False
    ) -> None:
        self.path = path
        self.packed = packed
        self._values = values
        self._ledger = Ledger(ledger)
        self._objects = ArrayObjects(remote, values, self._ledger, packed)
        self.chunk = values.width
        self.item = values.shape[2:]
        self.rows = values.shape[0]

    @classmethod
    def create(
        cls,
        path: Place,
        rows: int,
        columns: int,
        chunk: int,
        item: tuple[int, ...],
        dtype: str,
        confirm: Callable[[], None] = nothing_to_confirm,
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
        confirm: Callable[[], None] = nothing_to_confirm,
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
        values, ledger = (ZarrArray.open(folder, part, name) for name in ("values", "ledger"))
        packed = part != path
        fits = (
            values.is_made_so(rows, (1, chunk, *values.shape[2:]), dtype, packed)
            and ledger.is_made_so(rows, (1, 1, len(FIELDS)), "uint64", packed)
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
        return min(self._values.shape[1], self._ledger.blocks * self.chunk)

    def packed_beside(self) -> "BlockArray":
        """The packed array that lies beside this one and does not count yet. Raises as ``open``."""
        return self._open_part(
            self.path, self.path / PACKED, self.rows, self.chunk, self.item, self.dtype, self._objects.confirm
        )

    @property
    def dtype(self) -> str:
        """Type of the values."""
        return self._values.dtype

    def grow(self, columns: int) -> None:
        """Make room for at least ``columns``, a multiple of the chunk; never shrinks."""
        self._values.grow(columns)
        self._ledger.grow(columns // self.chunk)

    def entries(self, blocks: int) -> NDArray[np.uint64]:
        """Ledger entries of the first ``blocks`` of every row, [rows, blocks, 4]; zero where not done."""
        self._objects.fetch("ledger")
        table = np.zeros((self.rows, blocks, len(FIELDS)), dtype=np.uint64)
        there = min(blocks, self.columns // self.chunk)
        table[:, :there] = self._ledger.entries(there)
        return table

    def entry(self, row: int, index: int) -> NDArray[np.uint64]:
        """The ledger entry of one block, [4]; zero where it is not done or cannot be read."""
        if index >= self.columns // self.chunk:
            return np.zeros(len(FIELDS), dtype=np.uint64)
        return self._ledger.entry(row, index)

    def read(self, row: int, index: int) -> NDArray[Any] | None:
        """The values of one block, [chunk, *item]; None if it is not done or does not fit its entry."""
        entry = self.entry(row, index)
        if not entry[DIGEST]:
            return None
        values = self._values.block(row, index)
        return values if self._fits(row, index, int(entry[DIGEST]), values) else None

    def read_rows(self, blocks: int) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Values [rows, blocks * chunk, *item] of the first blocks, and which are done, [rows, blocks].

        Values of blocks that are not done are the fill value.
        """
        entries = self.entries(blocks)
        # Small items are read in one go; large ones block by block, so that they are in memory once.
        found = None if self.item else self._bulk(blocks)
        out = self._empty(blocks)
        done = np.zeros((self.rows, blocks), dtype=np.bool_)
        places = np.argwhere(entries[:, :, DIGEST]).tolist()
        for row, index in places if found is not None else self._objects.ahead(places):
            part = slice(index * self.chunk, (index + 1) * self.chunk)
            values = self._values.block(row, index) if found is None else found[row, part]
            if self._fits(row, index, int(entries[row, index, DIGEST]), values):
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
        marks = entries[rows, blocks, DIGEST]
        out = np.full((len(marks), marks.shape[1] * self.chunk, *self.item), self._values.fill, self.dtype)
        done = np.zeros(marks.shape, dtype=np.bool_)
        found = self._values.read(rows, slice(blocks.start * self.chunk, blocks.stop * self.chunk))
        if found is None:
            logger.debug("%s: read block by block", self.path)
        for row, index in np.argwhere(marks).tolist():
            part = slice(index * self.chunk, (index + 1) * self.chunk)
            place = rows.start + row, blocks.start + index
            values = self._values.block(*place) if found is None else found[row, part]
            if self._fits(*place, int(marks[row, index]), values):
                out[row, part] = values
                done[row, index] = True
        return out, done

    def verified(self, blocks: int) -> NDArray[np.bool_]:
        """Which of the first blocks are done and fit their entries, [rows, blocks]."""
        if not self.item:
            return self.read_rows(blocks)[1]
        marked = self.entries(blocks)[:, :, DIGEST] != 0
        done = self._objects.vouched(marked)
        left = np.argwhere(marked & ~done).tolist()
        for row, index in self._objects.ahead(left):
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
        stored = with_one_nan(values)
        self._objects.fetch("ledger")
        self._ledger.clear(row, index)
        self._values.put(row, index, stored)
        self._ledger.enter(row, index, block_digest(stored, row, index), record, seconds, written)
        self._objects.vouch(row, index)

    def _fits(self, row: int, index: int, expected: int, values: NDArray[Any] | None) -> bool:
        if values is not None and block_digest(values, row, index) == expected:
            self._objects.vouch(row, index)
            return True
        columns = f"{index * self.chunk} to {(index + 1) * self.chunk - 1}"
        where = f"{self.path.parent.parent.name}/{self.path.name}: row {row}, columns {columns}"
        logger.warning("%s: the stored values do not fit their ledger entry and count as not done", where)
        return False

    def _bulk(self, blocks: int) -> NDArray[Any] | None:
        self._objects.fetch("values")
        there = min(blocks * self.chunk, self.columns)
        found = self._values.read(slice(None), slice(there))
        if found is None:
            return None
        out = self._empty(blocks)
        out[:, :there] = found
        return out

    def _empty(self, blocks: int) -> NDArray[Any]:
        shape = (self.rows, blocks * self.chunk, *self.item)
        return np.full(shape, self._values.fill, dtype=self._values.dtype)


def is_published(folder: Place, listing: Listing | None = None) -> bool:
    """Whether the folder of an array is there whole; of a bucket by a listing, if there is one."""
    if isinstance(folder, ObjectPath) and listing is not None:
        return (folder / HEAD).key in listing
    return atomic.is_published(folder, HEAD)


def _has_head(folder: Place, listing: Listing | None) -> bool:
    if isinstance(folder, ObjectPath):
        return is_published(folder, listing)
    return (folder / HEAD).exists()
