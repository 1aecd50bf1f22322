"""``spec.json``: what a folder of blocks is, sealed, and the Zarr groups that tell other readers the same."""

import logging
from typing import Any, Final

from solrl_tasks.store import atomic, places
from solrl_tasks.store.array_names import REWARDS
from solrl_tasks.store.errors import DamagedError, StoreError
from solrl_tasks.store.keys import key as key_of
from solrl_tasks.store.lock import Lock
from solrl_tasks.store.object_path import ObjectPath, Place
from solrl_tasks.store.records import differences
from solrl_tasks.store.refs import Kind
from solrl_tasks.store.root import Store
from solrl_tasks.store.zarr_array import group_metadata

logger = logging.getLogger(__name__)

SPEC: Final = "spec.json"
DATA: Final = "data.zarr"
_NAMED: Final = 5  # differences that an error names


def read_spec(path: Place, key: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Spec and shape of the folder of a key, verified.

    Raises:
        FileNotFoundError: there is none.
        DamagedError: it cannot be read, or is of another key.
    """
    stored = atomic.read_sealed(path / SPEC, once=True)
    if not _is_spec(stored):
        raise DamagedError(path / SPEC, "it holds no spec and shape")
    # So that a copy under another name, or a path that leads elsewhere, is not taken for what it is a copy of.
    if key_of(stored["spec"]) != key:
        raise DamagedError(path, "it belongs to another key")
    return stored["spec"], stored["shape"]


def _is_spec(stored: Any) -> bool:
    return isinstance(stored, dict) and set(stored) == {"spec", "shape"}


class SpecFile:
    """The spec of one folder, to be published with it or compared with what is there.

    Args:
        path: the folder; its name is ``key(spec)``.
        spec, shape: JSON; the shape must follow from the spec.
    """

    def __init__(self, store: Store, kind: Kind, path: Place, spec: dict[str, Any], shape: dict[str, Any]) -> None:
        self._store = store
        self._kind = kind
        self._path = path
        self._spec = spec
        self._shape = shape

    def publish_or_check(self, lock: Lock) -> None:
        """Make the folder if it is not there; one whose spec is damaged is moved aside, under the lock, and made anew.

        Raises:
            StoreError: the folder has the same spec with another shape.
        """
        stored, why = self._look()
        if why:
            with lock.hold(wait=True):
                # Somebody else may have made it anew meanwhile: that is never told from what is remembered.
                places.ask_anew_below(self._path)
                stored, why = self._look()
                if why and (aside := self._store.move_aside(self._path, why, SPEC)):
                    logger.warning("%s; moved to %s, and everything in it is computed again", why, aside)
        if stored is None:
            self._publish()
            stored = atomic.read_sealed(self._path / SPEC, once=True)
        changed = differences(stored["shape"], self._shape)
        if changed:
            raise StoreError(
                f"{self._kind}/{self._path.name} was made with another shape ({'; '.join(changed[:_NAMED])}): what "
                "determines the shape must be part of the spec"
            )
        self._mend_groups()

    def _look(self) -> tuple[dict[str, Any] | None, str]:
        """What is stored, None if there is nothing to go by; and why it is damaged, if it is."""
        try:
            stored = atomic.read_sealed(self._path / SPEC, once=True)
        except FileNotFoundError:
            if isinstance(self._path, ObjectPath):
                # The rest of one whose removal was killed, from the spec on: what it holds is still true.
                return None, ""
            return None, f"{self._path} is damaged: it has no {SPEC}" if self._path.exists() else ""
        except DamagedError as error:
            return None, str(error)
        fits = _is_spec(stored) and key_of(stored["spec"]) == self._path.name
        return (stored, "") if fits else (None, f"{self._path} is damaged: its {SPEC} belongs to another key")

    def _publish(self) -> None:
        with atomic.publish_folder(self._path, SPEC) as temporary:
            if isinstance(self._path, ObjectPath):
                for path, content in self._groups(temporary).items():
                    atomic.write_json(path, content)
            atomic.write_sealed(temporary / SPEC, {"spec": self._spec, "shape": self._shape})

    def _groups(self, folder: Place) -> dict[Place, dict[str, Any]]:
        data = folder / DATA
        about = {"kind": self._kind, "key": self._path.name, "spec": self._spec}
        return {data / "zarr.json": group_metadata(about), data / REWARDS / "zarr.json": group_metadata({})}

    def _mend_groups(self) -> None:
        # The groups hold nothing that the spec does not say. In a bucket they are written before it.
        if isinstance(self._path, ObjectPath):
            return
        for path, content in self._groups(self._path).items():
            if not atomic.holds_json(path, content):
                atomic.write_json(path, content)
