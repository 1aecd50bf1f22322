"""Pools and samples for analysis: labelled arrays of xarray, and tables in Parquet.

    from solrl_tasks.frames import open_dataset
    pool = open_dataset(".solrl/store", "9e1c")
    pool["scene@1"].mean("candidate")

Reading neither locks nor changes a store: what is being filled can be looked at, and what is not there yet, or damaged,
is missing.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as arrow
import xarray as xr
from numpy.typing import NDArray
from pyarrow import parquet
from xarray.backends import BackendArray
from xarray.core import indexing

from solrl_tasks.sampling.identity import candidate_seed
from solrl_tasks.store.array_names import FEATURES, IMAGES, LATENTS, PATHS, THUMBNAILS, reward_array
from solrl_tasks.store.contents import Contents, keys_of
from solrl_tasks.store.errors import DamagedError, MissingObjectError
from solrl_tasks.store.keys import canonical_json, digest
from solrl_tasks.store.places import place_of
from solrl_tasks.store.root import Store

ITEM_DIMENSIONS: Final = {
    IMAGES: ("y", "x", "channel"),
    THUMBNAILS: ("thumbnail_y", "thumbnail_x", "channel"),
    LATENTS: ("latent_channel", "latent_y", "latent_x"),
    PATHS: ("state", "latent_channel", "latent_y", "latent_x"),
}
"""Names of the dimensions of one candidate's value."""


def open_dataset(store: Store | Path | str, key: str) -> xr.Dataset:
    """A pool, or samples, with named dimensions.

    Dimensions are ``prompt`` and ``candidate``; of samples ``prompt`` and ``kept``, in the order in which they were
    chosen. Variables are the rewards, called ``name@version``, float32: NaN where a candidate is invalid or was not
    computed. Coordinates:

    * ``prompt``: its key. ``text`` and ``metadata`` (JSON), where they were noted.
    * ``candidate``: its index; of samples [prompt, kept], -1 where a prompt was left out.
    * ``seed``: of its noise, uint64.
    * ``computed``: every reward was; ``valid``: and every one is finite.
    * ``seconds``: of a device, its share of its block.

    Attributes are ``kind``, ``key`` and everything in the spec, by dotted names. All these are in memory: 4 bytes a
    candidate and reward, at most 26 bytes a candidate besides, and the texts. Images, thumbnails, features
    (``features/name@version``), latents and paths are read when they are asked for, block by block, verified, and only
    as much as is asked for; what is not there is 0 in pictures and NaN elsewhere.

    Samples do not know their prompts. Where the pool that they were chosen from is in the store, it tells; otherwise
    prompts are numbered, and there are no seeds.

    Args:
        store: a store, or the folder or bucket of one.
        key: of the pool or the samples, or the beginning of it.

    Raises:
        StoreError: there is no store; nothing, or several objects, have such a key; or its spec cannot be read.
    """
    opened = store if isinstance(store, Store) else Store(place_of(store))
    contents = Contents.find(opened, key)
    return _dataset(contents, _labels(opened, contents))


def write_parquet(store: Store | Path | str, key: str, path: Path) -> int:
    """Write the table of a pool or of samples: one row a prompt and candidate, prompts one after the other.

    Columns: ``prompt``, ``text``, ``metadata``, ``candidate``, ``seed``, ``computed``, ``valid``, ``seconds``, and one
    for each reward, called ``name@version``: null where it was not computed, NaN where the candidate is invalid. The
    metadata of the schema has ``solrl.kind``, ``solrl.key`` and ``solrl.spec`` (JSON). What is there under that name is
    replaced, in one step.

    Returns:
        The number of rows.

    Raises:
        StoreError: see ``open_dataset``.
        OSError: the file cannot be written.
    """
    opened = store if isinstance(store, Store) else Store(place_of(store))
    contents = Contents.find(opened, key)
    labels = _labels(opened, contents)
    schema = _schema(contents)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    rows = 0
    try:
        with parquet.ParquetWriter(temporary, schema) as writer:
            for table in _tables(contents, labels, schema):
                writer.write_table(table)
                rows += table.num_rows
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return rows


