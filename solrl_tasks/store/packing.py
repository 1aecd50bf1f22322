"""Packing: the blocks of a finished pool, or of samples, in few files instead of two for each array and block.

Values, marks and digests stay as they are; so does every way of reading. The packed array is written beside the other
and compared with it; then the removal of one file (``values/zarr.json``) makes it the one that counts, and the other
is removed. A kill leaves the old or the new one, whole, and what is left over goes with the next packing.
"""

import logging
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from zarr.storage import LocalStore

from solrl_tasks.store import atomic, places
from solrl_tasks.store.array_names import IMAGES, THUMBNAILS
from solrl_tasks.store.arrays import PACKED, BlockArray
from solrl_tasks.store.block_folder import BlockFolder
from solrl_tasks.store.errors import StoreError
from solrl_tasks.store.gc import alone
from solrl_tasks.store.ledger import DIGEST, FIELDS
from solrl_tasks.store.refs import Kind
from solrl_tasks.store.root import Store
from solrl_tasks.store.zarr_array import HEAD, group_metadata, make_array

logger = logging.getLogger(__name__)
SHARD_BYTES: Final = 16 * 2**20
"""Of values in a file, before compression: what is read of a bucket to have one block, and written to change one."""
_ENTRY_BYTES: Final = 8 * len(FIELDS)


@dataclass(frozen=True)
class Packing:
    """What packing did.

    Attributes:
        packed, before, large: names of arrays that were packed now, were packed already, or stay as they are because
            two of their blocks are more than ``SHARD_BYTES``.
        files, bytes: of the whole object, before and after.
    """

    packed: tuple[str, ...]
    before: tuple[str, ...]
    large: tuple[str, ...]
    files: tuple[int, int]
    bytes: tuple[int, int]


def pack(store: Store, kind: Kind, key: str) -> Packing:
    """Pack the arrays of a finished object; what is packed already is left as it is.

    Raises:
        MissingObjectError, DamagedError: as ``BlockFolder.load``.
        StoreError: it is not finished, or holds values that do not fit their marks.
        LockedError: something uses the store.
    """
    folder = BlockFolder.load(store, kind, key)
    with alone(store, f"packing of {folder.label}"), folder.hold("packing", wait=True):
        check_finished(folder)
        before = places.count_below(folder.path), places.bytes_below(folder.path)
        store.require_format(2)
        done: dict[str, list[str]] = {"packed": [], "before": [], "large": []}
        for name in folder.names():
            array = folder.array(name)
            if array is not None:
                done[pack_array(array)].append(name)
        after = places.count_below(folder.path), places.bytes_below(folder.path)
    packed, already, large = (tuple(names) for names in done.values())
    return Packing(packed, already, large, (before[0], after[0]), (before[1], after[1]))


def check_finished(folder: BlockFolder) -> None:
    """Refuse an object that lacks blocks.

    Pictures may be kept of some blocks only, and rows of samples may be left out altogether.

    Raises:
        StoreError: an array lacks blocks that others have, or a pool has none of them.
    """
    columns = folder.columns
    names = [name for name in folder.names() if name not in (IMAGES, THUMBNAILS)]
    done = {name: folder.done(name, columns, verify=False) for name in names}
    wanted = np.ones((folder.rows, folder.blocks(columns)), dtype=np.bool_)
    if folder.kind == "samples":
        wanted &= np.asarray([min(row, default=-1) >= 0 for row in folder.shape["rows"]], dtype=np.bool_)[:, None]
    lacking = {name: int(np.count_nonzero(wanted & ~table)) for name, table in done.items()}
    short = ", ".join(f"{name} lacks {count}" for name, count in lacking.items() if count)
    if short or not names or not wanted.any():
        raise StoreError(
            f"{folder.label} is not finished ({short or 'it is empty'} of {int(wanted.sum())} blocks): run what fills "
            "it first; what is still filled is faster as it is"
        )


