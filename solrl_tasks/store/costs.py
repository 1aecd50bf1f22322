"""What the blocks of pools cost, as they recorded it."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from solrl_tasks.store import places
from solrl_tasks.store.array_names import reward_array
from solrl_tasks.store.block_folder import BlockFolder
from solrl_tasks.store.errors import DamagedError, MissingObjectError
from solrl_tasks.store.ledger import DIGEST, MICROSECONDS, RECORD, WRITTEN
from solrl_tasks.store.root import Store

Check = Callable[[dict[str, Any]], bool]


@dataclass(frozen=True)
class PoolCost:
    """What some blocks of one pool took.

    Attributes:
        spec: of the pool.
        images: in these blocks, padding included.
        seconds: of a device, for sampling, decoding and scoring them.
    """

    spec: dict[str, Any]
    images: int
    seconds: float


class CostBook:
    """The recorded costs of a store. Pools that are made after the first question are not seen."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def find(self, fits: Check, rewards: Sequence[str], made_here: Check) -> list[PoolCost]:
        """What like blocks took, pool by pool; pools without any are left out.

        Args:
            fits: tells from a spec whether a pool is of the kind.
            rewards: names ``name@version`` that must all have been scored in a block, and whose scoring counts.
            made_here: tells from an environment record whether a block counts.
        """
        found = []
        for folder in [folder for folder in self._folders if fits(folder.spec)]:
            # One that was removed since it was listed prices nothing.
            with suppress(MissingObjectError):
                found.append(_cost(folder, rewards, made_here))
        return [cost for cost in found if cost.images]

    @property
    def unreadable(self) -> dict[str, str]:
        """Why some pools count in no cost, by key: they cannot be read."""
        return self._opened[1]

    @property
    def _folders(self) -> list[BlockFolder]:
        return self._opened[0]

    @cached_property
    def _opened(self) -> tuple[list[BlockFolder], dict[str, str]]:
        folders, unreadable = [], {}
        for path in places.matching(self._store.folder("pools"), "[0-9a-f]*"):
            try:
                folders.append(BlockFolder.load(self._store, "pools", path.name))
            except (DamagedError, MissingObjectError) as error:
                unreadable[path.name] = str(error)
        return folders, unreadable


def block_seconds(store: Store, key: str, rewards: Sequence[str]) -> list[float]:
    """Device seconds of every block of a pool that has all of these rewards, in order of rows and columns.

    Raises:
        MissingObjectError: there is no such pool.
    """
    return [seconds for seconds, _ in _blocks(BlockFolder.load(store, "pools", key), rewards)]


def _cost(folder: BlockFolder, rewards: Sequence[str], made_here: Check) -> PoolCost:
    known = {int(name, 16): record for name, record in folder.records().items()}
    here = {number for number, record in known.items() if record is not None and made_here(record)}
    times = [seconds for seconds, records in _blocks(folder, rewards) if records <= here]
    return PoolCost(folder.spec, len(times) * folder.chunk, sum(times))


def _blocks(folder: BlockFolder, rewards: Sequence[str]) -> Iterator[tuple[float, set[int]]]:
    """Seconds of each block that has all of these rewards, and the records that it was made under."""
    blocks = folder.blocks(folder.columns)
    found = [folder.entries(reward_array(name), blocks) for name in rewards]
    entries = [table for table in found if table is not None]
    if len(entries) < len(rewards) or not entries:
        return
    stacked = np.stack(entries, axis=2)
    for row, index in np.ndindex(stacked.shape[:2]):
        block = stacked[row, index]
        if np.all(block[:, DIGEST] != 0):
            # What was computed together has one time, and counts once.
            microseconds = sum({int(one[WRITTEN]): int(one[MICROSECONDS]) for one in block}.values())
            yield microseconds * 1e-6, {int(number) for number in block[:, RECORD]}
