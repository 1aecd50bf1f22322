"""Sealed folders: files under one manifest that holds their digests."""

import hashlib
import logging
import os
import time
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from solrl_tasks.store import atomic, places
from solrl_tasks.store.errors import DamagedError, MissingObjectError
from solrl_tasks.store.keys import digest
from solrl_tasks.store.keys import key as key_of
from solrl_tasks.store.object_path import ObjectPath, Place
from solrl_tasks.store.refs import Kind, Ref
from solrl_tasks.store.root import Store, check_name

logger = logging.getLogger(__name__)
MANIFEST: Final = "manifest.json"
_AGAIN: Final = "start the run that made it with the same run id: it moves it aside and makes it again"

Looks = tuple[tuple[str, int, int, int, int], ...]
"""Of every file of a folder: name, size, times of change in nanoseconds, inode."""
_REMEMBERED: Final = 16
_SETTLED_NS: Final = 100_000_000
"""A file that was changed within the resolution of its clock can be changed again and look the same."""
_known: "OrderedDict[Path, tuple[Looks, SealedFolder]]" = OrderedDict()
"""What this process has verified: a policy of a large model is read a dozen times an iteration."""


@dataclass(frozen=True)
class SealedFolder:
    """A folder whose every file was verified when it was found.

    ``files`` are paths on this machine by name, of copies where the store is a bucket; ``content`` is JSON. The
    reference's digest covers spec, content and files. ``making`` is JSON that tells of this making of them, such as its
    cost: verified, but no part of the reference's digest, so that the same made again is the same.
    """

    ref: Ref
    spec: dict[str, Any]
    content: dict[str, Any]
    files: dict[str, Path]
    making: dict[str, Any]


def save_folder(
    store: Store,
    kind: Kind,
    spec: dict[str, Any],
    content: dict[str, Any],
    files: Mapping[str, bytes],
    making: dict[str, Any] | None = None,
) -> Ref:
    """Publish files and JSON under the key of a spec, all at once.

    What is whole under that key stays: the reference returned is to what the store holds.
    """
    key = key_of(spec)
    found = find_folder(store, kind, spec)
    if found is not None:
        return found.ref
    folder = store.folder(kind) / key
    with atomic.publish_folder(folder, MANIFEST) as temporary:
        sums = _write_all({temporary / check_name(name, "file"): data for name, data in files.items()})
        manifest = {"spec": spec, "content": content, "files": sums, "making": making or {}}
        atomic.write_sealed(temporary / MANIFEST, manifest)
    # Another process may have been first. What was just written is not read again: it would come from memory.
    return _ref(store, kind, folder, _manifest_of(store, folder, kind, key))


def _write_all(files: Mapping[Path, bytes]) -> dict[str, str]:
    """Write files side by side; returns their sha256 by name."""

    def write(path: Path, data: bytes) -> str:
        path.write_bytes(data)
        return hashlib.sha256(data).hexdigest()

    with ThreadPoolExecutor() as pool:
        sums = pool.map(write, files, files.values())
        return {path.name: found for path, found in zip(files, sums, strict=True)}


def _ref(store: Store, kind: Kind, folder: Place, manifest: dict[str, Any]) -> Ref:
    what = {name: value for name, value in manifest.items() if name != "making"}
    return Ref(kind=kind, key=folder.name, digest=digest(what), path=store.relative(folder))


def find_folder(store: Store, kind: Kind, spec: dict[str, Any]) -> SealedFolder | None:
    """What is stored under the key of a spec, every file verified; None if there is none.

    A damaged folder is moved into quarantine with a warning, and counts as missing.
    """
    key = key_of(spec)
    try:
        return _verified(store, kind, key)
    except MissingObjectError:
        return None
    except DamagedError as error:
        logger.debug("%s", error)
    with store.object_lock(kind, key, f"moving damaged {kind}/{key} aside").hold(wait=True):
        try:
            return _verified(store, kind, key)
        except MissingObjectError:
            return None
        except DamagedError as error:
            aside = store.move_aside(store.folder(kind) / key, str(error), MANIFEST)
            logger.warning("%s; moved to %s, and it is computed again", error, aside)
            return None


