"""Samples: the precise latents of the kept candidates, and their rewards."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from solrl_tasks.store.blocks import Block
from solrl_tasks.store.pool import Reuse
from solrl_tasks.store.refs import Ref
from solrl_tasks.store.root import Store


class Samples:
    """Latents x0 and rewards of P prompts times K kept candidates; a row of -1 in ``indices`` is left out."""

    key: str
    spec: dict[str, Any]
    indices: NDArray[np.int64]
    latent_shape: tuple[int, ...]
    chunk: int

    @classmethod
    def open(
        cls,
        store: Store,
        spec: dict[str, Any],
        indices: NDArray[np.int64],
        latent_shape: Sequence[int],
        chunk: int,
        reuse: Reuse = "exact",
    ) -> Self:
        """The samples of a spec, made if they are not there. ``indices`` [P, K] are candidate indices."""
        raise NotImplementedError

    @contextmanager
    def lock(self, purpose: str = "", wait: bool = True) -> Iterator[None]:
        """Hold the samples alone while they are filled."""
        raise NotImplementedError

    def admit(self, record: dict[str, Any], blocks: Sequence[Block]) -> None:
        """Refuse early if these blocks, made under ``record``, may not join (``reuse: exact``)."""
        raise NotImplementedError

    def candidates(self, block: Block) -> NDArray[np.int64]:
        """Candidate indices of a whole block, [chunk]; columns past K repeat the row's last one."""
        raise NotImplementedError

    def missing(self, rewards: Sequence[str], images: bool = False, verify: bool = True) -> list[Block]:
        """Blocks that lack latents or something asked for. Left-out rows lack nothing."""
        raise NotImplementedError

    def write(
        self,
        block: Block,
        latents: NDArray[np.float32] | None,
        rewards: Mapping[str, NDArray[np.float32]],
        images: NDArray[np.uint8] | None,
        seconds: float,
        record: dict[str, Any],
    ) -> None:
        """Store a block: latents [chunk, C, H, W] (None if kept), rewards [chunk], images [chunk, H, W, 3]."""
        raise NotImplementedError

    def latents(self) -> NDArray[np.float32]:
        """Verified latents, [P, K, C, H, W]; left-out rows are NaN."""
        raise NotImplementedError

    def block_latents(self, block: Block) -> NDArray[np.float32]:
        """Kept latents of one block, [chunk, C, H, W]: what a new reward is computed from."""
        raise NotImplementedError

    def rewards(self, name: str) -> NDArray[np.float32]:
        """Verified rewards, [P, K]; NaN is invalid, or a left-out row."""
        raise NotImplementedError

    def images(self, row: int, columns: Sequence[int]) -> NDArray[np.uint8]:
        """Kept images, verified, [len(columns), H, W, 3]; ``columns`` count within the row's K."""
        raise NotImplementedError

    def seconds(self, rewards: Sequence[str]) -> float:
        """Device seconds that latents and these rewards cost, whoever paid."""
        raise NotImplementedError

    def digest(self, rewards: Sequence[str] = ()) -> str:
        """sha256 over indices, latents and the named rewards, 64 hex digits."""
        raise NotImplementedError

    def ref(self, rewards: Sequence[str] = ()) -> Ref:
        """A reference with that digest."""
        raise NotImplementedError
