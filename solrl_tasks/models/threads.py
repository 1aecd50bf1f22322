"""Small work on many tensors of the host, by several threads."""

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from torch import Tensor

T = TypeVar("T")
R = TypeVar("R")
MOST: Final = 8
"""Threads at most: memory is no faster by more."""
WORTH: Final = 2**25
"""Bytes below which threads are not worth beginning."""


def threaded(function: Callable[[T], R], items: Sequence[T], nbytes: int) -> list[R]:
    """``[function(item) for item in items]``.

    A policy is gigabytes in a thousand tensors. Copying, averaging and hashing them one after the other leaves every
    processor but one idle, and most of that time goes to memory that is touched for the first time. Other than torch's
    own threads, these wait without keeping a processor busy.

    Args:
        function: gives the same whatever else is being done, and in whatever thread.
        nbytes: of all items together.
    """
    threads = min(MOST, os.cpu_count() or 1, len(items))
    if threads < 2 or nbytes < WORTH:
        return [function(item) for item in items]
    with ThreadPoolExecutor(threads, thread_name_prefix="solrl-tensors") as pool:
        return list(pool.map(function, items))


def total_bytes(tensors: Iterable[Tensor]) -> int:
    """Of all their values."""
    return sum(tensor.nbytes for tensor in tensors)