class _Labels(NamedTuple):
    """What names rows and columns.

    Attributes:
        keys: of the prompts; None where they are not known.
        texts, metadata: of the prompts; None where they were not noted.
        candidates: int64 [P, columns]; -1 where a prompt was left out.
        seeds: uint64 [P, columns]; None where prompts are not known.
    """

    keys: tuple[str, ...] | None
    texts: tuple[str, ...] | None
    metadata: tuple[str, ...] | None
    candidates: NDArray[np.int64]
    seeds: NDArray[np.uint64] | None


def _labels(store: Store, contents: Contents) -> _Labels:
    indices = contents.indices
    candidates = np.tile(np.arange(contents.columns), (contents.rows, 1)) if indices is None else indices
    pool, rows = (contents, range(contents.rows)) if indices is None else _origin(store, contents, candidates)
    if pool is None or pool.prompt_keys is None:
        return _Labels(None, None, None, candidates, None)
    keys = tuple(pool.prompt_keys[row] for row in rows)
    prompts = pool.prompts()
    noted = None if prompts is None else [prompts[row] for row in rows]
    return _Labels(
        keys,
        None if noted is None else tuple(str(one["text"]) for one in noted),
        None if noted is None else tuple(canonical_json(one["metadata"]) for one in noted),
        candidates,
        _seeds(int(pool.spec["exploration_seed"]), keys, candidates),
    )


def _origin(store: Store, samples: Contents, indices: NDArray[np.int64]) -> tuple[Contents | None, range]:
    """The pool that samples were chosen from, and which of its rows they are: whole, or the first ones of an audit."""
    for key in keys_of(store, "pools"):
        try:
            pool = Contents.load(store, "pools", key)
        except (DamagedError, MissingObjectError):
            continue
        keys = pool.prompt_keys or ()
        if len(keys) >= samples.rows and samples.spec.get("selection") == digest(
            {
                "policy": pool.spec["policy"],
                "exploration_seed": pool.spec["exploration_seed"],
                "prompts": list(keys[: samples.rows]),
                "indices": indices.tolist(),
            }
        ):
            return pool, range(samples.rows)
    return None, range(0)


def _seeds(exploration_seed: int, keys: Sequence[str], candidates: NDArray[np.int64]) -> NDArray[np.uint64]:
    seeds = np.zeros(candidates.shape, dtype=np.uint64)
    for row, column in np.ndindex(candidates.shape):
        if candidates[row, column] >= 0:
            seeds[row, column] = candidate_seed(exploration_seed, keys[row], int(candidates[row, column]))
    return seeds


def _dataset(contents: Contents, labels: _Labels) -> xr.Dataset:
    column = "candidate" if contents.indices is None else "kept"
    both = ("prompt", column)
    rewards = {name: contents.values(reward_array(name)) for name in contents.rewards}
    computed, valid = _masks(contents, rewards)
    coordinates: dict[str, Any] = {
        "prompt": list(range(contents.rows)) if labels.keys is None else list(labels.keys),
        "candidate": labels.candidates[0] if column == "candidate" else (both, labels.candidates),
        "computed": (both, computed),
        "valid": (both, valid),
        "seconds": (both, contents.seconds(), {"units": "s", "long_name": "device-seconds"}),
    }
    for name, values in (("text", labels.texts), ("metadata", labels.metadata)):
        if values is not None:
            coordinates[name] = ("prompt", np.asarray(values, dtype=object))
    if labels.seeds is not None:
        coordinates["seed"] = (both, labels.seeds)
    variables: dict[str, Any] = {name: (both, values) for name, (values, _) in rewards.items()}
    variables |= {name: _lazy(contents, name, both) for name in contents.arrays if _is_large(name)}
    about = {"kind": contents.kind, "key": contents.key, **dict(_dotted(contents.spec))}
    return xr.Dataset(variables, coordinates, about)


def _is_large(name: str) -> bool:
    return name in ITEM_DIMENSIONS or name.startswith(f"{FEATURES}/")


