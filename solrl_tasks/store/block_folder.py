"""Folders of block arrays that share rows, chunk, lock and records: what pools and samples are made of."""

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, Literal, Self

import numpy as np
from numpy.typing import NDArray

from solrl_tasks.store import atomic
from solrl_tasks.store.array_names import FEATURES, IMAGES, LATENTS, PATHS, REWARDS, THUMBNAILS, item_form
from solrl_tasks.store.arrays import HEAD, BlockArray, item_fits
from solrl_tasks.store.blocks import Block
from solrl_tasks.store.environments import Environments
from solrl_tasks.store.errors import DamagedError, IncompleteError, NotLockedError
from solrl_tasks.store.keys import key as key_of
from solrl_tasks.store.object_path import ObjectPath
from solrl_tasks.store.refs import Kind, Ref
from solrl_tasks.store.root import Store
from solrl_tasks.store.spec_file import DATA, SPEC, SpecFile, read_spec

logger = logging.getLogger(__name__)

Reuse = Literal["exact", "compatible"]
_NAMED: Final = 5  # blocks that an error names before it counts the rest


def check_chunk(chunk: int) -> int:
    """The chunk itself. Raises ValueError if it is less than 1."""
    if chunk < 1:
        raise ValueError(f"chunk must be at least 1, found {chunk}")
    return chunk


