"""The ledger of an array: for every block whether it is done, what its values are, and what they cost."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from solrl_tasks.store.zarr_array import ZarrArray

FIELDS: Final = ("digest", "record", "device_microseconds", "written_unix_ns")
DIGEST, RECORD, MICROSECONDS, WRITTEN = range(len(FIELDS))
"""Columns of an entry."""


class Ledger:
    """Entries of ``FIELDS`` [rows, blocks, 4]; an entry of zeros is that of a block that is not done."""

    def __init__(self, array: ZarrArray) -> None:
        self._array = array

    @property
    def blocks(self) -> int:
        """Blocks of a row that have a place."""
        return self._array.shape[1]

    def entries(self, blocks: int) -> NDArray[np.uint64]:
        """Entries of the first blocks of every row, [rows, blocks, 4], zero where not done or not to be read."""
        found = self._array.read(slice(None), slice(blocks))
        if found is not None:
            return found
        table = np.zeros((self._array.shape[0], blocks, len(FIELDS)), dtype=np.uint64)
        for row, index in np.ndindex(table.shape[:2]):
            table[row, index] = self.entry(row, index)
        return table

    def entry(self, row: int, index: int) -> NDArray[np.uint64]:
        """The entry of one block, [4]; zero where it is not done or cannot be read."""
        found = self._array.read(row, index)
        return np.zeros(len(FIELDS), dtype=np.uint64) if found is None else found

    def clear(self, row: int, index: int) -> None:
        """Make a block one that is not done, before its values change; one that cannot be read is written too."""
        found = self._array.read(row, index)
        if found is None or np.any(found):
            self._array.put(row, index, np.zeros(len(FIELDS), dtype=np.uint64))

    def enter(self, row: int, index: int, digest: int, record: int, seconds: float, written: int) -> None:
        """Make a block one that is done."""
        entry: NDArray[Any] = np.array([digest, record, round(seconds * 1e6), written], dtype=np.uint64)
        self._array.put(row, index, entry)

    def grow(self, blocks: int) -> None:
        """Make room for at least so many blocks of a row."""
        self._array.grow(blocks)

    def file_of(self, row: int, index: int) -> str:
        """As that of a ``ZarrArray``."""
        return self._array.file_of(row, index)
