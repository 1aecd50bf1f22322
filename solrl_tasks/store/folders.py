"""Sealed folders: files under one manifest that holds their digests."""

import hashlib
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from solrl_tasks.store import atomic
from solrl_tasks.store.errors import DamagedError, MissingObjectError
from solrl_tasks.store.keys import digest
from solrl_tasks.store.keys import key as key_of
from solrl_tasks.store.refs import Kind, Ref
from solrl_tasks.store.root import Store, check_name

logger = logging.getLogger(__name__)
MANIFEST: Final = "manifest.json"


@dataclass(frozen=True)
class SealedFolder:
    """A folder whose every file was verified when it was found.

    ``files`` are paths by name; ``content`` is JSON. The reference's digest covers spec, content and files.
    ``making`` is JSON that tells of this making of them, such as its cost: verified, but no part of the
    reference's digest, so that the same made again is the same.
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
    if find_folder(store, kind, spec) is None:
        with atomic.publish_folder(store.folder(kind) / key) as temporary:
            sums = {}
            for name, data in files.items():
                (temporary / check_name(name, "file")).write_bytes(data)
                sums[name] = hashlib.sha256(data).hexdigest()
            manifest = {"spec": spec, "content": content, "files": sums, "making": making or {}}
            atomic.write_sealed(temporary / MANIFEST, manifest)
    return _verified(store, kind, key).ref


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
            aside = store.move_aside(store.folder(kind) / key, str(error))
            logger.warning("%s; moved to %s, and it is computed again", error, aside)
            return None


def load_folder(store: Store, kind: Kind, which: Ref | str) -> SealedFolder:
    """What a reference or key names, every file verified.

    Raises:
        MissingObjectError: it is not there.
        DamagedError: it does not match its own digests, or is not what the reference was made for.
    """
    key = which if isinstance(which, str) else which.key
    found = _verified(store, kind, key)
    if isinstance(which, Ref) and which.digest != found.ref.digest:
        why = f"it holds {found.ref.digest[:12]}… where the reference expects {which.digest[:12]}…"
        raise DamagedError(store.path(found.ref), why, "the run that made the reference must redo its iteration")
    return found


def _verified(store: Store, kind: Kind, key: str) -> SealedFolder:
    folder = store.folder(kind) / check_name(key, "key")
    store.require(folder, f"{kind}/{key}")
    manifest = _read_manifest(folder / MANIFEST, key)
    files = {name: folder / name for name in manifest["files"]}
    for name, path in files.items():
        try:
            with path.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise DamagedError(path, f"the manifest names it, but it cannot be read ({error.strerror})") from error
        if found != manifest["files"][name]:
            raise DamagedError(path, "its content does not match the sha256 in the manifest")
    making = manifest.pop("making")
    ref = Ref(kind=kind, key=key, digest=digest(manifest), path=store.relative(folder))
    return SealedFolder(ref, manifest["spec"], manifest["content"], files, making)


def _read_manifest(path: Path, key: str) -> dict[str, Any]:
    try:
        manifest = atomic.read_sealed(path)
    except FileNotFoundError as error:
        raise DamagedError(path.parent, f"it has no {MANIFEST}") from error
    if not isinstance(manifest, dict) or set(manifest) != {"spec", "content", "files", "making"}:
        raise DamagedError(path, "it is no manifest")
    if key_of(manifest["spec"]) != key:
        raise DamagedError(path, "it belongs to another key")
    return manifest
