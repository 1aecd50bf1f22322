"""Folders of block arrays that share rows, chunk, lock and records: what pools and samples are made of."""

import logging
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Literal, Self

import numpy as np
from numpy.typing import NDArray

from solrl_tasks.store import atomic
from solrl_tasks.store.arrays import HEAD, BlockArray, group_metadata, item_fits
from solrl_tasks.store.errors import (
    DamagedError,
    IncompleteError,
    NotLockedError,
    RecordMismatchError,
    StoreError,
)
from solrl_tasks.store.keys import key as key_of
from solrl_tasks.store.object_path import ObjectPath, Place
from solrl_tasks.store.records import RecordShelf, differences, record_id
from solrl_tasks.store.refs import Kind, Ref
from solrl_tasks.store.root import Store

logger = logging.getLogger(__name__)

Reuse = Literal["exact", "compatible"]
IMAGES: Final = "images"
THUMBNAILS: Final = "thumbnails"
LATENTS: Final = "latents"
PATHS: Final = "paths"
REWARDS: Final = "rewards"
FEATURES: Final = "features"
_NAMED_VALUES: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:+-]*@[A-Za-z0-9_.:+-]+")
SPEC: Final = "spec.json"
_NAMED: Final = 5  # blocks that an error names before it counts the rest


@dataclass(frozen=True)
class Block:
    """One row (prompt) times one chunk of columns (candidates), and what it still lacks.

    ``start`` to ``stop`` are columns; a block is always computed whole. ``missing`` names the rewards that
    were asked for and are not done, ``features_missing`` the features; ``images_missing`` and
    ``thumbnails_missing`` say the same of pictures. ``images_kept`` and ``latents_kept`` say that verified images or
    latents of the whole block are in the store.
    ``needs_sampling`` is false where what is missing can be computed from them without a forward pass of the
    model.
    """

    row: int
    index: int
    start: int
    stop: int
    missing: tuple[str, ...] = ()
    images_missing: bool = False
    images_kept: bool = False
    latents_kept: bool = False
    needs_sampling: bool = True
    features_missing: tuple[str, ...] = ()
    thumbnails_missing: bool = False

    @property
    def columns(self) -> NDArray[np.int64]:
        """The columns of the block, [chunk]."""
        return np.arange(self.start, self.stop, dtype=np.int64)


def reward_array(name: str) -> str:
    """The array of a reward.

    Raises:
        ValueError: the name is not ``name@version`` in letters, digits and ``_ . : + -``.
    """
    return f"{REWARDS}/{_checked('reward', name)}"


def feature_array(name: str) -> str:
    """The array of a feature. Raises as ``reward_array``."""
    return f"{FEATURES}/{_checked('feature', name)}"


def _checked(what: str, name: str) -> str:
    if not _NAMED_VALUES.fullmatch(name):
        raise ValueError(f"{what} {name!r}: the store needs name@version, in letters, digits and the signs _ . : + -")
    return name


def check_chunk(chunk: int) -> int:
    """The chunk itself. Raises ValueError if it is less than 1."""
    if chunk < 1:
        raise ValueError(f"chunk must be at least 1, found {chunk}")
    return chunk