def pack_array(array: BlockArray) -> str:
    """Pack one array, under the lock of its object: ``packed``, or ``before`` or ``large``, where nothing was done."""
    if array.packed:
        _remove_plain(array)
        return "before"
    if 2 * array.chunk * _item_bytes(array) > SHARD_BYTES:
        return "large"
    # A killed packing leaves one that nobody believes, and that may be older than what is there now.
    places.remove_below(array.path / PACKED)
    with atomic.publish_folder(array.path / PACKED, HEAD) as temporary:
        atomic.write_json(temporary / HEAD, group_metadata({"ledger_fields": list(FIELDS)}))
        _copy(array, LocalStore(temporary))
    _compare(array)
    atomic.remove_file(array.path / "values" / HEAD)
    if isinstance(array.path, Path):
        atomic.sync_folder(array.path / "values")
    _remove_plain(array)
    return "packed"


def _remove_plain(array: BlockArray) -> None:
    for part in ("values", "ledger"):
        places.remove_below(array.path / part)


def _copy(array: BlockArray, target: LocalStore) -> None:
    blocks = array.columns // array.chunk
    rows, across = shard_of(array.rows, blocks, array.chunk * _item_bytes(array))
    shape = (array.rows, array.columns, *array.item)
    shards = (rows, across * array.chunk, *array.item)
    values = make_array(target, "values", shape, (1, array.chunk, *array.item), array.dtype, shards)
    entries = array.entries(blocks)
    for row, index in _starts(array.rows, blocks, rows, across):
        part = _values_at(array, entries, slice(row, row + rows), slice(index, index + across))
        values[row : row + rows, index * array.chunk : (index + across) * array.chunk] = part
    rows, across = shard_of(array.rows, blocks, _ENTRY_BYTES)
    ledger_shards = (rows, across, len(FIELDS))
    ledger = make_array(target, "ledger", entries.shape, (1, 1, len(FIELDS)), "uint64", ledger_shards)
    ledger[:] = entries


def shard_of(rows: int, blocks: int, block_bytes: int) -> tuple[int, int]:
    """Rows and blocks of a row that lie in one file: whole rows where they fit, else a part of one."""
    most = max(SHARD_BYTES // block_bytes, 1)
    return (min(rows, most // blocks), blocks) if most >= blocks else (1, most)


def _starts(rows: int, blocks: int, tall: int, wide: int) -> Iterator[tuple[int, int]]:
    yield from ((row, index) for row in range(0, rows, tall) for index in range(0, blocks, wide))


def _values_at(array: BlockArray, entries: NDArray[np.uint64], rows: slice, blocks: slice) -> NDArray[Any]:
    values, done = array.read_region(entries, rows, blocks)
    for row, index in np.argwhere((entries[rows, blocks, DIGEST] != 0) & ~done).tolist():
        raise StoreError(
            f"{array.path}: row {rows.start + row}, block {blocks.start + index} is damaged: run again what uses it, "
            "which computes the block, then pack"
        )
    return values


def _compare(array: BlockArray) -> None:
    """Read the packed array back. Raises StoreError where it differs: the other one still counts."""
    blocks = array.columns // array.chunk
    places.read_anew(array.path / PACKED)
    packed = array.packed_beside()
    entries = array.entries(blocks)
    same = np.array_equal(packed.entries(blocks), entries) and packed.columns == array.columns
    rows, across = shard_of(array.rows, blocks, array.chunk * _item_bytes(array))
    for row, index in _starts(array.rows, blocks, rows, across) if same else ():
        part = slice(row, row + rows), slice(index, index + across)
        same &= np.array_equal(packed.read_region(entries, *part)[1], entries[(*part, DIGEST)] != 0)
    if not same:
        places.remove_below(array.path / PACKED)
        raise StoreError(f"{array.path}: what was packed reads back differently, and was dropped: check the disk")


def _item_bytes(array: BlockArray) -> int:
    return math.prod(array.item) * np.dtype(array.dtype).itemsize
