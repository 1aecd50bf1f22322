"""Files and folders that are either whole or not there.

In a folder of this machine a file is written under a temporary name and renamed. In a bucket (``ObjectPath``) a single
object is whole by itself, and of several the one named last makes the others believed.
"""

import itertools
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from solrl_tasks.store.errors import DamagedError
from solrl_tasks.store.keys import canonical_json, digest
from solrl_tasks.store.object_path import ObjectPath, Place
from solrl_tasks.store.process import host_id, start_of

_TEMPORARY: Final = re.compile(r"\..+\.(?P<host>[0-9a-f]{8})-(?P<pid>\d+)-(?P<start>\d+)-\d+\.tmp")
_FOREIGN_AGE_SECONDS: Final = 7 * 24 * 3600.0
_counter = itertools.count()


def write_bytes(path: Place, data: bytes) -> None:
    """Write a file so that a reader, or a crash at any moment, sees the old content or the new, whole.

    The folder is made. The data is on the disk before the name points to it.
    """
    if isinstance(path, ObjectPath):
        path.bucket.put(path.key, data)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_name(path)
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        name_place(error, path)
        raise
    sync_folder(path.parent)


def name_place(error: BaseException, path: Place) -> None:
    """Say in an error of the system where it was, if it does not: of a write that finds a disk full it never does."""
    if isinstance(error, OSError) and error.errno is not None and error.filename is None:
        error.filename = str(path)


def write_text(path: Place, text: str) -> None:
    """``write_bytes`` of UTF-8 text."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Place, value: Any) -> None:
    """Write plain JSON, for files that others read; see ``write_sealed`` for our own."""
    canonical_json(value)
    write_text(path, json.dumps(value, indent=1, sort_keys=True) + "\n")


def holds_json(path: Place, value: Any) -> bool:
    """Whether a file is there and holds exactly this JSON."""
    try:
        return bool(canonical_json(json.loads(path.read_bytes())) == canonical_json(value))
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError, ValueError):
        return False


def write_sealed(path: Place, content: Any, once: bool = False) -> str:
    """Write JSON together with its digest, and return the digest (64 hex digits).

    Args:
        once: as of ``read_sealed``.

    Raises:
        ValueError: the content is not JSON.
    """
    seal = digest(content)
    data = _sealed(content, seal)
    if once and isinstance(path, ObjectPath):
        since = path.bucket.known.since
        write_bytes(path, data)
        path.bucket.known.settle(path.key, data, since)
    else:
        write_bytes(path, data)
    return seal


def write_sealed_once(path: Place, content: Any) -> bool:
    """``write_sealed`` where nothing is yet; false if there is another content, which stays.

    In a folder of this machine the caller holds a lock, and what is there is replaced: the kernel gives a lock to
    nobody else before its holder has ended. A lease may have been lost unnoticed.
    """
    if isinstance(path, ObjectPath):
        return _settle_new(path, _sealed(content, digest(content)))
    write_sealed(path, content)
    return True


def _settle_new(path: ObjectPath, data: bytes) -> bool:
    """Write what is written once where nothing is yet; false if there is another content."""
    since = path.bucket.known.since
    written = path.bucket.create(path.key, data) is not None
    if written:
        path.bucket.known.settle(path.key, data, since)
    return written


def _sealed(content: Any, seal: str) -> bytes:
    return (json.dumps({"sha256": seal, "content": content}, indent=1, sort_keys=True) + "\n").encode("utf-8")


def read_sealed(path: Place, once: bool = False) -> Any:
    """The content of a file from ``write_sealed``, verified.

    Args:
        once: it is never written with another content, so that in a bucket what is ``known`` of it counts.

    Raises:
        FileNotFoundError: there is no such file.
        DamagedError: it is torn, changed, or not such a file.
    """
    if once and isinstance(path, ObjectPath):
        return _read_settled(path)
    try:
        data = path.read_bytes()
    except (IsADirectoryError, NotADirectoryError) as error:
        raise DamagedError(path, "it is a folder where a file is expected") from error
    return unseal(data, path)


def _read_settled(path: ObjectPath) -> Any:
    known = path.bucket.known
    data, since = known.settled(path.key), known.since
    if data is not None:
        return unseal(data, path)
    data = path.read_bytes()
    content = unseal(data, path)
    known.settle(path.key, data, since)
    return content


def unseal(data: bytes, path: Place) -> Any:
    """The content of what ``write_sealed`` wrote at a path, verified.

    Raises:
        DamagedError: it is torn, changed, or not such a file.
    """
    try:
        outer = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise DamagedError(path, f"it is not JSON ({error})") from error
    if not isinstance(outer, dict) or set(outer) != {"sha256", "content"}:
        raise DamagedError(path, "it does not hold a sha256 and a content")
    try:
        found = digest(outer["content"])
    except ValueError as error:
        raise DamagedError(path, str(error)) from error
    if found != outer["sha256"]:
        raise DamagedError(path, "its content does not match its sha256")
    return outer["content"]


def remove_file(path: Place) -> None:
    """Remove a file; one that is not there is no fault."""
    if isinstance(path, ObjectPath):
        path.unlink()
    else:
        path.unlink(missing_ok=True)


@contextmanager
def publish_folder(final: Place, last: str = "") -> Iterator[Path]:
    """A temporary folder to fill; on leaving it is brought to the disk and renamed to ``final``.

    If ``final`` is there already the filled folder is dropped: the names of the store follow from what is
    to be computed, and the first to publish wins. On an exception nothing is published.

    Args:
        last: the file of it that is written last in a bucket; see ``is_published``.
    """
    if isinstance(final, ObjectPath):
        with tempfile.TemporaryDirectory(prefix="solrl-") as name:
            yield Path(name)
            _upload(Path(name), final, last)
        return
    final.parent.mkdir(parents=True, exist_ok=True)
    temporary = temporary_name(final)
    temporary.mkdir()
    try:
        yield temporary
        _sync_tree(temporary)
        try:
            temporary.rename(final)
        except OSError:
            if not final.is_dir():
                raise
    except OSError as error:
        name_place(error, final)
        raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    sync_folder(final.parent)


def is_published(folder: Place, last: str) -> bool:
    """Whether a folder of ``publish_folder`` is there: in a bucket, whether its last file is."""
    return (folder / last).is_file() if isinstance(folder, ObjectPath) else folder.is_dir()


def _upload(source: Path, final: ObjectPath, last: str) -> None:
    bucket = final.bucket
    # The order of names, so that a kill at a given write leaves the same.
    files = sorted(path for path in source.rglob("*") if path.is_file() and path != source / last)
    for path in files:
        key, data = f"{final.key}/{path.relative_to(source).as_posix()}", path.read_bytes()
        while bucket.create(key, data) is None:
            # Of a writer that was killed before its last file, or of one that was quicker and whose files stay.
            if is_published(final, last):
                return
            there = bucket.head(key)
            if there is not None and bucket.replace(key, data, there.etag) is not None:
                break
    _settle_new(final / last, (source / last).read_bytes())


def sync_file(path: Place) -> None:
    """Bring a file's data to the disk. In a bucket what was written is kept already."""
    if isinstance(path, ObjectPath):
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_folder(path: Path) -> None:
    """Bring a folder's names to the disk."""
    sync_file(path)


