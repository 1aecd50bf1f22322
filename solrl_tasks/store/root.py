"""The root of a store, a folder or a place in a bucket, and where everything lies below it."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Self

from solrl_tasks.store import atomic, places
from solrl_tasks.store.errors import DamagedError, MissingObjectError, StoreError, UnusableNameError
from solrl_tasks.store.lock import Lock
from solrl_tasks.store.object_path import ObjectPath, Place
from solrl_tasks.store.refs import KINDS, Kind, Ref

FORMAT: Final = 2
"""Newest format that this version reads: 2 has trimmed runs and packed arrays."""
FIRST_FORMAT: Final = 1
"""A new store has it until something is done that it cannot hold: older versions read it for as long."""
_MARKER_AGAIN: Final = (
    "put it back from a copy. It holds the number of the format alone, so that of another store does, if both were "
    "trimmed or packed, or neither"
)
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def check_name(name: str, what: str) -> str:
    """The name itself, if it can be a folder of the store.

    Args:
        what: how errors call it, such as ``run_id``.

    Raises:
        UnusableNameError: it could escape the store, or needs quoting somewhere.
    """
    if not _NAME.fullmatch(name):
        raise UnusableNameError(
            f"{what} {name!r} cannot be a folder name: use 1 to 100 letters, digits, dots, dashes and "
            "underscores, beginning with a letter or digit"
        )
    return name


class Store:
    """A folder, or a prefix of a bucket, that holds everything that was computed.

    Args:
        root: an existing store, a folder or ``s3://bucket/prefix``. Use ``Store.open`` to make one.

    Of a bucket everything is asked anew that this process remembers.

    Raises:
        StoreError: the folder is no store, or one of a newer format.
    """

    def __init__(self, root: str | Place) -> None:
        self.root: Place = places.place_of(root).absolute()
        self.cache = places.cache_of(self.root)
        places.ask_anew(self.root)
        marker = self.root / "store.json"
        try:
            found = atomic.read_sealed(marker)
        except FileNotFoundError as error:
            why = f"it has lost it: {_MARKER_AGAIN}" if _was_store(self.root) else "check the path"
            raise StoreError(f"{self.root} is not a store: it has no store.json; {why}") from error
        except DamagedError as error:
            raise DamagedError(error.path, error.why, _MARKER_AGAIN) from error
        self.format = _readable_format(found, marker)

    @classmethod
    def open(cls, root: str | Place, create: bool = True) -> Self:
        """The store at ``root``, made if it is not there; leftovers of dead writers are swept.

        A bucket must be there, and keep to conditional writes. What is verified from then on is read from it, whatever
        this process remembers.

        Raises:
            StoreError: the folder holds something else, or there is none and ``create`` is false.
        """
        root = places.place_of(root)
        marker = root / "store.json"
        if create and not marker.exists():
            if _holds_something(root):
                _require_marker(root)
            else:
                _make_folder(root)
                atomic.write_sealed(marker, {"format": FIRST_FORMAT})
        store = cls(root)
        places.read_anew(root)
        if isinstance(root, ObjectPath):
            root.bucket.require_conditions(marker.name)
        store.sweep()
        return store

    @classmethod
    def find(cls, root: str | Place) -> Self | None:
        """The store at ``root`` to read; None where none is yet and one could be made. Makes and sweeps nothing.

        Raises:
            StoreError: something else is there.
        """
        root = places.place_of(root)
        if (root / "store.json").exists():
            return cls(root)
        if isinstance(root, Path):
            in_the_way = [path for path in (root, *root.absolute().parents) if path.is_symlink() or path.exists()]
            if in_the_way and not in_the_way[0].is_dir():
                raise _no_folder(root)
        if _holds_something(root):
            _require_marker(root)
        return None

    def require_format(self, wanted: int) -> None:
        """Raise the store's format to at least ``wanted``, before something is written that older versions misread.

        A version that does not know the format refuses the store from then on.
        """
        if self.format < wanted:
            atomic.write_sealed(self.root / "store.json", {"format": wanted})
            self.format = wanted

    def folder(self, kind: Kind) -> Place:
        """Where objects of a kind lie."""
        return self.root / kind

    @property
    def runs(self) -> Place:
        """Where runs lie, a folder each."""
        return self.root / "runs"

    @property
    def studies(self) -> Place:
        """Where studies lie; what they refer to is kept by the garbage collection."""
        return self.root / "studies"

    @property
    def quarantine(self) -> Place:
        """Where damaged objects are moved; nothing reads them again."""
        return self.root / "quarantine"

    def path(self, ref: Ref) -> Place:
        """The absolute path of what a reference names; it need not exist."""
        return self.root / ref.path

    def relative(self, path: Place) -> str:
        """The posix path of something in the store, relative to its root."""
        return path.relative_to(self.root).as_posix()  # type: ignore[arg-type]

    def local_file(self, path: Place) -> Path | None:
        """A file of the store on this machine, itself or a copy of the object; None if it is not there."""
        return places.local_file(path, self.cache)

    def local_folder(self, folder: Place) -> Path:
        """A folder that is written once, on this machine: itself, or a copy. It may not be there."""
        return places.local_folder(folder, self.cache)

    def object_lock(self, kind: Kind, key: str, purpose: str) -> Lock:
        """The lock of one object; its file outlives the object."""
        return places.lock_at(self.root / "locks" / f"{kind}-{key}.lock", purpose)

    @contextmanager
    def in_use(self, purpose: str) -> Iterator[None]:
        """Keep the garbage collection out for the length of a context. Runs and pool locks do it too."""
        with places.shared(self.gate(purpose, shared=True)):
            yield

    def gate(self, purpose: str, shared: bool) -> Lock:
        """The lock between those who use the store (shared) and the garbage collection (alone)."""
        return places.lock_at(self._gate_path, purpose, shared=shared, shareable=True)

    def held_alone_by(self) -> dict[str, Any] | None:
        """Who has the store alone now (pid, host, since, purpose; empty if unreadable); None if nobody has."""
        return places.holder_of(self._gate_path)

    @property
    def _gate_path(self) -> Place:
        return self.root / "locks" / "store.lock"

    def move_aside(self, path: Place, why: str, last: str = "") -> Place | None:
        """Rename something damaged into ``quarantine/`` with a note beside it; None if it was gone.

        Args:
            last: the file of it that says that it is there; see ``publish_folder``.
        """
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")
        name = f"{self.relative(path).replace('/', '-')}-{stamp}"
        target = self.quarantine / name
        self.quarantine.mkdir(exist_ok=True)
        if not places.move(path, target, last):
            return None
        atomic.write_text(self.quarantine / f"{name}.why.txt", f"{why}\n")
        return target

    def require(self, path: Place, what: str) -> Place:
        """The path itself.

        Raises:
            MissingObjectError: nothing is there.
        """
        if not path.exists():
            raise self.missing(path, what)
        return path

    def missing(self, path: Place, what: str) -> MissingObjectError:
        """The error that says that something is not there."""
        return MissingObjectError(f"{what} is not in the store {self.root}: {self.relative(path)} does not exist")

    def sweep(self) -> None:
        """Remove what dead writers left."""
        for name in (".", *KINDS, "quarantine"):
            atomic.sweep(self.root / name)
        for folder in (self.runs, self.studies, self.root / "cache"):
            atomic.sweep(folder, recursive=True)


def _holds_something(root: Place) -> bool:
    return root.is_dir() and any(not entry.name.startswith(".") for entry in root.iterdir())


def _require_marker(root: Place) -> None:
    # Asked again: another process may have made the store meanwhile.
    if (root / "store.json").exists():
        return
    if _was_store(root):
        raise StoreError(f"{root} has lost its store.json: {_MARKER_AGAIN}")
    raise StoreError(f"{root} is not empty and not a store: name an empty or new folder")


def _was_store(root: Place) -> bool:
    return (root / "runs").is_dir() and (root / "pools").is_dir()


def _make_folder(root: Place) -> None:
    try:
        root.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise _no_folder(root) from error


def _no_folder(root: Place) -> StoreError:
    return StoreError(
        f"{root} cannot be a store: it, or what it is to lie in, is a file or a link to nothing. Remove that, or "
        "name a folder"
    )


def _readable_format(marker: Any, path: Place) -> int:
    """The format that a marker names; anything below ``FORMAT`` is read as it is."""
    found = marker.get("format") if isinstance(marker, dict) else None
    if not isinstance(found, int) or isinstance(found, bool) or found < FIRST_FORMAT:
        raise StoreError(f"{path} names no format ({marker!r}): it was not written by sol-rl; check the path")
    if found > FORMAT:
        raise StoreError(
            f"{path} has format {found}, which a newer sol-rl wrote; this version reads up to {FORMAT}. Upgrade sol-rl "
            "(docs/upgrading.md), or name another store with --home, SOLRL_HOME or SOLRL_STORE; nothing "
            "was changed"
        )
    return found
