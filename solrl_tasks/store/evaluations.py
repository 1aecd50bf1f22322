"""Evaluations: held-out results and their images."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from solrl_tasks.store.folders import SealedFolder, find_folder, load_folder, save_folder
from solrl_tasks.store.refs import Ref
from solrl_tasks.store.root import Store


class Evaluation:
    """A verified evaluation in the store; ``content`` is what was measured."""

    def __init__(self, folder: SealedFolder) -> None:
        self._files = folder.files
        self.ref = folder.ref
        self.spec = folder.spec
        self.content = folder.content

    @property
    def images(self) -> dict[str, Path]:
        """Image files by name."""
        return dict(sorted(self._files.items()))


def save_evaluation(store: Store, spec: dict[str, Any], content: dict[str, Any], images: Mapping[str, bytes]) -> Ref:
    """Store results (JSON) and encoded image files by name, such as ``grid.png``, all at once.

    Returns:
        A reference to what the store holds under ``key(spec)``; its digest covers spec, results and images.
    """
    return save_folder(store, "evaluations", spec, content, images)


def find_evaluation(store: Store, spec: dict[str, Any]) -> Evaluation | None:
    """The stored evaluation of a spec, verified; a damaged one is moved aside: None."""
    found = find_folder(store, "evaluations", spec)
    return None if found is None else Evaluation(found)


def load_evaluation(store: Store, which: Ref | str) -> Evaluation:
    """An evaluation by reference or key, verified.

    Raises:
        MissingObjectError: it is not there.
        DamagedError: a file does not match the manifest, or it is not what the reference was made for.
    """
    return Evaluation(load_folder(store, "evaluations", which))
