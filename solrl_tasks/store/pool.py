"""Pools: the raw rewards of every explored candidate, paid for once."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from solrl_tasks.store import atomic, places
from solrl_tasks.store.array_names import FEATURES, IMAGES, REWARDS, THUMBNAILS, feature_array, reward_array
from solrl_tasks.store.block_folder import BlockFolder, Reuse
from solrl_tasks.store.blocks import Block
from solrl_tasks.store.digests import hash_values
from solrl_tasks.store.errors import DamagedError, MissingObjectError
from solrl_tasks.store.refs import UNKNOWN, Ref
from solrl_tasks.store.root import Store

PROMPTS: Final = "prompts.json"


class Pool:
    """The rewards of P prompts times N candidates, and their images, thumbnails and features, if kept.

    A reward or feature is called ``name@version``. Its values are marked block by block, so that a NaN that was
    computed (an invalid candidate) is never taken for one that was not.
    """

    def __init__(self, folder: BlockFolder, rows: tuple[str, ...]) -> None:
        self._folder = folder
        self.key = folder.key
        self.spec = folder.spec
        self.chunk = folder.chunk
        self.rows = rows

    @classmethod
    def open(cls, store: Store, spec: dict[str, Any], rows: Sequence[str], chunk: int, reuse: Reuse = "exact") -> Self:
        """The pool of a spec, made if it is not there.

        Args:
            spec: all that determines the values; the pool's key is ``key(spec)``.
            rows: prompt keys, in order.
            chunk: candidates of a block.
            reuse: ``exact`` refuses to add blocks of another environment, ``compatible`` mixes them.

        A pool whose spec is damaged is moved into quarantine with a warning, and made anew.

        Raises:
            StoreError: the pool was made with other rows or another chunk under the same spec.
        """
        shape = {"rows": list(rows), "chunk": chunk}
        return cls(BlockFolder(store, "pools", spec, shape, reuse), tuple(rows))

    @classmethod
    def load(cls, store: Store, which: Ref | str) -> Self:
        """A pool that is there, by reference or key.

        Raises:
            MissingObjectError: there is none.
            DamagedError: its spec cannot be read.
        """
        folder = BlockFolder.load(store, "pools", which if isinstance(which, str) else which.key)
        return cls(folder, tuple(folder.shape["rows"]))

    @contextmanager
    def lock(self, purpose: str = "", wait: bool = True) -> Iterator[None]:
        """Hold the pool alone while it is filled.

        Args:
            purpose: who fills it, such as ``run demo``, for the message of those who wait.
            wait: wait, with a message, while another process holds it, instead of an error.

        Raises:
            LockedError: another process holds it, and ``wait`` is false.
        """
        with self._folder.lock(purpose, wait):
            yield

    def ensure_columns(self, candidates: int) -> None:
        """Grow the candidate axis to hold ``candidates``, in whole chunks. Needs the lock."""
        self._folder.ensure_columns(candidates)

    def admit(self, record: dict[str, Any], blocks: Sequence[Block]) -> None:
        """Refuse early what ``write`` would refuse: blocks made in another environment (``reuse: exact``).

        Raises:
            RecordMismatchError: the message names what differs, and the remedy.
        """
        self._folder.admit(record, blocks)

    def missing(
        self,
        rewards: Sequence[str],
        candidates: int,
        images: bool = False,
        verify: bool = True,
        thumbnails: bool = False,
        features: Sequence[str] = (),
    ) -> list[Block]:
        """Blocks that lack something, in order of row and column.

        Args:
            rewards: names ``name@version``.
            candidates: how many of each prompt are asked for.
            images: whether images are asked for as well.
            verify: read every value and compare it with its mark; otherwise look at the marks only.
            thumbnails: whether small images are asked for; where images are kept they are not missed.
            features: names ``name@version``.
        """
        folder = self._folder
        done = {name: folder.done(reward_array(name), candidates, verify) for name in rewards}
        seen = {name: folder.done(feature_array(name), candidates, verify) for name in features}
        everywhere = np.ones((folder.rows, folder.blocks(candidates)), dtype=np.bool_)
        shown = folder.done(IMAGES, candidates, verify) if images else everywhere
        small = folder.done(THUMBNAILS, candidates, verify) if thumbnails and not images else everywhere
        pictured = images or folder.array(IMAGES) is not None
        found = []
        for row, index in np.ndindex(everywhere.shape):
            lacking = tuple(name for name in rewards if not done[name][row, index])
            unseen = tuple(name for name in features if not seen[name][row, index])
            if lacking or unseen or not (shown[row, index] and small[row, index]):
                kept = pictured and bool(shown[row, index]) and (images or folder.has_block(IMAGES, row, index, verify))
                block = self._block(row, index, lacking, unseen, kept)
                block = replace(
                    block,
                    images_missing=not shown[row, index],
                    thumbnails_missing=not (kept or small[row, index]),
                )
                if lacking or unseen or block.images_missing or block.thumbnails_missing:
                    found.append(block)
        return found

    def explored(self, candidates: int) -> NDArray[np.bool_]:
        """Blocks that hold any reward, by their marks, [P, blocks]."""
        folder = self._folder
        found = np.zeros((folder.rows, folder.blocks(candidates)), dtype=np.bool_)
        for name in folder.names():
            if name.startswith(f"{REWARDS}/"):
                found |= folder.done(name, candidates, verify=False)
        return found

    def arrays(self) -> list[str]:
        """Names of the arrays that there are, such as ``images`` and ``rewards/NAME@VERSION``."""
        return self._folder.names()

    @property
    def columns(self) -> int:
        """Candidates of each prompt that there is room for, in whole chunks."""
        return self._folder.columns

    def write(
        self,
        block: Block,
        rewards: Mapping[str, NDArray[np.float32]],
        images: NDArray[np.uint8] | None,
        seconds: float,
        record: dict[str, Any],
        thumbnails: NDArray[np.uint8] | None = None,
        features: Mapping[str, NDArray[np.float32]] | None = None,
    ) -> None:
        """Store a block. What is done already, and not missed by the block, is left as it is.

        Args:
            rewards: float32 [chunk] by ``name@version``; NaN is an invalid candidate.
            images: uint8 [chunk, H, W, 3], or None.
            seconds: device seconds that the block took.
            record: the environment, from ``environment_record``.
            thumbnails: uint8 [chunk, h, w, 3], or None.
            features: float32 [chunk, D] by ``name@version``; NaN where there is no image.

        Raises:
            NotLockedError: the lock is not held.
            RecordMismatchError: see ``admit``.
            ValueError: a wrong shape, or columns that ``ensure_columns`` has not made.
        """
        pictures = {IMAGES: images, THUMBNAILS: thumbnails}
        arrays: dict[str, NDArray[Any]] = {name: values for name, values in pictures.items() if values is not None}
        arrays |= {feature_array(name): values for name, values in (features or {}).items()}
        arrays |= {reward_array(name): values for name, values in rewards.items()}
        self._folder.write(block, arrays, seconds, record)

    def rewards(self, name: str, candidates: int) -> NDArray[np.float32]:
        """Verified rewards, [P, candidates]; NaN is an invalid candidate.

        Raises:
            IncompleteError: some block is not done; the message names blocks.
        """
        return self._folder.values(reward_array(name), candidates)

    def invalid(self, name: str, candidates: int) -> NDArray[np.int64]:
        """How many candidates of each prompt are invalid (not finite), [P]. Raises as ``rewards``."""
        finite = np.isfinite(self.rewards(name, candidates))
        return np.asarray(np.count_nonzero(~finite, axis=1), dtype=np.int64)

    def features(self, name: str, candidates: int) -> NDArray[np.float32]:
        """Verified features, [P, candidates, D]; NaN where there was no image to see. Raises as ``rewards``."""
        return self._folder.values(feature_array(name), candidates)

    def images(self, row: int, indices: Sequence[int]) -> NDArray[np.uint8]:
        """Kept images of some candidates of a prompt, verified, [len(indices), H, W, 3].

        Raises:
            IncompleteError: they are not kept.
        """
        return self._folder.take(IMAGES, row, [int(index) for index in indices])

    def pictures(self, row: int, indices: Sequence[int]) -> NDArray[np.uint8]:
        """What is kept to look at, images or else thumbnails. Raises as ``images``."""
        places = {int(index) // self.chunk for index in indices}
        whole = all(self._folder.has_block(IMAGES, row, place, verify=False) for place in places)
        return self._folder.take(IMAGES if whole else THUMBNAILS, row, [int(index) for index in indices])

    def seconds(
        self,
        rewards: Sequence[str],
        candidates: int,
        images: bool = False,
        thumbnails: bool = False,
        features: Sequence[str] = (),
    ) -> float:
        """Device seconds that these rewards, features and pictures of these candidates cost, whoever paid.

        What was computed together counts once; what was added later counts where it is asked for.
        """
        names = [reward_array(name) for name in rewards] + [feature_array(name) for name in features]
        return self._folder.seconds([*names, *[IMAGES] * images, *[THUMBNAILS] * thumbnails], candidates)

    def note_prompts(self, prompts: Sequence[dict[str, Any]]) -> str:
        """Keep the prompts beside their rewards, row by row: a reward that is added later needs them.

        Args:
            prompts: ``text`` and ``metadata`` of each row, JSON.

        Returns:
            As ``prompts_fault``, of what was there before.
        """
        noted, fault = self._look_at_prompts()
        if noted != list(prompts):
            atomic.write_sealed(self._folder.path / PROMPTS, list(prompts), once=True)
        return fault

    def noted_prompts(self) -> list[dict[str, Any]] | None:
        """What ``note_prompts`` kept; None where nothing was, or the file is damaged; see ``prompts_fault``."""
        return self._look_at_prompts()[0]

    def prompts_fault(self) -> str:
        """What is wrong with the file of the noted prompts, for people; empty where nothing is, or there is none."""
        return self._look_at_prompts()[1]

    def _look_at_prompts(self) -> tuple[list[dict[str, Any]] | None, str]:
        try:
            # They follow from the key, as the spec does.
            noted = atomic.read_sealed(self._folder.path / PROMPTS, once=True)
            if not isinstance(noted, list) or len(noted) != len(self.rows):
                raise DamagedError(self._folder.path / PROMPTS, f"it does not hold {len(self.rows)} prompts")
        except FileNotFoundError:
            return None, ""
        except DamagedError as error:
            return None, f"{error}. No reward is lost; whoever fills the pool again notes the prompts anew"
        return noted, ""

    def records(self) -> dict[str, dict[str, Any] | None]:
        """The environments of the pool's blocks by id; more than one says that it is mixed."""
        return self._folder.records()

    def digest(self, rewards: Sequence[str], candidates: int, features: Sequence[str] = ()) -> str:
        """sha256 over key, names and values of these rewards and features, 64 hex digits. Raises as ``rewards``."""
        state = hashlib.sha256(self.key.encode())
        for name in sorted(rewards):
            hash_values(state, name, self.rewards(name, candidates))
        for name in sorted(features):
            hash_values(state, feature_array(name), self.features(name, candidates))
        return state.hexdigest()

    def place(self) -> Ref:
        """A reference to the object as it is filled, for the garbage collection to spare; its digest is unknown."""
        return self._folder.ref(UNKNOWN)

    def ref(self, rewards: Sequence[str], candidates: int, features: Sequence[str] = ()) -> Ref:
        """A reference with the digest of these rewards and features. Raises as ``rewards``."""
        return self._folder.ref(self.digest(rewards, candidates, features))

    def _block(self, row: int, index: int, missing: tuple[str, ...], unseen: tuple[str, ...], kept: bool) -> Block:
        start = index * self.chunk
        return Block(
            row=row,
            index=index,
            start=start,
            stop=start + self.chunk,
            missing=missing,
            features_missing=unseen,
            needs_sampling=not kept,
        )


