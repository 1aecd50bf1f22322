"""What a pool or samples hold, complete or not, for readers: nothing is locked, mended or computed."""

from collections.abc import Sequence
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from solrl_tasks.store.array_names import LATENTS, REWARDS
from solrl_tasks.store.block_folder import BlockFolder
from solrl_tasks.store.errors import MissingObjectError
from solrl_tasks.store.ledger import MICROSECONDS, WRITTEN
from solrl_tasks.store.places import matching
from solrl_tasks.store.pool import Pool
from solrl_tasks.store.refs import UNKNOWN, Kind, Ref
from solrl_tasks.store.root import Store

KINDS: Final[tuple[Kind, ...]] = ("pools", "samples")
_NAMED: Final = 8
"""Keys that an error names at most."""


class Contents:
    """Arrays of one pool or samples; rows are prompts, columns candidates.

    Attributes:
        kind, key, spec: of the object.
        columns: candidates explored or being explored, in whole chunks, or kept.
        shape: the JSON that its arrays follow from; see ``BlockFolder``.
    """

    def __init__(self, folder: BlockFolder) -> None:
        self._folder = folder
        self.kind = folder.kind
        self.key = folder.key
        self.spec = folder.spec
        self.shape = folder.shape
        self.rows = folder.rows
        self.chunk = folder.chunk
        indices = self.indices
        self.columns = folder.columns if indices is None else indices.shape[1]

    @classmethod
    def find(cls, store: Store, key: str, kinds: Sequence[Kind] = KINDS) -> Self:
        """The object whose key is ``key``, or the only one whose key begins so.

        Raises:
            MissingObjectError: there is none, or several; the message lists them.
            DamagedError: its spec cannot be read.
        """
        found = [(kind, name) for kind in kinds for name in keys_of(store, kind) if name.startswith(key)]
        if len(found) != 1:
            named = ", ".join(f"{kind}/{name}" for kind, name in found[:_NAMED]) or "nothing"
            more = f" and {len(found) - _NAMED} more: give more of it" if found[_NAMED:] else ": give more of it"
            raise MissingObjectError(
                f"{key!r} is to begin one key of {' and '.join(kinds)} in the store {store.root}, but begins "
                f"{named}{more if found else ''}; `solrl pools` lists the pools"
            )
        return cls.load(store, *found[0])

    @classmethod
    def load(cls, store: Store, kind: Kind, key: str) -> Self:
        """The object of a whole key. Raises as ``BlockFolder.load``."""
        return cls(BlockFolder.load(store, kind, key))

    def place(self) -> Ref:
        """A reference to the object, whatever it holds, for the garbage collection to spare."""
        return self._folder.ref(UNKNOWN)

    @property
    def rewards(self) -> list[str]:
        """Names ``name@version`` of the rewards."""
        return [name.removeprefix(f"{REWARDS}/") for name in self.arrays if name.startswith(f"{REWARDS}/")]

    @property
    def arrays(self) -> list[str]:
        """Names of all arrays."""
        return self._folder.names()

    @property
    def indices(self) -> NDArray[np.int64] | None:
        """Candidate indices of samples, [P, K], -1 in rows that were left out; None of a pool."""
        return np.asarray(self.shape["rows"], dtype=np.int64) if self.kind == "samples" else None

    @property
    def prompt_keys(self) -> tuple[str, ...] | None:
        """Of each row of a pool; None of samples, which do not know them."""
        return tuple(self.shape["rows"]) if self.kind == "pools" else None

    def values(self, name: str) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """Verified values of an array, [P, columns, *item], and which are done, [P, columns].

        What is not done, or damaged, holds NaN, in pictures 0.
        """
        blocks = self._folder.blocks(self.columns)
        read = self._folder.ask(name, lambda array: array.read_rows(blocks), lambda answer: bool(answer[1].all()))
        if read is None:
            raise MissingObjectError(f"{self._folder.label} has no {name}; it has {', '.join(self.arrays)}")
        found, done = read
        return found[:, : self.columns], self._spread(done)

    def block(self, name: str, row: int, index: int) -> NDArray[Any] | None:
        """Verified values of one block, [chunk, *item]; None where it is not done, or damaged."""
        return self._folder.ask(name, lambda array: array.read(row, index), lambda read: read is not None, little=True)

    def form(self, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
        """Shape of an item of an array, and its type. Raises as ``values``."""
        array = self._folder.array(name)
        if array is None:
            raise MissingObjectError(f"{self._folder.label} has no {name}; it has {', '.join(self.arrays)}")
        return tuple(array.item), array.read_rows(0)[0].dtype

    def marked(self, name: str) -> NDArray[np.bool_]:
        """Which values of an array are marked as done, [P, columns]; nothing is read but the marks."""
        return self._spread(self._folder.done(name, self.columns, verify=False))

    def seconds(self) -> NDArray[np.float64]:
        """Device seconds of each candidate, [P, columns]: its share of all that was computed of its block.

        What was computed together counts once. A block is computed whole: where the last one has columns beyond those
        asked for, their share is in none of the others.
        """
        names = [name for name in self.arrays if name.startswith(f"{REWARDS}/") or name == LATENTS]
        blocks = self._folder.blocks(self.columns)
        seconds = np.zeros((self.rows, blocks))
        found = (self._folder.entries(name, blocks) for name in names)
        tables = [table for table in found if table is not None]
        for row, index in np.ndindex(seconds.shape):
            costs = {int(table[row, index, WRITTEN]): int(table[row, index, MICROSECONDS]) for table in tables}
            seconds[row, index] = sum(costs.values()) * 1e-6
        return np.repeat(seconds / self.chunk, self.chunk, axis=1)[:, : self.columns]

    def prompts(self) -> list[dict[str, Any]] | None:
        """``text`` and ``metadata`` of each row of a pool; None where they were not noted, and of samples."""
        if self.kind != "pools":
            return None
        return Pool(self._folder, tuple(self.shape["rows"])).noted_prompts()

    def _spread(self, done: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """From blocks to columns."""
        return np.repeat(done, self.chunk, axis=1)[:, : self.columns]


def keys_of(store: Store, kind: Kind) -> list[str]:
    """Keys of all objects of a kind, in order."""
    return [path.name for path in matching(store.folder(kind), "[0-9a-f]*")]