def _masks(
    contents: Contents, rewards: Mapping[str, tuple[NDArray[Any], NDArray[np.bool_]]]
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    computed = np.full((contents.rows, contents.columns), bool(rewards))
    valid = computed.copy()
    for values, done in rewards.values():
        computed &= done
        valid &= done & np.isfinite(values)
    return computed, valid


def _dotted(tree: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from _dotted(value, f"{above}{name}.")
        elif name != "kind" or above:
            yield f"{above}{name}", value


def _lazy(contents: Contents, name: str, dimensions: tuple[str, str]) -> xr.Variable:
    named = ITEM_DIMENSIONS.get(name, (name.removeprefix(f"{FEATURES}/"),))
    return xr.Variable((*dimensions, *named), indexing.LazilyIndexedArray(_Blocks(contents, name)))


class _Blocks(BackendArray):
    """An array that is read block by block."""

    def __init__(self, contents: Contents, name: str) -> None:
        item, self.dtype = contents.form(name)
        self.shape = (contents.rows, contents.columns, *item)
        self._contents = contents
        self._name = name

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.OUTER, self._read)

    def _read(self, key: tuple[Any, ...]) -> NDArray[Any]:
        rows, columns = (np.atleast_1d(np.arange(self.shape[axis])[key[axis]]) for axis in (0, 1))
        out = np.full((len(rows), len(columns), *self.shape[2:]), _missing(self.dtype), dtype=self.dtype)
        chunk = self._contents.chunk
        for place, row in enumerate(rows.tolist()):
            for index in np.unique(columns // chunk).tolist():
                block = self._contents.block(self._name, row, index)
                if block is not None:
                    here = np.flatnonzero(columns // chunk == index)
                    out[place, here] = block[columns[here] % chunk]
        # From the last axis on: a number takes its axis away.
        for axis in reversed(range(2, len(self.shape))):
            out = out[(slice(None),) * axis + (key[axis],)]
        for axis in (1, 0):
            if np.ndim(np.arange(self.shape[axis])[key[axis]]) == 0:
                out = out.take(0, axis=axis)
        return out


def _missing(dtype: np.dtype[Any]) -> Any:
    return np.nan if dtype.kind == "f" else 0


def _schema(contents: Contents) -> Any:
    fields = [
        ("prompt", arrow.string()),
        ("text", arrow.string()),
        ("metadata", arrow.string()),
        ("candidate", arrow.int64()),
        ("seed", arrow.uint64()),
        ("computed", arrow.bool_()),
        ("valid", arrow.bool_()),
        ("seconds", arrow.float64()),
        *((name, arrow.float32()) for name in contents.rewards),
    ]
    about = {
        "solrl.kind": contents.kind,
        "solrl.key": contents.key,
        "solrl.spec": json.dumps(contents.spec, sort_keys=True),
    }
    return arrow.schema(fields, metadata=about)


def _tables(contents: Contents, labels: _Labels, schema: Any) -> Iterator[Any]:
    """A table for each prompt that was not left out."""
    rewards = {name: contents.values(reward_array(name)) for name in contents.rewards}
    computed, valid = _masks(contents, rewards)
    seconds = contents.seconds()
    for row in np.flatnonzero((labels.candidates >= 0).all(axis=1)).tolist():
        columns: dict[str, Any] = {
            "prompt": [None if labels.keys is None else labels.keys[row]] * contents.columns,
            "text": [None if labels.texts is None else labels.texts[row]] * contents.columns,
            "metadata": [None if labels.metadata is None else labels.metadata[row]] * contents.columns,
            "candidate": labels.candidates[row],
            "seed": [None] * contents.columns if labels.seeds is None else labels.seeds[row],
            "computed": computed[row],
            "valid": valid[row],
            "seconds": seconds[row],
        }
        # From numpy, so that NaN stays what it is: not computed is null, invalid is NaN.
        columns |= {
            name: arrow.array(values[row], arrow.float32(), mask=~done[row]) for name, (values, done) in rewards.items()
        }
        yield arrow.table(columns, schema=schema)