@dataclass(frozen=True)
class PoolInfo:
    """A pool as listings show it.

    ``candidates`` of each of ``rows`` prompts have room, in whole chunks; ``filled`` is the fraction of
    blocks done, by reward name (and ``images``, ``thumbnails``, ``features/NAME``); ``records``
    counts the environments that they come from.
    """

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
        rewards = [self.filled[name] for name in self.rewards]
        return not rewards or any(fraction < 1.0 for fraction in rewards)

    @property
    def rewards(self) -> list[str]:
        """The names of its rewards."""
        others = (IMAGES, THUMBNAILS)
        return [name for name in self.filled if name not in others and not name.startswith(f"{FEATURES}/")]

    @property
    def pictures(self) -> str:
        """What is kept to look at: ``images``, ``thumbnails``, or an empty text."""
        return next((name for name in (IMAGES, THUMBNAILS) if name in self.filled), "")


@dataclass(frozen=True)
class PoolSurvey:
    """All pools of a store.

    Attributes:
        pools: those that can be read, by key.
        unreadable: why others cannot be, by key.
    """

    pools: tuple[PoolInfo, ...]
    unreadable: Mapping[str, str]


def survey_pools(store: Store) -> PoolSurvey:
    """All pools of a store, for listings: marks are counted, values are not read."""
    pools, unreadable = [], {}
    for path in places.matching(store.folder("pools"), "[0-9a-f]*"):
        try:
            pools.append(_describe(BlockFolder.load(store, "pools", path.name)))
        except (DamagedError, MissingObjectError) as error:
            unreadable[path.name] = str(error)
    return PoolSurvey(tuple(pools), unreadable)


def describe_pools(store: Store) -> list[PoolInfo]:
    """The pools of a store that can be read; see ``survey_pools``."""
    return list(survey_pools(store).pools)


def _describe(folder: BlockFolder) -> PoolInfo:
    columns = folder.columns
    filled = {}
    for name in folder.names():
        done = folder.done(name, columns, verify=False)
        filled[name.removeprefix(f"{REWARDS}/")] = float(done.mean()) if done.size else 0.0
    return PoolInfo(
        key=folder.key,
        spec=folder.spec,
        rows=folder.rows,
        candidates=columns,
        chunk=folder.chunk,
        filled=filled,
        bytes=places.bytes_below(folder.path),
        records=len(folder.records()),
    )
