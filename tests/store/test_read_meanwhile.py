"""A pool that is packed, or removed, by another process while it is read: the reader has all of it, or is told."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet
import pytest

from solrl_tasks.frames import open_dataset, write_parquet
from solrl_tasks.store.arrays import BlockArray
from solrl_tasks.store.block_folder import BlockFolder
from solrl_tasks.store.contents import Contents
from solrl_tasks.store.errors import MissingObjectError
from solrl_tasks.store.gc import collect, plan_gc
from solrl_tasks.store.packing import pack
from solrl_tasks.store.pool import Pool, describe_pools
from solrl_tasks.store.root import Store

A = "soft@1"
ROWS, COLUMNS, CHUNK = ("k-0", "k-1"), 8, 4


@pytest.fixture(params=["folder", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    return Store.open(tmp_path / "store" if request.param == "folder" else request.getfixturevalue("url"))


def fill(store: Store) -> Pool:
    pool = Pool.open(store, {"name": "x", "exploration_seed": 1}, ROWS, CHUNK)
    with pool.lock():
        pool.ensure_columns(COLUMNS)
        for block in pool.missing([A], COLUMNS, images=True):
            values = np.arange(CHUNK, dtype=np.float32) + 100 * block.row + block.start
            pool.write(block, {A: values}, np.full((CHUNK, 8, 8, 3), block.row, np.uint8), 1.0, {"hardware": "x"})
    return pool


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any], str], None]:
    """Something that happens once, right after a reader has opened an array, or has read its ledger."""

    def at(happens: Callable[[], Any], moment: str) -> None:
        before, target = (
            (BlockFolder._open, (BlockFolder, "_open"))
            if moment == "open"
            else (BlockArray.entries, (BlockArray, "entries"))
        )

        def once(self: Any, *rest: Any) -> Any:
            found = before(self, *rest)
            if found is not None:
                monkeypatch.setattr(*target, before)
                happens()
            return found

        monkeypatch.setattr(*target, once)

    return at


READ = {
    "rewards": lambda store, key: Pool.load(store, key).digest([A], COLUMNS),
    "images": lambda store, key: Pool.load(store, key).images(1, range(COLUMNS)).tobytes(),
    "missing": lambda store, key: Pool.load(store, key).missing([A], COLUMNS, images=True),
    "marked": lambda store, key: Contents.load(store, "pools", key).marked("images").tolist(),
    "seconds": lambda store, key: Pool.load(store, key).seconds([A], COLUMNS, images=True),
    "records": lambda store, key: Pool.load(store, key).records(),
    "filled": lambda store, key: [pool.filled for pool in describe_pools(store)],
    "dataset": lambda store, key: open_dataset(store, key).load().to_dict(),
}


@pytest.mark.parametrize("moment", ["open", "entries"])
@pytest.mark.parametrize("read", READ)
def test_a_pool_that_is_packed_meanwhile_is_read_whole(place, meanwhile, read, moment):
    key = fill(place).key
    whole = READ[read](Store(place.root), key)
    reader = Store(place.root)
    meanwhile(lambda: pack(place, "pools", key), moment)
    np.testing.assert_equal(READ[read](reader, key), whole)


@pytest.mark.parametrize("moment", ["open", "entries"])
def test_a_table_of_a_pool_that_is_packed_meanwhile_has_every_value(place, meanwhile, tmp_path, moment):
    key = fill(place).key
    meanwhile(lambda: pack(place, "pools", key), moment)
    assert write_parquet(Store(place.root), key, tmp_path / "x.parquet") == len(ROWS) * COLUMNS
    assert parquet.read_table(tmp_path / "x.parquet")[A].null_count == 0


@pytest.mark.parametrize("moment", ["open", "entries"])
def test_of_a_pool_that_is_removed_meanwhile_no_table_is_written(place, meanwhile, tmp_path, moment):
    key = fill(place).key
    meanwhile(lambda: collect(place, plan_gc(place, min_age_seconds=-60)), moment)
    with pytest.raises(MissingObjectError, match=f"pools/{key} was removed .* run again what makes it"):
        write_parquet(Store(place.root), key, tmp_path / "x.parquet")
    assert list(tmp_path.glob("*.parquet")) == []


def test_whoever_waited_for_the_store_while_a_pool_was_removed_fills_no_rest_of_it(place):
    opened = fill(place)
    loaded = Pool.load(place, opened.key)
    collect(place, plan_gc(place, min_age_seconds=-60))
    with pytest.raises(MissingObjectError, match="was removed"), loaded.lock():
        pass
    with opened.lock():
        assert len(opened.missing([A], COLUMNS)) == 4
    assert Pool.load(place, opened.key).spec == opened.spec