class BlockFolder:
    """Arrays of equal rows and chunk under one spec, one lock and one set of environment records.

    Arrays are called ``images``, ``thumbnails``, ``latents``, ``paths``, ``rewards/NAME@VERSION`` or
    ``features/NAME@VERSION``. On the disk: ``spec.json`` (sealed), ``records/ID.json`` and the Zarr hierarchy
    ``data.zarr``.

    Args:
        spec: the content address is ``key(spec)``.
        shape: JSON with ``rows`` (a list) and ``chunk``. It must follow from the spec.
        reuse: whether blocks of several environments may be mixed.
        mend: move damaged parts into quarantine and make them anew; otherwise they count as absent.

    Raises:
        StoreError: the folder has the same spec with another shape.
    """

    def __init__(
        self,
        store: Store,
        kind: Kind,
        spec: dict[str, Any],
        shape: dict[str, Any],
        reuse: Reuse = "exact",
        mend: bool = True,
    ) -> None:
        self.store = store
        self.kind = kind
        self.spec = spec
        self.key = key_of(spec)
        self.path = store.folder(kind) / self.key
        self.rows = len(shape["rows"])
        self.chunk = check_chunk(shape["chunk"])
        self.reuse = reuse
        self.shape = shape
        self._mend = mend
        self._wanted_columns = 0
        self._lock = store.object_lock(kind, self.key, f"{kind} {self.key}")
        self._open_arrays: dict[str, BlockArray] = {}
        self._names: list[str] | None = None
        self._environments = Environments(self.label, self.path / "records", self.array, lambda: self._lock.held)
        if mend:
            SpecFile(store, kind, self.path, spec, shape).publish_or_check(self._lock)

    @classmethod
    def load(cls, store: Store, kind: Kind, key: str) -> Self:
        """A folder that is there, by key, to read.

        Raises:
            MissingObjectError: there is none.
            DamagedError: its ``spec.json`` cannot be read, or is of another key.
        """
        path = store.folder(kind) / key
        store.require(path / SPEC, f"{kind}/{key}")
        spec, shape = read_spec(path, key)
        return cls(store, kind, spec, shape, mend=False)

    @property
    def label(self) -> str:
        """How messages call it."""
        return f"{self.kind}/{self.key}"

    @contextmanager
    def lock(self, purpose: str, wait: bool) -> Iterator[None]:
        """Hold the folder alone; what dead writers left in it is swept."""
        with self.store.in_use(f"{purpose or 'filling'} ({self.label})"), self.hold(purpose, wait):
            yield

    @contextmanager
    def hold(self, purpose: str, wait: bool) -> Iterator[None]:
        """As ``lock``, for one who has the store alone."""
        self._lock.purpose = f"{purpose or 'filling'} ({self.label})"
        with self._lock.hold(wait=wait):
            self._forget()
            self._sweep()
            try:
                yield
            finally:
                self._forget()

    def ensure_columns(self, columns: int) -> None:
        """Grow every array to hold ``columns`` in whole chunks. Needs the lock."""
        self._require_lock("ensure_columns")
        self._wanted_columns = max(self._wanted_columns, self.blocks(columns) * self.chunk)
        for name in self.names():
            array = self.array(name)
            if array is not None:
                array.grow(self._wanted_columns)

    @property
    def columns(self) -> int:
        """Columns that can be written."""
        arrays = (self.array(name) for name in self.names())
        return max([self._wanted_columns, *(array.columns for array in arrays if array is not None)])

    def blocks(self, columns: int) -> int:
        """How many blocks of a row hold ``columns``."""
        return -(-columns // self.chunk)

    def names(self) -> list[str]:
        """The arrays that there are, pictures and latents first."""
        if self._names is not None:
            return list(self._names)
        data = self.path / DATA
        found = [name for name in (IMAGES, THUMBNAILS, LATENTS, PATHS) if atomic.is_published(data / name, HEAD)]
        for group in (REWARDS, FEATURES):
            if (data / group).is_dir():
                entries = (entry for entry in (data / group).iterdir() if entry.name != HEAD)
                folders = (entry.name for entry in entries if atomic.is_published(entry, HEAD))
                found += sorted(f"{group}/{name}" for name in folders if not name.startswith("."))
        if self._lock.held:
            self._names = found
        return list(found)

    def array(self, name: str) -> BlockArray | None:
        """An array by name; None if there is none. One whose metadata is damaged is moved aside."""
        if name in self._open_arrays:
            return self._open_arrays[name]
        try:
            array = self._open(name)
        except DamagedError as error:
            self._discard(name, str(error))
            return None
        if array is not None and self._lock.held:
            self._open_arrays[name] = array
        return array

    def done(self, name: str, columns: int, verify: bool) -> NDArray[np.bool_]:
        """Which blocks of an array are done, [rows, blocks]; read and compared if ``verify``."""
        blocks = self.blocks(columns)
        array = self.array(name)
        if array is None:
            return np.zeros((self.rows, blocks), dtype=np.bool_)
        return array.verified(blocks) if verify else array.entries(blocks)[:, :, 0] != 0

    def has_block(self, name: str, row: int, index: int, verify: bool) -> bool:
        """Whether one block of an array is done."""
        array = self.array(name)
        if array is None:
            return False
        return array.read(row, index) is not None if verify else bool(array.entry(row, index)[0])

    def values(self, name: str, columns: int, rows: NDArray[np.bool_] | None = None) -> NDArray[Any]:
        """Verified values [rows, columns, *item].

        Args:
            rows: which rows are needed, [rows]; None is all. The others hold the fill value where not done.

        Raises:
            IncompleteError: a needed block is not done.
        """
        blocks = self.blocks(columns)
        needed = np.ones(self.rows, dtype=np.bool_) if rows is None else rows
        array = self.array(name)
        if array is None:
            self._refuse_incomplete(name, np.zeros((self.rows, blocks), dtype=np.bool_) | ~needed[:, None])
            return np.full((self.rows, columns), np.nan, dtype=np.float32)
        found, done = array.read_rows(blocks)
        self._refuse_incomplete(name, done | ~needed[:, None])
        return found[:, :columns]

    def take(self, name: str, row: int, columns: Sequence[int]) -> NDArray[Any]:
        """Verified values of some columns of one row, [len(columns), *item].

        Raises:
            IncompleteError: a block that holds one of them is not done.
        """
        array = self.array(name)
        parts: dict[int, NDArray[Any]] = {}
        for index in sorted({column // self.chunk for column in columns}):
            values = None if array is None else array.read(row, index)
            if values is None:
                raise IncompleteError(f"{self.label}: {name} of {self._named(row, index)} is not kept")
            parts[index] = values
        return np.stack([parts[column // self.chunk][column % self.chunk] for column in columns])

    def write(self, block: Block, arrays: Mapping[str, NDArray[Any]], seconds: float, record: dict[str, Any]) -> None:
        """Store arrays of a block. Those that are done, and that the block does not miss, stay as they are.

        Raises:
            NotLockedError: the lock is not held.
            RecordMismatchError: see ``admit``.
            ValueError: a wrong shape or type, or columns that ``ensure_columns`` has not made.
        """
        self._require_lock("write")
        if not arrays:
            raise ValueError(f"{self.label}: nothing to write for {self._named(block.row, block.index)}")
        self.admit(record, [block])
        number = self._environments.save(record)
        written = time.time_ns()
        for name, values in arrays.items():
            array = self._array_for(name, block, values)
            if not self._keeps(array, name, block, values):
                array.write(block.row, block.index, values, number, seconds, written)
                self._environments.note(name, number)

    def admit(self, record: dict[str, Any], blocks: Sequence[Block]) -> None:
        """Refuse blocks made under ``record`` beside blocks of other records, unless reuse is ``compatible``.

        A block that is only scored again from what is kept may come from another environment than the
        sampling did, as long as all blocks of that reward come from one.

        Raises:
            RecordMismatchError: it names what differs.
        """
        if self.reuse == "compatible":
            return
        sampled = any(block.needs_sampling for block in blocks)
        scored = {f"{REWARDS}/{name}" for block in blocks for name in block.missing}
        scored |= {f"{FEATURES}/{name}" for block in blocks for name in block.features_missing}
        for name in self.names():
            if sampled or name in scored:
                self._environments.require_same(name, record)

    def records(self) -> dict[str, dict[str, Any] | None]:
        """The records of all blocks by id; None where the record's own file is lost."""
        return self._environments.all(self.names())

    def ref(self, digest: str) -> Ref:
        """A reference to the object, under a digest of its contents."""
        return Ref(kind=self.kind, key=self.key, digest=digest, path=self.store.relative(self.path))

    def seconds(self, names: Sequence[str], columns: int) -> float:
        """Device seconds of the computations that made these arrays; what one of them made counts once."""
        tables = []
        for name in names:
            array = self.array(name)
            if array is not None:
                tables.append(array.entries(self.blocks(columns)))
        if not tables:
            return 0.0
        total = 0
        stacked = np.stack(tables, axis=2)
        for row, index in np.ndindex(stacked.shape[:2]):
            total += sum({int(entry[3]): int(entry[2]) for entry in stacked[row, index]}.values())
        return total * 1e-6

    def _forget(self) -> None:
        # Handles are trusted only while nobody else can change what they describe.
        self._open_arrays.clear()
        self._names = None
        self._environments.forget()

    def _sweep(self) -> None:
        if isinstance(self.path, ObjectPath):
            return
        atomic.sweep(self.path, recursive=True)
        # Zarr's own temporary files name no writer. Whoever holds the lock is the only one.
        for entry in self.path.rglob("*.partial"):
            entry.unlink(missing_ok=True)

    def _open(self, name: str) -> BlockArray | None:
        folder = self.path / DATA / name
        if not atomic.is_published(folder, HEAD):
            return None
        item, dtype = item_form(name, self.shape)
        return BlockArray.open(folder, self.rows, self.chunk, item, dtype, self._lock.confirm)

    def _discard(self, name: str, why: str) -> None:
        if not self._mend:
            logger.warning("%s: %s; its blocks count as not done", self.label, why)
            return
        with self._lock.hold(wait=True):
            try:
                self._open(name)
            except DamagedError:
                aside = self.store.move_aside(self.path / DATA / name, why, HEAD)
                self._names = None
                logger.warning("%s: %s; moved to %s, and its blocks count as not done", self.label, why, aside)

    def _array_for(self, name: str, block: Block, values: NDArray[Any]) -> BlockArray:
        columns = self.columns
        if block.stop > columns or block.row >= self.rows:
            raise ValueError(
                f"{self.label}: {self._named(block.row, block.index)} is outside of {self.rows} rows and "
                f"{columns} columns: call ensure_columns first"
            )
        item, dtype = item_form(name, self.shape)
        array = self.array(name)
        if array is not None:
            item = array.item
        found = f"{values.dtype} {list(values.shape)}"
        if str(values.dtype) != dtype or not item_fits(values.shape, (self.chunk, *item)):
            sides = ", ".join("any" if side is None else str(side) for side in (self.chunk, *item))
            raise ValueError(f"{self.label}: a block of {name} is {dtype} [{sides}], found {found}")
        if array is None:
            folder = self.path / DATA / name
            array = BlockArray.create(
                folder, self.rows, columns, self.chunk, values.shape[1:], dtype, self._lock.confirm
            )
            self._open_arrays[name] = array
            self._names = None
        return array

    def _keeps(self, array: BlockArray, name: str, block: Block, values: NDArray[Any]) -> bool:
        if name in block.lacks or not array.entry(block.row, block.index)[0]:
            return False
        stored = array.read(block.row, block.index)
        if stored is None:
            return False
        if not np.array_equal(stored, values, equal_nan=stored.dtype.kind == "f"):
            logger.warning(
                "%s: %s of %s came out differently when computed again; what was stored first stays",
                self.label, name, self._named(block.row, block.index),
            )  # fmt: skip
        return True

    def _require_lock(self, action: str) -> None:
        if not self._lock.held:
            self._lock.confirm()
            raise NotLockedError(f"{self.label}: {action} needs the lock: use it within `with ….lock():`")

    def _named(self, row: int, index: int) -> str:
        return f"row {row}, columns {index * self.chunk} to {(index + 1) * self.chunk - 1}"

    def _refuse_incomplete(self, name: str, done: NDArray[np.bool_]) -> None:
        lacking = np.argwhere(~done).tolist()
        if not lacking:
            return
        named = ", ".join(f"({self._named(row, index)})" for row, index in lacking[:_NAMED])
        rest = f" and {len(lacking) - _NAMED} more" if len(lacking) > _NAMED else ""
        raise IncompleteError(
            f"{self.label}: {name} is not done in {len(lacking)} of {done.size} blocks: {named}{rest}"
        )
