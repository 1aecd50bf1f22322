"""Where a folder of this machine and a bucket differ, beyond writing: locks, sizes, ages, moving, copies to read."""

import hashlib
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from solrl_tasks.store import atomic
from solrl_tasks.store.bucket import SCHEME
from solrl_tasks.store.bucket_objects import Entry
from solrl_tasks.store.errors import StoreError
from solrl_tasks.store.leases import Lease, lease_holder
from solrl_tasks.store.lock import Lock
from solrl_tasks.store.locks import FileLock, holder
from solrl_tasks.store.object_path import ObjectPath, Place
from solrl_tasks.store.side_by_side import side_by_side
from solrl_tasks.store.tenancy import tenancy_of

COMMITTED: Final = "summary.json"
"""Once it is there, nothing in its folder changes any more."""
_CACHE_BYTES: Final = 8 * 1024**3
_IN_USE_SECONDS: Final = 3600.0


def place_of(root: str | Path | ObjectPath) -> Place:
    """The place that a setting names: a folder, or ``s3://bucket/prefix``.

    Raises:
        StoreError: it is another kind of URL, or names no bucket.
    """
    if isinstance(root, ObjectPath):
        return root
    # A URL that went through ``Path`` has lost a slash.
    text = (
        str(root).replace("s3:/", SCHEME, 1) if str(root).startswith("s3:/") and "://" not in str(root) else str(root)
    )
    if text.startswith(SCHEME):
        return ObjectPath.of(text)
    if "://" in text:
        raise StoreError(f"the store {text!r}: a folder or s3://bucket/prefix is wanted")
    return Path(root)


def cache_of(root: Place) -> Path:
    """Where things lie on this machine that can be had again: below the store, or for a bucket in the home's ``cache``.

    The home is SOLRL_HOME; where it is not set, the user's cache folder has them.
    """
    if not isinstance(root, ObjectPath):
        return root / "cache"
    home, user = os.environ.get("SOLRL_HOME"), os.environ.get("XDG_CACHE_HOME")
    folder = Path(home) / "cache" if home else (Path(user) if user else Path.home() / ".cache") / "solrl"
    return folder.absolute() / "stores" / hashlib.sha256(str(root).encode()).hexdigest()[:16]


def lock_at(path: Place, purpose: str, shared: bool = False, shareable: bool = False) -> Lock:
    """The lock at a place. See ``FileLock`` and ``Lease``."""
    if isinstance(path, ObjectPath):
        return Lease(path, purpose, shared, shareable)
    return FileLock(path, purpose, shared)


@contextmanager
def shared(gate: Lock) -> Iterator[None]:
    """Hold a lock together with others for the length of a context; waits for one who has it alone.

    In a bucket all of this process share one lease; see ``Tenancy``.
    """
    with tenancy_of(gate).share(gate) if isinstance(gate, Lease) else gate.hold(wait=True):
        yield


def ask_anew(root: Place) -> None:
    """Believe nothing of a bucket that this process remembers; see ``Known``."""
    if isinstance(root, ObjectPath):
        root.bucket.known.forget()


def read_anew(path: Place) -> None:
    """Read a part of a bucket from its server, and not from what this process remembers of it by tag."""
    if isinstance(path, ObjectPath):
        path.bucket.read_anew(path.key)


def ask_anew_below(path: Place) -> bool:
    """As ``ask_anew`` for a part of the store; whether anything was remembered of it."""
    return isinstance(path, ObjectPath) and path.bucket.known.drop_below(path.key)


def holder_of(path: Place) -> dict[str, Any] | None:
    """Who holds a lock alone now: pid, host, since, purpose; None if free."""
    return lease_holder(path) if isinstance(path, ObjectPath) else holder(path)


def matching(path: Place, pattern: str) -> list[Place]:
    """What lies below and matches, in order. ``**/`` before a pattern of one part: at any depth."""
    if pattern.startswith("**/"):
        return sorted(path.rglob(pattern.removeprefix("**/")))
    return sorted(path.glob(pattern))


def bytes_below(path: Place) -> int:
    """Bytes of all files below a folder (or of a file); what vanishes meanwhile counts nothing."""
    if isinstance(path, ObjectPath):
        return sum(entry.size for entry in _all(path))
    total = 0
    for entry in [path, *path.rglob("*")] if path.is_dir() else [path]:
        with suppress(FileNotFoundError):
            total += entry.stat().st_size if entry.is_file() else 0
    return total


def changed_at(path: Place) -> float:
    """Unix time of the last change of anything below; 0 if there is nothing."""
    if isinstance(path, ObjectPath):
        return max((entry.modified for entry in _all(path)), default=0.0)
    latest = 0.0
    for entry in [path, *path.rglob("*")]:
        with suppress(FileNotFoundError):
            latest = max(latest, entry.stat().st_mtime)
    return latest


def clock_of(root: Place) -> float:
    """Unix time by the clock that ``changed_at`` is told by."""
    return root.bucket.now() if isinstance(root, ObjectPath) else time.time()


