"""Samples: the precise latents of the kept candidates, and their rewards."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from solrl_tasks.store.array_names import IMAGES, LATENTS, PATHS, reward_array
from solrl_tasks.store.block_folder import BlockFolder, Reuse
from solrl_tasks.store.blocks import Block
from solrl_tasks.store.digests import hash_values
from solrl_tasks.store.refs import UNKNOWN, Ref
from solrl_tasks.store.root import Store


class Samples:
    """Latents x0 and rewards of P prompts times K kept candidates.

    ``indices`` [P, K] are candidate indices; a row of -1 is left out, lacks nothing and holds NaN. Latents
    are kept, so a reward that is added later needs no forward pass of the transformer.

    Of samples of noisy paths ``states`` latents of each path are kept besides, in float32 as they were: training
    evaluates the very steps that were taken, and rounding them to the precision of the network would add to the noise
    that explains them. Where there are none it is 0.
    """

    def __init__(
        self, folder: BlockFolder, indices: NDArray[np.int64], latent_shape: tuple[int, ...], states: int = 0
    ) -> None:
        self._folder = folder
        self.key = folder.key
        self.spec = folder.spec
        self.chunk = folder.chunk
        self.indices = indices
        self.latent_shape = latent_shape
        self.states = states

    @classmethod
    def open(
        cls,
        store: Store,
        spec: dict[str, Any],
        indices: NDArray[np.int64],
        latent_shape: Sequence[int],
        chunk: int,
        reuse: Reuse = "exact",
        states: int = 0,
    ) -> Self:
        """The samples of a spec, made if they are not there.

        Args:
            spec: all that determines the latents; the key is ``key(spec)``.
            indices: int64 [P, K], distinct within a row, or a whole row of -1.
            latent_shape: (C, H, W).
            chunk: kept candidates that are computed together.
            reuse: ``exact`` refuses to add blocks of another environment, ``compatible`` mixes them.
            states: latents of each path that are kept.

        Raises:
            StoreError: they were made with other indices or another shape under the same spec.
            ValueError: indices that are not as described.
        """
        rows = [[int(index) for index in row] for row in indices]
        _check_indices(rows)
        shape = {"rows": rows, "chunk": chunk, "latent": [int(side) for side in latent_shape]}
        shape |= {"states": states} if states else {}
        return cls._of(BlockFolder(store, "samples", spec, shape, reuse))

    @classmethod
    def load(cls, store: Store, which: Ref | str) -> Self:
        """Samples that are there, by reference or key.

        Raises:
            MissingObjectError: there are none.
            DamagedError: their spec cannot be read.
        """
        return cls._of(BlockFolder.load(store, "samples", which if isinstance(which, str) else which.key))

    @classmethod
    def _of(cls, folder: BlockFolder) -> Self:
        indices = np.asarray(folder.shape["rows"], dtype=np.int64).reshape(folder.rows, -1)
        return cls(folder, indices, tuple(folder.shape["latent"]), folder.shape.get("states", 0))

    @property
    def active(self) -> NDArray[np.bool_]:
        """Which rows are not left out, [P]."""
        return np.asarray(self.indices.min(axis=1, initial=0) >= 0)

    @contextmanager
    def lock(self, purpose: str = "", wait: bool = True) -> Iterator[None]:
        """Hold the samples alone while they are filled, with room for all of them. See ``Pool.lock``."""
        with self._folder.lock(purpose, wait):
            self._folder.ensure_columns(self.indices.shape[1])
            yield

    def admit(self, record: dict[str, Any], blocks: Sequence[Block]) -> None:
        """Refuse early what ``write`` would refuse. See ``Pool.admit``."""
        self._folder.admit(record, blocks)

    def candidates(self, block: Block) -> NDArray[np.int64]:
        """Candidate indices of a whole block, [chunk]; columns past K repeat the last one of the row."""
        row = self.indices[block.row]
        return np.asarray(row[np.minimum(block.columns, len(row) - 1)])

    def missing(self, rewards: Sequence[str], images: bool = False, verify: bool = True) -> list[Block]:
        """Blocks that lack latents, or a reward or images asked for, in order of row and column.

        A block without latents, or without the path to them where paths are kept, needs sampling and misses all that
        was asked for.

        Args:
            rewards: names ``name@version``.
            images: whether images are asked for as well.
            verify: read every value and compare it with its mark; otherwise look at the marks only.
        """
        folder, columns = self._folder, self.indices.shape[1]
        latents = folder.done(LATENTS, columns, verify)
        if self.states:
            latents = latents & folder.done(PATHS, columns, verify)
        done = {name: folder.done(reward_array(name), columns, verify) for name in rewards}
        shown = folder.done(IMAGES, columns, verify) if images else np.ones_like(latents)
        found = []
        for row, index in np.argwhere(np.broadcast_to(self.active[:, None], latents.shape)).tolist():
            kept = bool(latents[row, index])
            lacking = tuple(name for name in rewards if not (kept and done[name][row, index]))
            no_images = images and not (kept and shown[row, index])
            if not kept or lacking or no_images:
                found.append(self._block(row, index, lacking, no_images, kept))
        return found

    def write(
        self,
        block: Block,
        latents: NDArray[np.float32] | None,
        rewards: Mapping[str, NDArray[np.float32]],
        images: NDArray[np.uint8] | None,
        seconds: float,
        record: dict[str, Any],
        paths: NDArray[np.float32] | None = None,
    ) -> None:
        """Store a block. What is done already, and not missed by the block, is left as it is.

        Args:
            latents: float32 [chunk, C, H, W]; None where they are kept already.
            rewards: float32 [chunk] by ``name@version``; NaN is invalid.
            images: uint8 [chunk, H, W, 3], or None.
            seconds: device seconds that the block took.
            record: the environment, from ``environment_record``.
            paths: float32 [chunk, states, C, H, W], together with latents where paths are kept; else None.

        Raises:
            NotLockedError: the lock is not held.
            RecordMismatchError: see ``admit``.
            ValueError: a wrong shape, or no latents, or no paths, for a block that has none.
        """
        if latents is None and block.needs_sampling:
            raise ValueError(f"{self._folder.label}: row {block.row}, block {block.index} needs its latents")
        arrays: dict[str, NDArray[Any]] = {} if images is None else {IMAGES: images}
        arrays |= {reward_array(name): values for name, values in rewards.items()}
        if (paths is not None) != (latents is not None and self.states > 0):
            raise ValueError(f"{self._folder.label}: paths of {self.states} states come together with their latents")
        if paths is not None:
            arrays[PATHS] = paths
        if latents is not None:
            # Last, so that a block whose latents are done was scored from these latents.
            arrays[LATENTS] = latents
        self._folder.write(block, arrays, seconds, record)

    def latents(self) -> NDArray[np.float32]:
        """Verified latents, [P, K, C, H, W]; rows left out are NaN.

        Raises:
            IncompleteError: some block is not done; the message names blocks.
        """
        rows, kept = self.indices.shape
        if not self.active.any():
            return np.full((rows, kept, *self.latent_shape), np.nan, dtype=np.float32)
        return self._folder.values(LATENTS, kept, self.active)

    def paths(self) -> NDArray[np.float32]:
        """Verified paths, [P, K, states, C, H, W]; rows left out are NaN. Raises as ``latents``."""
        rows, kept = self.indices.shape
        if not self.active.any():
            return np.full((rows, kept, self.states, *self.latent_shape), np.nan, dtype=np.float32)
        return self._folder.values(PATHS, kept, self.active)

    def block_latents(self, block: Block) -> NDArray[np.float32]:
        """Kept latents of a whole block, verified, [chunk, C, H, W]: what a new reward is computed from.

        Raises:
            IncompleteError: they are not kept.
        """
        return self._folder.take(LATENTS, block.row, block.columns.tolist())

    def rewards(self, name: str) -> NDArray[np.float32]:
        """Verified rewards, [P, K]; NaN is invalid, or in a row left out. Raises as ``latents``."""
        return self._folder.values(reward_array(name), self.indices.shape[1], self.active)

    def images(self, row: int, columns: Sequence[int]) -> NDArray[np.uint8]:
        """Kept images of some of a row's K candidates, verified, [len(columns), H, W, 3].

        Raises:
            IncompleteError: they are not kept.
        """
        return self._folder.take(IMAGES, row, [int(column) for column in columns])

    def seconds(self, rewards: Sequence[str], images: bool = False) -> float:
        """Device seconds that the latents and these rewards (and images) cost, whoever paid."""
        names = [LATENTS, *(reward_array(name) for name in rewards)] + [IMAGES] * images + [PATHS] * bool(self.states)
        return self._folder.seconds(names, self.indices.shape[1])

    def records(self) -> dict[str, dict[str, Any] | None]:
        """The environments of the blocks by id; more than one says that they are mixed."""
        return self._folder.records()

    def digest(self, rewards: Sequence[str] = ()) -> str:
        """sha256 over key, indices, latents, paths and the named rewards, 64 hex digits. Raises as ``latents``."""
        state = hashlib.sha256(self.key.encode())
        hash_values(state, "indices", self.indices)
        hash_values(state, LATENTS, self.latents())
        if self.states:
            hash_values(state, PATHS, self.paths())
        for name in sorted(rewards):
            hash_values(state, name, self.rewards(name))
        return state.hexdigest()

    def place(self) -> Ref:
        """A reference to the object as it is filled, for the garbage collection to spare; its digest is unknown."""
        return self._folder.ref(UNKNOWN)

    def ref(self, rewards: Sequence[str] = ()) -> Ref:
        """A reference with that digest. Raises as ``latents``."""
        return self._folder.ref(self.digest(rewards))

    def _block(self, row: int, index: int, missing: tuple[str, ...], no_images: bool, kept: bool) -> Block:
        start = index * self.chunk
        return Block(
            row=row,
            index=index,
            start=start,
            stop=start + self.chunk,
            missing=missing,
            images_missing=no_images,
            needs_sampling=not kept,
        )


def _check_indices(rows: list[list[int]]) -> None:
    for number, row in enumerate(rows):
        left_out = all(index == -1 for index in row)
        if not row or not (left_out or (min(row) >= 0 and len(set(row)) == len(row))):
            raise ValueError(f"indices of row {number} must be distinct and at least 0, or all -1; found {row}")