def sweep(folder: Place, recursive: bool = False) -> list[Path]:
    """Remove what writers that died left in a folder, and return what was removed; in a bucket they leave no such.

    A temporary name tells its writer: what belongs to a living process stays. What was written on another
    host (or in another container) cannot be judged and stays until it is a week old.
    """
    if isinstance(folder, ObjectPath):
        return []
    removed = []
    for entry in sorted(folder.rglob(".*.tmp") if recursive else folder.glob(".*.tmp")):
        if _is_dead(entry):
            if entry.is_dir():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink(missing_ok=True)
            removed.append(entry)
    return removed


def temporary_name(path: Path) -> Path:
    """A name beside a path that tells this process; what is there when the process has ended is swept."""
    writer = f"{host_id()}-{os.getpid()}-{start_of(os.getpid())}-{next(_counter)}"
    return path.with_name(f".{path.name}.{writer}.tmp")


def _is_dead(entry: Path) -> bool:
    match = _TEMPORARY.fullmatch(entry.name)
    if match is None:
        return False
    if match["host"] != host_id():
        try:
            return time.time() - entry.stat().st_mtime > _FOREIGN_AGE_SECONDS
        except FileNotFoundError:
            return False
    return start_of(int(match["pid"])) != int(match["start"])


def _sync_tree(folder: Path) -> None:
    for parent, _, files in os.walk(folder, topdown=False):
        for name in files:
            sync_file(Path(parent) / name)
        sync_folder(Path(parent))
