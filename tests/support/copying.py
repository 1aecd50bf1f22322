"""Counts what is copied between tensors, and lets a copy fail."""

from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

_COPIES = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default, torch.ops.aten.clone.default)


class Copying(TorchDispatchMode):
    """While it is entered, notes every copy.

    Attributes:
        sizes: bytes of each.
        made: weak references to the memory that copies went to.
    """

    def __init__(self, fail_at: int | None = None) -> None:
        """
        Args:
            fail_at: the copy, from 0, for which memory is short.
        """
        super().__init__()
        self.sizes: list[int] = []
        self.made: list[StorageWeakRef] = []
        self._fail_at = fail_at

    def gone(self) -> list[bool]:
        """Of each copy, whether its memory is held by nobody any more."""
        return [memory.expired() for memory in self.made]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in _COPIES:
            return func(*args, **(kwargs or {}))
        if len(self.sizes) == self._fail_at:
            raise torch.OutOfMemoryError("out of memory. Tried to allocate 1.00 GiB")
        made = func(*args, **(kwargs or {}))
        self.sizes.append(made.numel() * made.element_size())
        self.made.append(StorageWeakRef(made.untyped_storage()))
        return made
