"""Selections: which candidates of a pool were kept, and why others were not."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solrl_tasks.store.folders import SealedFolder, find_folder, load_folder, save_folder
from solrl_tasks.store.refs import Ref
from solrl_tasks.store.root import Store


@dataclass(frozen=True)
class Selection:
    """Kept candidate indices [P, K] (-1 in rows left out), and notes such as the reasons of left-out rows."""

    ref: Ref
    spec: dict[str, Any]
    indices: NDArray[np.int64]
    notes: dict[str, Any]


def save_selection(store: Store, spec: dict[str, Any], indices: NDArray[np.int64], notes: dict[str, Any]) -> Ref:
    """Store a selection.

    Args:
        spec: what determines it; the key is ``key(spec)``. It names the pool, so that equal indices of
            different pools have different digests.
        indices: int64 [P, K].
        notes: JSON, such as the reasons of left-out rows.

    Returns:
        A reference to what the store holds under that key; its digest covers spec, indices and notes.
    """
    if indices.ndim != 2:
        raise ValueError(f"indices must be [prompts, kept], found {indices.shape}")
    content = {"indices": [[int(index) for index in row] for row in indices], "notes": notes}
    return save_folder(store, "selections", spec, content, {})


def find_selection(store: Store, spec: dict[str, Any]) -> Selection | None:
    """The stored selection of a spec, verified; a damaged one is moved aside: None."""
    found = find_folder(store, "selections", spec)
    return None if found is None else _selection(found)


def load_selection(store: Store, which: Ref | str) -> Selection:
    """A selection by reference or key, verified.

    Raises:
        MissingObjectError: it is not there.
        DamagedError: it does not match its digest, or is not what the reference was made for.
    """
    return _selection(load_folder(store, "selections", which))


def _selection(folder: SealedFolder) -> Selection:
    rows = folder.content["indices"]
    indices = np.asarray(rows, dtype=np.int64).reshape(len(rows), -1)
    return Selection(folder.ref, folder.spec, indices, folder.content["notes"])
