"""The root folder of a store, and where everything lies below it."""

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Self

from solrl_tasks.store import atomic
from solrl_tasks.store.errors import MissingObjectError, StoreError
from solrl_tasks.store.locks import FileLock
from solrl_tasks.store.refs import KINDS, Kind, Ref

FORMAT: Final = 1
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def check_name(name: str, what: str) -> str:
    """The name itself, if it can be a folder of the store.

    Args:
        what: how errors call it, such as ``run_id``.

    Raises:
        ValueError: it could escape the store, or needs quoting somewhere.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{what} {name!r} cannot be a folder name: use 1 to 100 letters, digits, dots, dashes and "
            "underscores, beginning with a letter or digit"
        )
    return name


def folder_bytes(path: Path) -> int:
    """Bytes of all files below a folder (or of a file); what vanishes meanwhile counts nothing."""
    total = 0
    for entry in [path, *path.rglob("*")] if path.is_dir() else [path]:
        with suppress(FileNotFoundError):
            total += entry.stat().st_size if entry.is_file() else 0
    return total


class Store:
    """A folder that holds everything that was computed.

    Args:
        root: an existing store. Use ``Store.open`` to make one.

    Raises:
        StoreError: the folder is no store, or one of another format.
    """

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        marker = self.root / "store.json"
        try:
            found = atomic.read_sealed(marker)
        except FileNotFoundError as error:
            raise StoreError(f"{self.root} is not a store: it has no store.json; check the path") from error
        if not isinstance(found, dict) or found.get("format") != FORMAT:
            raise StoreError(f"{marker} names another format ({found!r}); this version reads format {FORMAT}")

    @classmethod
    def open(cls, root: Path, create: bool = True) -> Self:
        """The store at ``root``, made if it is not there; leftovers of dead writers are swept.

        Raises:
            StoreError: the folder holds something else, or there is none and ``create`` is false.
        """
        marker = root / "store.json"
        if create and not marker.exists():
            if root.is_dir() and any(not entry.name.startswith(".") for entry in root.iterdir()):
                if not marker.exists():
                    raise StoreError(f"{root} is not empty and not a store: name an empty or new folder")
            else:
                root.mkdir(parents=True, exist_ok=True)
                atomic.write_sealed(marker, {"format": FORMAT})
        store = cls(root)
        store._sweep()
        return store

    def folder(self, kind: Kind) -> Path:
        """Where objects of a kind lie."""
        return self.root / kind

    @property
    def runs(self) -> Path:
        """Where runs lie, a folder each."""
        return self.root / "runs"

    @property
    def studies(self) -> Path:
        """Where studies lie; what they refer to is kept by the garbage collection."""
        return self.root / "studies"

    @property
    def quarantine(self) -> Path:
        """Where damaged objects are moved; nothing reads them again."""
        return self.root / "quarantine"

    def path(self, ref: Ref) -> Path:
        """The absolute path of what a reference names; it need not exist."""
        return self.root / ref.path

    def relative(self, path: Path) -> str:
        """The posix path of something in the store, relative to its root."""
        return path.relative_to(self.root).as_posix()

    def object_lock(self, kind: Kind, key: str, purpose: str) -> FileLock:
        """The lock of one object; its file outlives the object."""
        return FileLock(self.root / "locks" / f"{kind}-{key}.lock", purpose)

    @contextmanager
    def in_use(self, purpose: str) -> Iterator[None]:
        """Keep the garbage collection out for the length of a context. Runs and pool locks do it too."""
        gate = self.gate(purpose, shared=True)
        with gate.hold(wait=True):
            yield

    def gate(self, purpose: str, shared: bool) -> FileLock:
        """The lock between those who use the store (shared) and the garbage collection (alone)."""
        return FileLock(self.root / "locks" / "store.lock", purpose, shared=shared)

    def move_aside(self, path: Path, why: str) -> Path | None:
        """Rename something damaged into ``quarantine/`` with a note beside it; None if it was gone."""
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")
        name = f"{'-'.join(path.relative_to(self.root).parts)}-{stamp}"
        target = self.quarantine / name
        self.quarantine.mkdir(exist_ok=True)
        try:
            path.rename(target)
        except FileNotFoundError:
            return None
        atomic.write_text(self.quarantine / f"{name}.why.txt", f"{why}\n")
        return target

    def require(self, path: Path, what: str) -> Path:
        """The path itself.

        Raises:
            MissingObjectError: nothing is there.
        """
        if not path.exists():
            where = self.relative(path)
            raise MissingObjectError(f"{what} is not in the store {self.root}: {where} does not exist")
        return path

    def _sweep(self) -> None:
        for name in (".", *KINDS, "quarantine"):
            atomic.sweep(self.root / name)
        for folder in (self.runs, self.studies, self.root / "cache"):
            atomic.sweep(folder, recursive=True)