def _missed(block: Block) -> set[str]:
    """The arrays that a block lacks of what was asked for."""
    arrays = {reward_array(name) for name in block.missing} | {feature_array(name) for name in block.features_missing}
    pictures = {IMAGES: block.images_missing, THUMBNAILS: block.thumbnails_missing}
    return arrays | {name for name, missing in pictures.items() if missing}


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
        self._shelf = RecordShelf(self.path / "records")
        self._open_arrays: dict[str, BlockArray] = {}
        self._seen: dict[str, set[int]] = {}
        self._names: list[str] | None = None
        if mend:
            self._create_or_check()

    @classmethod
    def load(cls, store: Store, kind: Kind, key: str) -> Self:
        """A folder that is there, by key, to read.

        Raises:
            MissingObjectError: there is none.
            DamagedError: its ``spec.json`` cannot be read, or is of another key.
        """
        path = store.require(store.folder(kind) / key / SPEC, f"{kind}/{key}")
        stored = atomic.read_sealed(path)
        # So that a copy under another name, or a path that leads elsewhere, is not taken for what it is a copy of.
        if key_of(stored["spec"]) != key:
            raise DamagedError(path, "it belongs to another key")
        return cls(store, kind, stored["spec"], stored["shape"], mend=False)

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
        data = self.path / "data.zarr"
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
        number = self._shelf.save(record)
        written = time.time_ns()
        for name, values in arrays.items():
            array = self._array_for(name, block, values)
            if not self._keeps(array, name, block, values):
                array.write(block.row, block.index, values, number, seconds, written)
                self._seen.setdefault(name, set()).add(number)

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
                self._compare_record(name, record)

    def records(self) -> dict[str, dict[str, Any] | None]:
        """The records of all blocks by id; None where the record's own file is lost."""
        found: set[int] = set()
        for name in self.names():
            found |= self._record_numbers(name)
        return {f"{number:016x}": self._shelf.load(number) for number in sorted(found)}

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

    def _create_or_check(self) -> None:
        # A request less for a bucket, where only the spec tells that there is something.
        if (isinstance(self.path, ObjectPath) or self.path.exists()) and self._damage():
            with self._lock.hold(wait=True):
                why = self._damage()
                if why and (aside := self.store.move_aside(self.path, why, SPEC)):
                    logger.warning("%s; moved to %s, and everything in it is computed again", why, aside)
        try:
            stored = atomic.read_sealed(self.path / SPEC)
        except FileNotFoundError:
            self._publish()
            stored = atomic.read_sealed(self.path / SPEC)
        changed = differences(stored["shape"], self.shape)
        if changed:
            raise StoreError(
                f"{self.label} was made with another shape ({'; '.join(changed[:_NAMED])}): what determines "
                "the shape must be part of the spec"
            )
        self._mend_groups()

    def _damage(self) -> str:
        try:
            stored = atomic.read_sealed(self.path / SPEC)
        except FileNotFoundError:
            if isinstance(self.path, ObjectPath):
                # The rest of one whose removal was killed, from the spec on: what it holds is still true.
                return ""
            return f"{self.path} is damaged: it has no spec.json" if self.path.exists() else ""
        except DamagedError as error:
            return str(error)
        fits = isinstance(stored, dict) and set(stored) == {"spec", "shape"} and key_of(stored["spec"]) == self.key
        return "" if fits else f"{self.path} is damaged: its spec.json belongs to another key"

    def _publish(self) -> None:
        with atomic.publish_folder(self.path, SPEC) as temporary:
            if isinstance(self.path, ObjectPath):
                for path, content in self._groups(temporary).items():
                    atomic.write_json(path, content)
            atomic.write_sealed(temporary / SPEC, {"spec": self.spec, "shape": self.shape})

    def _groups(self, folder: Place) -> dict[Place, dict[str, Any]]:
        data = folder / "data.zarr"
        about = {"kind": self.kind, "key": self.key, "spec": self.spec}
        return {data / "zarr.json": group_metadata(about), data / REWARDS / "zarr.json": group_metadata({})}

    def _mend_groups(self) -> None:
        # The groups hold nothing that spec.json does not say; they are there for other readers of Zarr. In a bucket
        # they are written before it.
        if isinstance(self.path, ObjectPath):
            return
        for path, content in self._groups(self.path).items():
            if not atomic.holds_json(path, content):
                atomic.write_json(path, content)

    def _forget(self) -> None:
        # Handles are trusted only while nobody else can change what they describe.
        self._open_arrays.clear()
        self._seen.clear()
        self._names = None
        self._shelf.forget()

    def _sweep(self) -> None:
        if isinstance(self.path, ObjectPath):
            return
        atomic.sweep(self.path, recursive=True)
        # Zarr's own temporary files name no writer. Whoever holds the lock is the only one.
        for entry in self.path.rglob("*.partial"):
            entry.unlink(missing_ok=True)

    def _open(self, name: str) -> BlockArray | None:
        folder = self.path / "data.zarr" / name
        if not atomic.is_published(folder, HEAD):
            return None
        item, dtype = self._form(name)
        return BlockArray.open(folder, self.rows, self.chunk, item, dtype, self._lock.confirm)

    def _form(self, name: str) -> tuple[tuple[int | None, ...], str]:
        if name in (IMAGES, THUMBNAILS):
            return (None, None, 3), "uint8"
        if name.startswith(f"{FEATURES}/"):
            return (None,), "float32"
        if name == PATHS:
            return (self.shape["states"], *self.shape["latent"]), "float32"
        return (tuple(self.shape["latent"]) if name == LATENTS else ()), "float32"

    def _discard(self, name: str, why: str) -> None:
        if not self._mend:
            logger.warning("%s: %s; its blocks count as not done", self.label, why)
            return
        with self._lock.hold(wait=True):
            try:
                self._open(name)
            except DamagedError:
                aside = self.store.move_aside(self.path / "data.zarr" / name, why, HEAD)
                self._names = None
                logger.warning("%s: %s; moved to %s, and its blocks count as not done", self.label, why, aside)

    def _array_for(self, name: str, block: Block, values: NDArray[Any]) -> BlockArray:
        columns = self.columns
        if block.stop > columns or block.row >= self.rows:
            raise ValueError(
                f"{self.label}: {self._named(block.row, block.index)} is outside of {self.rows} rows and "
                f"{columns} columns: call ensure_columns first"
            )
        item, dtype = self._form(name)
        array = self.array(name)
        if array is not None:
            item = array.item
        found = f"{values.dtype} {list(values.shape)}"
        if str(values.dtype) != dtype or not item_fits(values.shape, (self.chunk, *item)):
            sides = ", ".join("any" if side is None else str(side) for side in (self.chunk, *item))
            raise ValueError(f"{self.label}: a block of {name} is {dtype} [{sides}], found {found}")
        if array is None:
            folder = self.path / "data.zarr" / name
            array = BlockArray.create(
                folder, self.rows, columns, self.chunk, values.shape[1:], dtype, self._lock.confirm
            )
            self._open_arrays[name] = array
            self._names = None
        return array

    def _keeps(self, array: BlockArray, name: str, block: Block, values: NDArray[Any]) -> bool:
        if name in _missed(block) or not array.entry(block.row, block.index)[0]:
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

    def _record_numbers(self, name: str) -> set[int]:
        if name in self._seen:
            return self._seen[name]
        array = self.array(name)
        if array is None:
            return set()
        entries = array.entries(array.columns // self.chunk)
        found = {int(number) for number in np.unique(entries[:, :, 1][entries[:, :, 0] != 0])}
        if self._lock.held:
            self._seen[name] = found
        return found

    def _compare_record(self, name: str, record: dict[str, Any]) -> None:
        mine = int(record_id(record), 16)
        for number in self._record_numbers(name) - {mine}:
            other = self._shelf.load(number)
            changed = ["its record is lost"] if other is None else differences(other, record)
            raise RecordMismatchError(
                f"{self.label}: {name} has blocks of another environment ({'; '.join(changed)}). Its missing "
                "blocks would be computed differently: go on in that environment, or mix them by reuse: compatible "
                "under another run id"
            )

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
