"""Digests of arrays of values: equal values have equal ones."""

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray


def block_digest(values: NDArray[Any], row: int, index: int) -> int:
    """64 bits of the sha256 over a block's values, type and place; never 0, which means not done.

    The place is part of it, so that a chunk file in the place of another is found.
    """
    head = f"{values.dtype.str} {values.shape} {row} {index} ".encode()
    state = hashlib.sha256(head)
    state.update(np.ascontiguousarray(values).data)
    return int.from_bytes(state.digest()[:8], "little") or 1


def hash_values(state: "hashlib._Hash", name: str, values: NDArray[Any]) -> None:
    """Add a named array to a sha256: name, type, shape and values."""
    state.update(f"{name} {values.dtype.str} {values.shape} ".encode())
    state.update(np.ascontiguousarray(values).data)


def with_one_nan(values: NDArray[Any]) -> NDArray[Any]:
    """The values in order of memory, with one bit pattern for all NaN, so that equal results have equal digests."""
    if values.dtype.kind == "f":
        values = np.where(np.isnan(values), np.asarray(np.nan, dtype=values.dtype), values)
    return np.ascontiguousarray(values)
