"""Evaluations: held-out results and their images."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from solrl_tasks.store.refs import Ref
from solrl_tasks.store.root import Store


class Evaluation:
    """A verified evaluation in the store."""

    ref: Ref
    spec: dict[str, Any]
    content: dict[str, Any]

    @property
    def images(self) -> dict[str, Path]:
        """Image files by name."""
        raise NotImplementedError


def save_evaluation(
    store: Store, spec: dict[str, Any], content: dict[str, Any], images: Mapping[str, bytes]
) -> Ref:
    """Store results (JSON) and encoded image files by name. The digest covers all of it."""
    raise NotImplementedError


def find_evaluation(store: Store, spec: dict[str, Any]) -> Evaluation | None:
    """The stored evaluation of a spec, verified; a damaged one is moved aside and counts as missing."""
    raise NotImplementedError


def load_evaluation(store: Store, which: Ref | str) -> Evaluation:
    """An evaluation by reference or key, verified."""
    raise NotImplementedError
