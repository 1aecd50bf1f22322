"""Selections: which candidates of a pool were kept, and why others were not."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solrl_tasks.store.refs import Ref
from solrl_tasks.store.root import Store


@dataclass(frozen=True)
class Selection:
    """Kept candidate indices [P, K] (-1 in rows left out), and notes such as the reasons of left-out rows."""

    ref: Ref
    spec: dict[str, Any]
    indices: NDArray[np.int64]
    notes: dict[str, Any]


def save_selection(
    store: Store, spec: dict[str, Any], indices: NDArray[np.int64], notes: dict[str, Any]
) -> Ref:
    """Store a selection. Its digest covers spec, indices and notes."""
    raise NotImplementedError


def find_selection(store: Store, spec: dict[str, Any]) -> Selection | None:
    """The stored selection of a spec, verified; a damaged one is moved aside and counts as missing."""
    raise NotImplementedError


def load_selection(store: Store, which: Ref | str) -> Selection:
    """A selection by reference or key, verified."""
    raise NotImplementedError