def move(path: Place, target: Place, last: str) -> bool:
    """Rename something; false if it was gone.

    In a bucket everything is copied, and then removed with ``last`` at the end: what was to be moved is seen again
    after a kill.
    """
    if isinstance(path, ObjectPath) and isinstance(target, ObjectPath):
        return _move_objects(path, target, last)
    if isinstance(path, ObjectPath) or isinstance(target, ObjectPath):
        raise TypeError("a move stays within its store")
    try:
        path.rename(target)
    except FileNotFoundError:
        return False
    return True


def remove(path: ObjectPath, first: str, last: str) -> None:
    """Remove a folder of objects: ``first`` the one that makes others believed, at the end the folder ``last`` in it.

    So that a kill in between leaves something that is not believed, or is still whole for what is left of it.
    """
    path.bucket.delete([f"{path.key}/{first}"])
    entries = _all(path)
    kept = f"{path.key}/{last}/"
    path.bucket.delete([entry.key for entry in entries if not entry.key.startswith(kept)])
    path.bucket.delete([entry.key for entry in entries if entry.key.startswith(kept)])


def remove_below(path: Place) -> None:
    """Remove a folder that nobody reads, in no order; it may be gone already."""
    if isinstance(path, ObjectPath):
        path.bucket.delete([entry.key for entry in path.entries()])
    elif path.exists():
        shutil.rmtree(path)


def count_below(path: Place) -> int:
    """Files below a folder, or objects."""
    if isinstance(path, ObjectPath):
        return len(path.entries())
    return sum(1 for entry in path.rglob("*") if entry.is_file())


def local_files(folder: Place, names: list[str], cache: Path) -> dict[str, Path]:
    """Files of a folder on this machine, by name: themselves, or copies that are kept for the next time.

    Args:
        cache: see ``cache_of``; its ``objects`` hold the copies, the least used of which go when they are many.

    A name whose file is not there is left out.
    """
    if not isinstance(folder, ObjectPath):
        return {name: folder / name for name in names if (folder / name).exists()}
    wanted = {f"{folder.key}/{name}": name for name in names}
    entries = [entry for entry in _listed(folder, list(wanted)) if entry.key in wanted]
    copies = side_by_side(lambda entry: _copy(folder, entry, cache / "objects"), entries)
    _make_room(cache / "objects")
    found = zip(entries, copies, strict=True)
    return {wanted[entry.key]: copy for entry, copy in found if copy is not None}


def local_file(path: Place, cache: Path) -> Path | None:
    """One file on this machine; None if it is not there. See ``local_files``."""
    return local_files(path.parent, [path.name], cache).get(path.name)


def local_folder(folder: Place, cache: Path) -> Path:
    """A folder on this machine: itself, or a copy of its objects, fetched once there is a ``summary.json`` among them.

    Args:
        cache: see ``cache_of``; its ``folders`` hold the copies.
    """
    if not isinstance(folder, ObjectPath):
        return folder
    copy = cache / "folders" / folder.key
    if (copy / COMMITTED).exists():
        return copy
    entries = folder.entries()
    found = folder.bucket.get_many(entries)
    # The one that says that it is all there goes last.
    for key in sorted(found, key=lambda key: (key.endswith(COMMITTED), key)):
        atomic.write_bytes(copy / key.removeprefix(f"{folder.key}/"), found[key])
    return copy


def _listed(folder: ObjectPath, wanted: list[str]) -> list[Entry]:
    bucket = folder.bucket
    listing = bucket.known.listing(folder.key)
    if listing is None or not all(key in listing for key in wanted):
        listing = bucket.listing(folder.key)
        bucket.known.keep(listing)
    return listing.below(folder.key)


def _all(path: ObjectPath) -> list[Entry]:
    own = path.bucket.head(path.key)
    return [*([own] if own else []), *path.entries()]


def _move_objects(path: ObjectPath, target: ObjectPath, last: str) -> bool:
    bucket = path.bucket
    keys = [entry.key for entry in _all(path)]
    moved = side_by_side(lambda key: bucket.copy(key, target.key + key.removeprefix(path.key)), keys)
    final = f"{path.key}/{last}"
    bucket.delete([key for key in keys if key != final])
    bucket.delete([key for key in keys if key == final])
    return any(moved)


def _copy(folder: ObjectPath, entry: Entry, cache: Path) -> Path | None:
    # By tag and size: what is there under that name is that content.
    tag = hashlib.sha256(f"{folder.bucket.url} {entry.key} {entry.etag} {entry.size}".encode()).hexdigest()
    copy = cache / tag[:2] / tag / Path(entry.key).name
    try:
        if copy.stat().st_size == entry.size:
            os.utime(copy)
            return copy
    except FileNotFoundError:
        pass
    try:
        # What this process has just written need not come back.
        known = folder.bucket.bodies.find(entry.key, entry.etag)
        atomic.write_bytes(copy, folder.bucket.get(entry.key).data if known is None else known)
    except FileNotFoundError:
        return None
    return copy


def _make_room(cache: Path) -> None:
    held = []
    for path in cache.glob("*/*"):
        with suppress(OSError):
            files = [entry.stat() for entry in path.iterdir()]
            held.append((max(f.st_mtime for f in files), sum(f.st_size for f in files), path))
    total = sum(size for _, size, _ in held)
    for used, size, path in sorted(held):
        if total <= _CACHE_BYTES or time.time() - used < _IN_USE_SECONDS:
            return
        shutil.rmtree(path, ignore_errors=True)
        total -= size
