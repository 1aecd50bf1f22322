"""Pools: the raw rewards of every explored candidate, paid for once."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from solrl_tasks.store.blocks import Block
from solrl_tasks.store.refs import Ref
from solrl_tasks.store.root import Store

Reuse = Literal["exact", "compatible"]


@dataclass(frozen=True)
class PoolInfo:
    """A pool as listings show it: ``filled`` is the fraction of blocks done, by reward name (and ``images``)."""

    key: str
    spec: dict[str, Any]
    rows: int
    candidates: int
    chunk: int
    filled: dict[str, float]
    bytes: int
    records: int

    @property
    def partial(self) -> bool:
        """Whether some block of some reward is not done."""
        return not self.filled or any(fraction < 1.0 for fraction in self.filled.values())


class Pool:
    """The rewards (and images, if kept) of P prompts times N candidates."""

    key: str
    spec: dict[str, Any]
    rows: tuple[str, ...]
    chunk: int

    @classmethod
    def open(
        cls, store: Store, spec: dict[str, Any], rows: Sequence[str], chunk: int, reuse: Reuse = "exact"
    ) -> Self:
        """The pool of a spec, made if it is not there. ``rows`` are prompt keys in order; key = key(spec)."""
        raise NotImplementedError

    @contextmanager
    def lock(self, purpose: str = "", wait: bool = True) -> Iterator[None]:
        """Hold the pool alone while it is filled; waits with a message while another process does."""
        raise NotImplementedError

    def ensure_columns(self, candidates: int) -> None:
        """Grow the candidate axis to hold ``candidates``, in whole chunks. Needs the lock."""
        raise NotImplementedError

    def admit(self, record: dict[str, Any], blocks: Sequence[Block]) -> None:
        """Refuse early if these blocks, made under ``record``, may not join the pool (``reuse: exact``)."""
        raise NotImplementedError

    def missing(
        self, rewards: Sequence[str], candidates: int, images: bool = False, verify: bool = True
    ) -> list[Block]:
        """Blocks that lack something asked for, in order of row and column."""
        raise NotImplementedError

    def write(
        self,
        block: Block,
        rewards: Mapping[str, NDArray[np.float32]],
        images: NDArray[np.uint8] | None,
        seconds: float,
        record: dict[str, Any],
    ) -> None:
        """Store a block's rewards ([chunk] each) and images ([chunk, H, W, 3]); done ones are left as they are."""
        raise NotImplementedError

    def rewards(self, name: str, candidates: int) -> NDArray[np.float32]:
        """Verified rewards, [P, candidates]; NaN is an invalid candidate."""
        raise NotImplementedError

    def invalid(self, name: str, candidates: int) -> NDArray[np.int64]:
        """Invalid candidates of each prompt, [P]."""
        raise NotImplementedError

    def images(self, row: int, indices: Sequence[int]) -> NDArray[np.uint8]:
        """Kept images of some candidates of a prompt, verified, [len(indices), H, W, 3]."""
        raise NotImplementedError

    def seconds(self, rewards: Sequence[str], candidates: int) -> float:
        """Device seconds that these rewards cost, whoever paid."""
        raise NotImplementedError

    def digest(self, rewards: Sequence[str], candidates: int) -> str:
        """sha256 over names and values, 64 hex digits."""
        raise NotImplementedError

    def ref(self, rewards: Sequence[str], candidates: int) -> Ref:
        """A reference with the digest of these rewards."""
        raise NotImplementedError


def describe_pools(store: Store) -> list[PoolInfo]:
    """All pools of a store, for listings; nothing is verified."""
    raise NotImplementedError
