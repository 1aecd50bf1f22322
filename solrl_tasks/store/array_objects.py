"""The objects of a block array in a bucket: got side by side before they are read, and not again where still the same.

An array on the disk has none, and nothing of this costs it anything.
"""

import itertools
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from solrl_tasks.store.ledger import Ledger
from solrl_tasks.store.object_zarr import ObjectZarr
from solrl_tasks.store.zarr_array import ZarrArray


class ArrayObjects:
    """Args: ``remote`` is None of an array on the disk; ``packed`` says that many blocks lie in one object."""

    def __init__(self, remote: ObjectZarr | None, values: ZarrArray, ledger: Ledger, packed: bool) -> None:
        self._remote = remote
        self._values = values
        self._ledger = ledger
        self._packed = packed

    @property
    def confirm(self) -> Callable[[], None]:
        """Raises if the caller's lock is lost."""
        return nothing_to_confirm if self._remote is None else self._remote.confirm

    def fetch(self, part: str) -> None:
        """Get all of ``values`` or ``ledger``."""
        if self._remote is not None:
            self._remote.fetch(part)

    def ahead(self, places: list[list[int]]) -> Iterator[list[int]]:
        """Places of blocks in order; the values of the next ones are got side by side."""
        if self._remote is None:
            yield from places
            return
        self._remote.look()
        if self._packed:
            # A shard is got once for all of its blocks that stand next to each other.
            for shard, blocks in itertools.groupby(places, lambda place: self._values_name(*place)):
                members = list(blocks)
                for _ in self._remote.ahead([shard]):
                    yield from members
            return
        keys = self._remote.ahead(self._values_name(row, index) for row, index in places)
        yield from (place for place, _ in zip(places, keys, strict=True))

    def vouch(self, row: int, index: int) -> None:
        """Remember that values and entry of a block were found to fit, for as long as both are unchanged."""
        # The tag of a shard changes with any of its blocks, and stands for all of them.
        if self._remote is not None and not self._packed:
            self._remote.vouch(*self._names(row, index))

    def vouched(self, marked: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which of marked blocks this process has vouched for, and are unchanged since, [rows, blocks]."""
        known = np.zeros_like(marked)
        if self._remote is not None and not self._packed:
            self._remote.look()
            for row, index in np.argwhere(marked).tolist():
                known[row, index] = self._remote.is_vouched(*self._names(row, index))
        return known

    def _names(self, row: int, index: int) -> tuple[str, str]:
        return self._values_name(row, index), f"ledger/{self._ledger.file_of(row, index)}"

    def _values_name(self, row: int, index: int) -> str:
        return f"values/{self._values.file_of(row, index)}"


def nothing_to_confirm() -> None:
    """Of a folder of this machine: the kernel takes its lock from nobody who lives."""
