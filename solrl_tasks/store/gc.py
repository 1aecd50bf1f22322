"""Garbage: what no run and no study refers to."""

from collections.abc import Sequence
from dataclasses import dataclass

from solrl_tasks.store.root import Store


@dataclass(frozen=True)
class Garbage:
    """Something that may go: its kind, key (or name), path relative to the store, bytes, and why."""

    kind: str
    key: str
    path: str
    bytes: int
    why: str


def plan_gc(store: Store, min_age_seconds: float = 24 * 3600.0) -> list[Garbage]:
    """What could be removed; nothing is touched."""
    raise NotImplementedError


def collect(store: Store, plan: Sequence[Garbage]) -> int:
    """Remove what a plan lists and is still garbage; returns bytes freed. Refuses while runs are live."""
    raise NotImplementedError