def load_folder(store: Store, kind: Kind, which: Ref | str) -> SealedFolder:
    """What a reference or key names, every file verified.

    Raises:
        MissingObjectError: it is not there.
        DamagedError: it does not match its own digests, or is not what the reference was made for.
    """
    key = which if isinstance(which, str) else which.key
    try:
        found = _verified(store, kind, key)
    except DamagedError as error:
        raise DamagedError(error.path, error.why, error.remedy or _AGAIN) from error
    if isinstance(which, Ref) and which.digest != found.ref.digest:
        why = f"it holds {found.ref.digest[:12]}… where the reference expects {which.digest[:12]}…"
        raise DamagedError(store.path(found.ref), why, "the run that made the reference must redo its iteration")
    return found


def _verified(store: Store, kind: Kind, key: str) -> SealedFolder:
    """The folder, hashed anew unless this process did so and no file of it has been touched since."""
    folder = store.folder(kind) / check_name(key, "key")
    if isinstance(folder, ObjectPath):
        return _hashed_objects(store, folder, kind, key)
    looks = _looks(folder)
    if looks is None:
        return _hashed(store, folder, kind, key)
    remembered = _known.get(folder)
    if remembered is not None and remembered[0] == looks:
        return _own(remembered[1])
    sealed = _hashed(store, folder, kind, key)
    if max(max(changed) for _, _, *changed, _ in looks) + _SETTLED_NS < time.time_ns():
        _known[folder] = (looks, _own(sealed))
        while len(_known) > _REMEMBERED:
            _known.popitem(last=False)
    return sealed


def _hashed_objects(store: Store, folder: ObjectPath, kind: Kind, key: str) -> SealedFolder:
    try:
        return _hashed(store, folder, kind, key)
    except (DamagedError, MissingObjectError):
        # Somebody else may have made it anew: neither is told from what is remembered.
        if not places.ask_anew_below(folder):
            raise
    try:
        return _hashed(store, folder, kind, key)
    except (DamagedError, MissingObjectError):
        places.ask_anew_below(folder)
        raise


def _own(sealed: SealedFolder) -> SealedFolder:
    """A copy, so that what its reader does with it reaches no other."""
    spec, content, making = (deepcopy(tree) for tree in (sealed.spec, sealed.content, sealed.making))
    return SealedFolder(sealed.ref, spec, content, dict(sealed.files), making)


def _looks(folder: Path) -> Looks | None:
    try:
        with os.scandir(folder) as entries:
            found = [(entry.name, entry.stat()) for entry in entries]
    except OSError:
        return None
    return tuple(sorted((n, s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino) for n, s in found)) or None


def _hashed(store: Store, folder: Place, kind: Kind, key: str) -> SealedFolder:
    if not isinstance(folder, ObjectPath):
        store.require(folder, f"{kind}/{key}")
    manifest = _manifest_of(store, folder, kind, key)
    files = places.local_files(folder, list(manifest["files"]), store.cache)
    for name, expected in manifest["files"].items():
        if isinstance(folder, ObjectPath) and name in files and _sha256(files[name]) != expected:
            # The copy may be at fault, and not the object.
            files[name].unlink()
            files |= places.local_files(folder, [name], store.cache)
        _verify(folder / name, files.get(name), expected)
    ref = _ref(store, kind, folder, manifest)
    return SealedFolder(ref, manifest["spec"], manifest["content"], files, manifest["making"])


def _manifest_of(store: Store, folder: Place, kind: Kind, key: str) -> dict[str, Any]:
    try:
        return _read_manifest(folder / MANIFEST, key)
    except FileNotFoundError as error:
        if isinstance(folder, ObjectPath):
            # Without its manifest it is one that nobody has finished, and not there.
            raise store.missing(folder / MANIFEST, f"{kind}/{key}") from error
        raise DamagedError(folder, f"it has no {MANIFEST}") from error


def _verify(path: Place, file: Path | None, expected: str) -> None:
    if file is None:
        raise DamagedError(path, "the manifest names it, but it is not there")
    try:
        found = _sha256(file)
    except OSError as error:
        raise DamagedError(path, f"the manifest names it, but it cannot be read ({error.strerror})") from error
    if found != expected:
        raise DamagedError(path, "its content does not match the sha256 in the manifest")


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _read_manifest(path: Place, key: str) -> dict[str, Any]:
    manifest = atomic.read_sealed(path, once=True)
    if not isinstance(manifest, dict) or set(manifest) != {"spec", "content", "files", "making"}:
        raise DamagedError(path, "it is no manifest")
    if key_of(manifest["spec"]) != key:
        raise DamagedError(path, "it belongs to another key")
    return manifest
