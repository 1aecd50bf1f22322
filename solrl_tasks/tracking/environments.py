"""The environments that the pools of a run were computed in."""

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from solrl_tasks.config.words import counted
from solrl_tasks.store.errors import DamagedError, MissingObjectError
from solrl_tasks.store.pool import Pool
from solrl_tasks.store.refs import Ref
from solrl_tasks.store.root import Store
from solrl_tasks.tracking.summary import Summary

logger = logging.getLogger(__name__)
STAGES: Final = ("evaluate_pool", "explore")


@dataclass(frozen=True)
class PoolOrigin:
    """Where the blocks of a pool were computed.

    Attributes:
        key: of the pool.
        records: the environments that are known.
        unknown: why they are not all of them, for people; empty where they are.
    """

    key: str
    records: tuple[dict[str, Any], ...]
    unknown: str = ""


def pool_origins(store: Store, summaries: Iterable[Summary]) -> Iterator[PoolOrigin]:
    """Those of a run's pools, in order of its steps; each pool once.

    Raises:
        StoreError: the store cannot be read at all, such as a bucket that does not answer.
    """
    seen: set[str] = set()
    for ref in (summary.refs.get(stage) for summary in summaries for stage in STAGES):
        if ref is not None and ref.kind == "pools" and ref.key not in seen:
            seen.add(ref.key)
            yield _origin(store, ref)


def first_environment(store: Store, summaries: Iterable[Summary]) -> dict[str, Any]:
    """That of the first block of which one is known; empty where none is. Pools passed over are logged.

    Raises:
        StoreError: the store cannot be read at all.
    """
    for origin in pool_origins(store, summaries):
        if origin.records:
            return origin.records[0]
        logger.warning("where pool %s was computed is not known: %s", origin.key, origin.unknown)
    return {}


def _origin(store: Store, ref: Ref) -> PoolOrigin:
    try:
        records = Pool.load(store, ref).records()
    except (DamagedError, MissingObjectError) as error:
        return PoolOrigin(ref.key, (), str(error))
    known = tuple(record for record in records.values() if record is not None)
    lost = len(records) - len(known)
    if lost:
        return PoolOrigin(ref.key, known, f"{lost} of its {counted(len(records), 'environment record')} cannot be read")
    return PoolOrigin(ref.key, known, "" if known else "none of its blocks can be read")
