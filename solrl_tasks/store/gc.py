"""Garbage: what no run and no study refers to."""

import json
import logging
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final

from solrl_tasks.store import atomic, places
from solrl_tasks.store.errors import DamagedError, LockedError, StoreError
from solrl_tasks.store.folders import MANIFEST
from solrl_tasks.store.lock import describe
from solrl_tasks.store.object_path import ObjectPath, Place
from solrl_tasks.store.refs import KINDS
from solrl_tasks.store.root import Store
from solrl_tasks.store.runs import list_runs
from solrl_tasks.store.spec_file import SPEC
from solrl_tasks.store.trims import MARK, Trim, read_mark

logger = logging.getLogger(__name__)
_SUMMED: Final = "remove it: the summary.json beside it names what the iteration keeps"
_BEGUN: Final = "put it back from a copy, or start the run again, which moves it aside and notes it anew"
_DAY: Final = 24 * 3600.0
_KEY: Final = re.compile(r"[0-9a-f]{24}")
_TRASH: Final = ".trash"
"""Where earlier versions moved what they were about to delete; a kill left it there."""


@dataclass(frozen=True)
class Garbage:
    """Something that may go.

    Attributes:
        key: or name.
        path: relative to the store.
        why: it may go, in words.
        age: seconds since it was changed, where that was looked at.
    """

    kind: str
    key: str
    path: str
    bytes: int
    why: str
    age: float = 0.0


def plan_gc(store: Store, min_age_seconds: float = _DAY) -> list[Garbage]:
    """What could be removed; nothing is touched.

    Objects that runs or studies refer to stay, and so does whatever was changed in the last
    ``min_age_seconds``. Damaged things that were moved aside are listed as well. What has no key for a name was put
    there by somebody else, and is left alone.

    Raises:
        DamagedError: a run's or study's references cannot be read, so that nobody knows what is in use.
    """
    used = used_objects(store)
    now = places.clock_of(store.root)
    unused = (
        (kind, path, "no run or study refers to it")
        for kind in KINDS
        for path in places.matching(store.folder(kind), "[0-9a-f]*")
        if _KEY.fullmatch(path.name) and (kind, path.name) not in used
    )
    aside = (("quarantine", path, "damaged, and moved aside") for path in places.matching(store.quarantine, "*"))
    found = []
    for kind, path, why in chain(unused, aside):
        age = now - places.changed_at(path)
        if age >= min_age_seconds:
            found.append(Garbage(kind, path.name, store.relative(path), places.bytes_below(path), why, age))
    return found


def collect(store: Store, plan: Sequence[Garbage]) -> int:
    """Remove what a plan lists, unless something refers to it by now, and return the bytes freed.

    Raises:
        LockedError: a run is live, or a pool is being filled; what they use is not all noted yet.
        DamagedError: as ``plan_gc``.
    """
    with alone(store, "garbage collection"):
        return remove_unused(store, plan)


@contextmanager
def alone(store: Store, purpose: str) -> Iterator[None]:
    """Have the store alone for the length of a context.

    Raises:
        LockedError: a run is live, or a pool is being filled; what they use is not all noted yet.
    """
    gate = store.gate(purpose, shared=False)
    try:
        gate.acquire()
    except LockedError as error:
        raise LockedError(
            f"the store {store.root} is in use ({_users(store)}); {purpose} is for when that has ended: try again then"
        ) from error
    try:
        yield
    finally:
        gate.release()


def _users(store: Store) -> str:
    """Who has a store that cannot be had alone, in words."""
    holder = store.held_alone_by()
    if holder is not None:
        return describe(holder) if holder else "another process has it alone"
    live = ", ".join(run.run_id for run in list_runs(store) if run.status == "running")
    return f"live runs: {live}" if live else "a pool is being filled"


