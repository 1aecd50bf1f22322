"""Folders of block arrays that share rows, chunk, lock and records: what pools and samples are made of."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import PurePosixPath
from typing import Any, Final, Literal, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from solrl_tasks.store import atomic
from solrl_tasks.store.array_names import FEATURES, IMAGES, LATENTS, PATHS, REWARDS, THUMBNAILS, item_fits, item_form
from solrl_tasks.store.arrays import PACKED, BlockArray, is_published
from solrl_tasks.store.blocks import Block
from solrl_tasks.store.bucket_objects import Listing
from solrl_tasks.store.environments import Environments
from solrl_tasks.store.errors import DamagedError, IncompleteError, MissingObjectError, NotLockedError
from solrl_tasks.store.keys import key as key_of
from solrl_tasks.store.ledger import DIGEST, MICROSECONDS, WRITTEN
from solrl_tasks.store.object_path import ObjectPath, Place
from solrl_tasks.store.refs import Kind, Ref
from solrl_tasks.store.root import Store
from solrl_tasks.store.spec_file import DATA, SPEC, SpecFile, read_spec
from solrl_tasks.store.zarr_array import HEAD

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")
Reuse = Literal["exact", "compatible"]
_PLAIN: Final = (IMAGES, THUMBNAILS, LATENTS, PATHS)
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
        self._listing: Listing | None = None
        self._environments = Environments(self.label, self.path / "records", self.entries, lambda: self._lock.held)
        if mend:
            self._publish_or_check()

    def _publish_or_check(self) -> None:
        SpecFile(self.store, self.kind, self.path, self.spec, self.shape).publish_or_check(self._lock)

    @classmethod
    def load(cls, store: Store, kind: Kind, key: str) -> Self:
        """A folder that is there, by key, to read.

        Raises:
            MissingObjectError: there is none.
            DamagedError: its ``spec.json`` cannot be read, or is of another key.
        """
        path = store.folder(kind) / key
        try:
            spec, shape = read_spec(path, key)
        except FileNotFoundError as error:
            raise store.missing(path / SPEC, f"{kind}/{key}") from error
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
        """As ``lock``, for one who has the store alone.

        Raises:
            MissingObjectError: it was removed since it was opened, and only what is there was to be opened.
        """
        self._lock.purpose = f"{purpose or 'filling'} ({self.label})"
        with self._lock.hold(wait=wait):
            self._forget()
            self._sweep()
            if isinstance(self.path, ObjectPath):
                # Exact for as long as the lock is held, and what it names then stays.
                self._listing = self.path.bucket.listing(self.path.key)
            self._be_there()
            try:
                yield
            finally:
                if isinstance(self.path, ObjectPath) and self._listing is not None:
                    self.path.bucket.known.keep(self._listing)
                self._forget()

    def _be_there(self) -> None:
        """Under the lock: whoever has the store alone may have removed it after it was opened and before that."""
        spec = self.path / SPEC
        there = spec.key in self._listing if isinstance(spec, ObjectPath) and self._listing else spec.exists()
        if there:
            return
        if not self._mend:
            raise self._removed()
        self._publish_or_check()

    def _removed(self) -> MissingObjectError:
        return MissingObjectError(
            f"{self.label} was removed from the store {self.store.root} while it was in use here, by the garbage "
            "collection or by hand: run again what makes it"
        )

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
        if self._listing is not None:
            found = self._listed_names(self._listing)
        else:
            found = [name for name in _PLAIN if is_published(self.path / DATA / name)]
            for group in (REWARDS, FEATURES):
                found += sorted(f"{group}/{name}" for name in self._published_in(self.path / DATA / group))
            if not found and not (self.path / SPEC).exists():
                raise self._removed()
        if self._lock.held:
            self._names = found
        return list(found)

    def _published_in(self, group: Place) -> list[str]:
        if not isinstance(group, ObjectPath) and not group.is_dir():
            return []
        entries = (entry for entry in group.iterdir() if entry.name != HEAD and not entry.name.startswith("."))
        return [entry.name for entry in entries if is_published(entry)]

    def _listed_names(self, listing: Listing) -> list[str]:
        data = f"{listing.prefix}/{DATA}"
        keys = [entry.key for entry in listing.below(data) if entry.key.endswith(f"/{HEAD}")]
        heads = {PurePosixPath(key).relative_to(data).parent.parts for key in keys}
        groups = (
            sorted(head for head in heads if len(head) == 2 and head[0] == group) for group in (REWARDS, FEATURES)
        )
        named = ["/".join(head) for group in groups for head in group if not head[1].startswith(".")]
        return [name for name in _PLAIN if (name,) in heads] + named

    def array(self, name: str) -> BlockArray | None:
        """An array by name; None if there is none. One whose metadata is damaged is moved aside."""
        if name in self._open_arrays:
            return self._open_arrays[name]
        try:
            array = self._open(name, self._listing)
        except DamagedError as error:
            self._discard(name, str(error))
            return None
        if array is not None and self._lock.held:
            self._open_arrays[name] = array
        return array

    def ask(
        self, name: str, read: Callable[[BlockArray], Answer], whole: Callable[[Answer], bool], little: bool = False
    ) -> Answer | None:
        """What ``read`` finds in an array, None if there is none.

        In a bucket what is remembered is asked first: where it is all that was asked for (``whole``), it still is.
        Where something lacks, the array may have been packed meanwhile, and is asked again.

        Args:
            little: a block is read, which is not worth a listing of them all.

        Raises:
            MissingObjectError: the folder was removed meanwhile.
        """
        for listing in self._remembered(name):
            with suppress(DamagedError):
                array = self._open(name, listing)
                answer = None if array is None else read(array)
                if answer is not None and whole(answer):
                    return answer
        array = self.array(name) if little and not self._remembers() else self._listed(name)
        answer = None if array is None else read(array)
        if answer is not None and whole(answer):
            return answer
        packed = self._packed_meanwhile(name, array)
        return answer if packed is None else read(packed)

    def _packed_meanwhile(self, name: str, array: BlockArray | None) -> BlockArray | None:
        """The array as it is now, if it was packed while it was read as it had been: what was not found is there.

        Raises:
            MissingObjectError: the folder was removed.
        """
        if self._lock.held or self._remembers():
            return None
        if not (self.path / SPEC).exists():
            raise self._removed()
        if array is None or array.packed or not is_published(array.path / PACKED):
            return None
        with suppress(DamagedError):
            again = self._open(name, None)
            return again if again is not None and again.packed else None
        return None

    def _remembered(self, name: str) -> Iterator[Listing]:
        if self._lock.held or not isinstance(self.path, ObjectPath):
            return
        for place in (self.path / DATA / name, self.path):
            listing = self.path.bucket.known.listing(place.key)
            if listing is not None:
                yield listing

    def _remembers(self) -> bool:
        return isinstance(self.path, ObjectPath) and self.path.bucket.known.trusted

    def _listed(self, name: str) -> BlockArray | None:
        """As ``array``, for those who read much of it: in a bucket a listing tells most of what it takes to open it."""
        if self._lock.held or not isinstance(self.path, ObjectPath):
            return self.array(name)
        bucket = self.path.bucket
        listing = bucket.listing((self.path / DATA / name).key)
        bucket.known.keep(listing)
        try:
            return self._open(name, listing)
        except DamagedError as error:
            self._discard(name, str(error))
            return None

    def done(self, name: str, columns: int, verify: bool) -> NDArray[np.bool_]:
        """Which blocks of an array are done, [rows, blocks]; read and compared if ``verify``."""
        blocks = self.blocks(columns)

        def read(array: BlockArray) -> NDArray[np.bool_]:
            return array.verified(blocks) if verify else array.entries(blocks)[:, :, DIGEST] != 0

        found = self.ask(name, read, lambda done: bool(done.all()))
        return np.zeros((self.rows, blocks), dtype=np.bool_) if found is None else found

    def entries(self, name: str, blocks: int | None = None) -> NDArray[np.uint64] | None:
        """Ledger entries of an array, [rows, blocks, 4], of its first ``blocks`` or of all; None if there is none."""

        def read(array: BlockArray) -> NDArray[np.uint64]:
            return array.entries(array.columns // array.chunk if blocks is None else blocks)

        return self.ask(name, read, _is_full)

    def has_block(self, name: str, row: int, index: int, verify: bool) -> bool:
        """Whether one block of an array is done."""

        def read(array: BlockArray) -> bool:
            return array.read(row, index) is not None if verify else bool(array.entry(row, index)[DIGEST])

        return bool(self.ask(name, read, bool, little=True))

    def values(self, name: str, columns: int, rows: NDArray[np.bool_] | None = None) -> NDArray[Any]:
        """Verified values [rows, columns, *item].

        Args:
            rows: which rows are needed, [rows]; None is all. The others hold the fill value where not done.

        Raises:
            IncompleteError: a needed block is not done.
        """
        blocks = self.blocks(columns)
        needed = np.ones(self.rows, dtype=np.bool_) if rows is None else rows
        answer = self.ask(name, lambda array: array.read_rows(blocks), lambda read: bool(read[1][needed].all()))
        if answer is None:
            self._refuse_incomplete(name, np.zeros((self.rows, blocks), dtype=np.bool_) | ~needed[:, None])
            return np.full((self.rows, columns), np.nan, dtype=np.float32)
        found, done = answer
        self._refuse_incomplete(name, done | ~needed[:, None])
        return found[:, :columns]

    def take(self, name: str, row: int, columns: Sequence[int]) -> NDArray[Any]:
        """Verified values of some columns of one row, [len(columns), *item].

        Raises:
            IncompleteError: a block that holds one of them is not done.
        """
        wanted = sorted({column // self.chunk for column in columns})

        def read(array: BlockArray) -> dict[int, NDArray[Any]]:
            blocks = ((index, array.read(row, index)) for index in wanted)
            return {index: values for index, values in blocks if values is not None}

        parts = self.ask(name, read, lambda found: len(found) == len(wanted), little=True) or {}
        for index in wanted:
            if index not in parts:
                raise IncompleteError(f"{self.label}: {name} of {self._named(row, index)} is not kept")
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
        blocks = self.blocks(columns)
        found = (self.entries(name, blocks) for name in names)
        tables = [table for table in found if table is not None]
        if not tables:
            return 0.0
        total = 0
        stacked = np.stack(tables, axis=2)
        for row, index in np.ndindex(stacked.shape[:2]):
            total += sum({int(entry[WRITTEN]): int(entry[MICROSECONDS]) for entry in stacked[row, index]}.values())
        return total * 1e-6

    def _forget(self) -> None:
        # Handles are trusted only while nobody else can change what they describe.
        self._open_arrays.clear()
        self._names = None
        self._listing = None
        self._environments.forget()

    def _sweep(self) -> None:
        if isinstance(self.path, ObjectPath):
            return
        atomic.sweep(self.path, recursive=True)
        # Zarr's own temporary files name no writer. Whoever holds the lock is the only one.
        for entry in self.path.rglob("*.partial"):
            entry.unlink(missing_ok=True)

    def _open(self, name: str, listing: Listing | None) -> BlockArray | None:
        folder = self.path / DATA / name
        if not is_published(folder, listing):
            return None
        item, dtype = item_form(name, self.shape)
        return BlockArray.open(folder, self.rows, self.chunk, item, dtype, self._lock.confirm, listing)

    def _discard(self, name: str, why: str) -> None:
        if not self._mend:
            logger.warning("%s: %s; its blocks count as not done", self.label, why)
            return
        with self._lock.hold(wait=True):
            try:
                self._open(name, None)
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
                folder, self.rows, columns, self.chunk, values.shape[1:], dtype, self._lock.confirm, self._listing
            )
            self._open_arrays[name] = array
            self._names = None
        return array

    def _keeps(self, array: BlockArray, name: str, block: Block, values: NDArray[Any]) -> bool:
        if name in block.lacks or not array.entry(block.row, block.index)[DIGEST]:
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


def _is_full(entries: NDArray[np.uint64]) -> bool:
    return bool(np.all(entries[:, :, DIGEST]))
