"""A bounded memory: what was used last stays, and what it takes is counted in bytes."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Memory(Generic[Key, Value]):
    """Values by key. Where they take more than ``limit`` bytes, those go that were used longest ago.

    Threads may share one.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._held = 0
        self._values: OrderedDict[Key, tuple[Value, int]] = OrderedDict()
        self._one = threading.Lock()

    @property
    def held(self) -> int:
        """Bytes of what is remembered, as its keepers told them."""
        return self._held

    def keep(self, key: Key, value: Value, size: int) -> None:
        """Remember a value of so many bytes in the place of what the key had; one above the limit is not remembered."""
        with self._one:
            self._drop(key)
            if size > self.limit:
                return
            self._values[key] = value, size
            self._held += size
            while self._held > self.limit:
                self._drop(next(iter(self._values)))

    def find(self, key: Key) -> Value | None:
        """The value of a key, if it is remembered."""
        with self._one:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key][0]

    def drop(self, key: Key) -> None:
        """Forget one, if it is remembered."""
        with self._one:
            self._drop(key)

    def drop_where(self, unwanted: Callable[[Key], bool]) -> int:
        """Forget some, and return how many there were."""
        with self._one:
            keys = [key for key in self._values if unwanted(key)]
            for key in keys:
                self._drop(key)
            return len(keys)

    def forget(self) -> None:
        """Forget everything."""
        with self._one:
            self._values.clear()
            self._held = 0

    def _drop(self, key: Key) -> None:
        self._held -= self._values.pop(key, (None, 0))[1]