def remove_unused(store: Store, plan: Sequence[Garbage]) -> int:
    """Remove what a plan lists, unless something refers to it by now, and return the bytes freed.

    The caller has the store ``alone``.
    """
    store.sweep()
    if not isinstance(store.root, ObjectPath):
        shutil.rmtree(store.root / _TRASH, ignore_errors=True)
    used = used_objects(store)
    freed = 0
    for item in plan:
        path = store.root / item.path
        if not _may_go(item):
            raise StoreError(f"{item.path} is nothing that the garbage collection may remove")
        if (item.kind, item.key) in used or not path.exists():
            continue
        _delete(path)
        freed += item.bytes
        logger.info("removed %s (%d bytes): %s", item.path, item.bytes, item.why)
    return freed


def _may_go(item: Garbage) -> bool:
    """Whether it names an object by its key, or something that lies directly in quarantine."""
    if item.kind in KINDS:
        named = bool(_KEY.fullmatch(item.key))
    else:
        named = item.kind == "quarantine" and "/" not in item.key and item.key.strip(".") != ""
    return named and item.path == f"{item.kind}/{item.key}"


def _delete(path: Place) -> None:
    if isinstance(path, ObjectPath):
        first = SPEC if path.parent.name in ("pools", "samples") else MANIFEST
        places.remove(path, first, last="records")
        return
    # Renamed first, so that a kill while deleting leaves no half object under its name; the next to open the store
    # sweeps the rest.
    going = atomic.temporary_name(path)
    path.rename(going)
    if going.is_dir() and not going.is_symlink():
        shutil.rmtree(going)
    else:
        going.unlink()


def used_objects(store: Store, trims: Mapping[str, Trim] | None = None) -> set[tuple[str, str]]:
    """Kind and key of all that runs and studies refer to and have not let go. As ``holders``."""
    return set(holders(store, trims))


def holders(store: Store, trims: Mapping[str, Trim] | None = None) -> dict[tuple[str, str], set[str]]:
    """Kind and key of all that runs and studies refer to and have not let go, and who does.

    Args:
        trims: marks by run id, in the place of those that are stored.

    Raises:
        DamagedError: references, or the mark of a trimmed run, cannot be read.
    """
    marks = {path.parent.name: read_mark(path) for path in places.matching(store.runs, f"*/{MARK}")} | dict(trims or {})
    found: dict[tuple[str, str], set[str]] = {}
    for path, noted in _noted(store):
        run, step = path.parent.parent.parent.name, path.parent.name
        for key in _held_by(noted, marks.get(run, Trim()), int(step) if step.isdigit() else -1):
            found.setdefault(key, set()).add(run)
    for path in places.matching(store.studies, "**/*.json"):
        for key in _refs_in(_read_study(path)):
            found.setdefault(key, set()).add(store.relative(path))
    return found


def _noted(store: Store) -> Iterator[tuple[Place, Any]]:
    """Places and contents of the references of all iterations: of one whose own file is lost, those of its summary."""
    own, summed = (
        {path.parent: path for path in places.matching(store.runs, f"*/iterations/*/{name}")}
        for name in ("refs.json", "summary.json")
    )
    for path in own.values():
        try:
            yield path, atomic.read_sealed(path)
        except DamagedError as error:
            raise DamagedError(path, error.why, _SUMMED if path.parent in summed else _BEGUN) from error
    for folder in sorted(set(summed) - set(own)):
        summary = atomic.read_sealed(summed[folder])
        yield summed[folder], summary.get("refs", {}) if isinstance(summary, dict) else summary


def _held_by(noted: Any, trim: Trim, step: int) -> Iterator[tuple[str, str]]:
    named = noted if isinstance(noted, dict) else {"": noted}
    for name, value in named.items():
        yield from (found for found in _refs_in(value) if trim.holds(step, name, found))


def _read_study(path: Place) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (IsADirectoryError, ValueError, RecursionError) as error:
        raise DamagedError(path, f"it is not JSON ({error})", "remove or mend it by hand") from error


def _refs_in(value: Any) -> Iterator[tuple[str, str]]:
    """Every reference within a JSON tree: a mapping with a known kind and a key."""
    if isinstance(value, dict):
        if value.get("kind") in KINDS and isinstance(value.get("key"), str):
            yield value["kind"], value["key"]
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _refs_in(item)
