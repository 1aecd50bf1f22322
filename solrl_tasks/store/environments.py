"""The environments that the blocks of a folder were computed in."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from solrl_tasks.store.errors import RecordMismatchError
from solrl_tasks.store.ledger import DIGEST, RECORD
from solrl_tasks.store.object_path import Place
from solrl_tasks.store.records import RecordShelf, decisive_differences, record_id


class Environments:
    """Records of environments by array; blocks name them by number.

    Args:
        label: how messages call the folder.
        shelf: where the records lie.
        entries: the ledger entries of the array of a name, or None.
        alone: whether nobody else can write now, so that what was seen stays true.
    """

    def __init__(
        self, label: str, shelf: Place, entries: Callable[[str], NDArray[np.uint64] | None], alone: Callable[[], bool]
    ) -> None:
        self._label = label
        self._shelf = RecordShelf(shelf)
        self._entries = entries
        self._alone = alone
        self._seen: dict[str, set[int]] = {}

    def save(self, record: dict[str, Any]) -> int:
        """Keep a record, and return the number that blocks name it by."""
        return self._shelf.save(record)

    def note(self, name: str, number: int) -> None:
        """A block of an array was written under a record."""
        self._seen.setdefault(name, set()).add(number)

    def forget(self) -> None:
        """Look again at what was seen: somebody else may write."""
        self._seen.clear()
        self._shelf.forget()

    def all(self, names: Sequence[str]) -> dict[str, dict[str, Any] | None]:
        """The records of these arrays by id; None where the record's own file is lost."""
        found: set[int] = set()
        for name in names:
            found |= self._numbers(name)
        return {f"{number:016x}": self._shelf.load(number) for number in sorted(found)}

    def require_same(self, name: str, record: dict[str, Any]) -> None:
        """Refuse a record other than that of the array's blocks.

        Raises:
            RecordMismatchError: it names what differs.
        """
        mine = int(record_id(record), 16)
        for number in self._numbers(name) - {mine}:
            other = self._shelf.load(number)
            changed = ["its record is lost"] if other is None else decisive_differences(other, record)
            if not changed:
                continue
            raise RecordMismatchError(
                f"{self._label}: {name} has blocks of another environment ({'; '.join(changed)}). Its missing "
                "blocks would be computed differently: go on in that environment, or mix them by reuse: compatible "
                "under another run id"
            )

    def _numbers(self, name: str) -> set[int]:
        if name in self._seen:
            return self._seen[name]
        entries = self._entries(name)
        if entries is None:
            return set()
        found = {int(number) for number in np.unique(entries[:, :, RECORD][entries[:, :, DIGEST] != 0])}
        if self._alone():
            self._seen[name] = found
        return found
