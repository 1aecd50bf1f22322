"""The environments that the pools of a run were computed in."""

from collections.abc import Iterable, Iterator
from typing import Any, Final

from solrl_tasks.store.errors import StoreError
from solrl_tasks.store.pool import Pool
from solrl_tasks.store.root import Store
from solrl_tasks.tracking.summary import Summary

STAGES: Final = ("evaluate_pool", "explore")


def environments(store: Store, summaries: Iterable[Summary]) -> Iterator[dict[str, Any]]:
    """The records of blocks of a run's pools, in order of its steps; each pool once.

    Pools that are gone or cannot be read, and records that are lost, are left out.
    """
    seen: set[str] = set()
    for ref in (summary.refs.get(stage) for summary in summaries for stage in STAGES):
        if ref is None or ref.kind != "pools" or ref.key in seen:
            continue
        seen.add(ref.key)
        try:
            records = Pool.load(store, ref).records()
        except StoreError:
            continue
        yield from (record for record in records.values() if record is not None)


def first_environment(store: Store, summaries: Iterable[Summary]) -> dict[str, Any]:
    """That of the first block of which one is known; empty where none is."""
    return next(environments(store, summaries), {})
