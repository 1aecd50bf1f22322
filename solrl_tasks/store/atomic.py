"""Files and folders that are either whole or not there."""

import hashlib
import itertools
import json
import os
import re
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from solrl_tasks.store.errors import DamagedError
from solrl_tasks.store.keys import canonical_json, digest

_TEMPORARY: Final = re.compile(r"\..+\.(?P<host>[0-9a-f]{8})-(?P<pid>\d+)-(?P<start>\d+)-\d+\.tmp")
_FOREIGN_AGE_SECONDS: Final = 7 * 24 * 3600.0
_counter = itertools.count()


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file so that a reader, or a crash at any moment, sees the old content or the new, whole.

    The folder is made. The data is on the disk before the name points to it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(path)
    try:
        with temporary.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def write_text(path: Path, text: str) -> None:
    """``write_bytes`` of UTF-8 text."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: Any) -> None:
    """Write plain JSON, for files that others read; see ``write_sealed`` for our own."""
    canonical_json(value)
    write_text(path, json.dumps(value, indent=1, sort_keys=True) + "\n")


def holds_json(path: Path, value: Any) -> bool:
    """Whether a file is there and holds exactly this JSON."""
    try:
        return bool(canonical_json(json.loads(path.read_bytes())) == canonical_json(value))
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError, ValueError):
        return False


def write_sealed(path: Path, content: Any) -> str:
    """Write JSON together with its digest, and return the digest (64 hex digits).

    Raises:
        ValueError: the content is not JSON.
    """
    seal = digest(content)
    write_text(path, json.dumps({"sha256": seal, "content": content}, indent=1, sort_keys=True) + "\n")
    return seal


def read_sealed(path: Path) -> Any:
    """The content of a file from ``write_sealed``, verified.

    Raises:
        FileNotFoundError: there is no such file.
        DamagedError: it is torn, changed, or not such a file.
    """
    try:
        outer = json.loads(path.read_bytes().decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise DamagedError(path, f"it is not JSON ({error})") from error
    except (IsADirectoryError, NotADirectoryError) as error:
        raise DamagedError(path, "it is a folder where a file is expected") from error
    if not isinstance(outer, dict) or set(outer) != {"sha256", "content"}:
        raise DamagedError(path, "it does not hold a sha256 and a content")
    try:
        found = digest(outer["content"])
    except ValueError as error:
        raise DamagedError(path, str(error)) from error
    if found != outer["sha256"]:
        raise DamagedError(path, "its content does not match its sha256")
    return outer["content"]


@contextmanager
def publish_folder(final: Path) -> Iterator[Path]:
    """A temporary folder to fill; on leaving it is brought to the disk and renamed to ``final``.

    If ``final`` is there already the filled folder is dropped: the names of the store follow from what is
    to be computed, and the first to publish wins. On an exception nothing is published.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(final)
    temporary.mkdir()
    try:
        yield temporary
        _sync_tree(temporary)
        try:
            temporary.rename(final)
        except OSError:
            if not final.is_dir():
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    sync_folder(final.parent)


def sync_file(path: Path) -> None:
    """Bring a file's data to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_folder(path: Path) -> None:
    """Bring a folder's names to the disk."""
    sync_file(path)


def sweep(folder: Path, recursive: bool = False) -> list[Path]:
    """Remove what writers that died left in a folder, and return what was removed.

    A temporary name tells its writer: what belongs to a living process stays. What was written on another
    host (or in another container) cannot be judged and stays until it is a week old.
    """
    removed = []
    for entry in sorted(folder.rglob(".*.tmp") if recursive else folder.glob(".*.tmp")):
        if _is_dead(entry):
            if entry.is_dir():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink(missing_ok=True)
            removed.append(entry)
    return removed


def _temporary(path: Path) -> Path:
    writer = f"{_host()}-{os.getpid()}-{_start(os.getpid())}-{next(_counter)}"
    return path.with_name(f".{path.name}.{writer}.tmp")


def _is_dead(entry: Path) -> bool:
    match = _TEMPORARY.fullmatch(entry.name)
    if match is None:
        return False
    if match["host"] != _host():
        try:
            return time.time() - entry.stat().st_mtime > _FOREIGN_AGE_SECONDS
        except FileNotFoundError:
            return False
    return _start(int(match["pid"])) != int(match["start"])


def _host() -> str:
    # Process numbers mean something within one host and one process namespace only.
    try:
        namespace = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        namespace = ""
    return hashlib.sha256(f"{socket.gethostname()} {namespace}".encode()).hexdigest()[:8]


def _start(pid: int) -> int:
    """When a process began, in ticks since boot, to tell apart a number used again; 0 if there is none.

    Where there is no ``/proc``, every living process has 1.
    """
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        pass
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return 0
    except PermissionError:
        pass
    return 1


def _sync_tree(folder: Path) -> None:
    for parent, _, files in os.walk(folder, topdown=False):
        for name in files:
            sync_file(Path(parent) / name)
        sync_folder(Path(parent))
