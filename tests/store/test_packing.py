"""A packed pool is the pool: same digests, same blocks, and a kill leaves the old or the new one, whole."""

import signal

import numpy as np
import pytest

from solrl_tasks.store import errors, packing
from solrl_tasks.store.block_folder import BlockFolder
from solrl_tasks.store.contents import Contents
from solrl_tasks.store.pool import Pool, describe_pools
from solrl_tasks.store.root import Store
from solrl_tasks.store.samples import Samples
from tests.support.dying import die_at
from tests.support.killing import CONTEXT

A, B = "soft@1", "hard@2"
ROWS = tuple(f"k-{row}" for row in range(5))
SPEC = {"name": "x"}
COLUMNS, CHUNK = 12, 4


def values(block, offset=0.0):
    found = (np.arange(CHUNK) + 100 * block.row + block.start + offset).astype(np.float32)
    found[block.row % CHUNK] = np.nan
    return found


def fill(store, rewards=(A,), columns=COLUMNS, images=True):
    pool = Pool.open(store, SPEC, ROWS, CHUNK)
    with pool.lock():
        pool.ensure_columns(columns)
        for block in pool.missing(rewards, columns, images=images):
            made = {name: values(block, offset) for offset, name in enumerate(rewards) if name in block.missing}
            picture = np.full((CHUNK, 8, 8, 3), 7 * block.row + block.index, np.uint8)
            pool.write(block, made, picture if block.images_missing else None, 1.5, {"hardware": "x"})
    return pool


def facts(store, rewards=(A,)):
    """All that a reader can ask of the pool."""
    pool = Pool.load(store, Pool.open(store, SPEC, ROWS, CHUNK).key)
    pictures = [pool.images(row, range(COLUMNS)).tobytes() for row in range(len(ROWS))]
    return pool.digest(rewards, COLUMNS), pictures, pool.seconds(rewards, COLUMNS, images=True), pool.records()


@pytest.fixture
def packed(store):
    key = fill(store).key
    before = facts(store)
    return store, key, before, packing.pack(store, "pools", key)


def test_a_packed_pool_has_the_same_digest_in_fewer_files(packed):
    store, key, before, done = packed
    assert facts(store) == before
    assert done.packed == ("images", f"rewards/{A}") and done.before == done.large == ()
    assert done.files[1] < done.files[0] / 3
    assert not list((store.root / "pools" / key).rglob("*.tmp"))
    assert Pool.load(store, key).missing([A], COLUMNS, images=True) == []
    assert Store(store.root).format == 2
    assert [pool.filled for pool in describe_pools(store)] == [{"images": 1.0, A: 1.0}]


def test_packing_twice_changes_nothing(packed):
    store, key, before, done = packed
    again = packing.pack(store, "pools", key)
    assert again.packed == () and again.before == done.packed and again.files == (done.files[1],) * 2
    assert facts(store) == before


def test_a_packed_pool_grows_and_takes_rewards_like_any_other(packed, tmp_path):
    store, key, *_ = packed
    fill(store, (A, B), columns=20)
    plain = Store.open(tmp_path / "plain")
    fill(plain, (A, B), columns=20)
    one, two = (Pool.load(each, key) for each in (store, plain))
    assert one.digest([A, B], 20) == two.digest([A, B], 20)
    assert np.array_equal(one.images(3, range(20)), two.images(3, range(20)))
    again = packing.pack(store, "pools", key)
    assert again.packed == (f"rewards/{B}",)
    assert one.digest([A, B], 20) == two.digest([A, B], 20)


@pytest.mark.parametrize("where", ["begin", "middle", "end", "cut"])
@pytest.mark.parametrize(("array", "part"), [("images", "values"), (f"rewards/{A}", "values"), ("images", "ledger")])
def test_damage_of_a_shard_is_found_and_computed_again(packed, array, part, where):
    store, key, before, _ = packed
    below = (store.root / "pools" / key / "data.zarr" / array / "packed" / part / "c").rglob("*")
    shard = next(path for path in below if path.is_file())
    data = bytearray(shard.read_bytes())
    place = {"begin": 0, "middle": len(data) // 3, "end": len(data) - 1, "cut": 0}[where]
    data[place] ^= 0xFF
    shard.write_bytes(bytes(data[: len(data) // 2]) if where == "cut" else bytes(data))
    missing = Pool.load(store, key).missing([A], COLUMNS, images=True)
    assert missing, "it is never believed"
    fill(store)
    assert Pool.load(store, key).missing([A], COLUMNS, images=True) == []
    assert facts(store)[:2] == before[:2]


def test_samples_are_packed_too_rows_left_out_among_them(store):
    indices = np.array([[0, 1], [-1, -1], [3, 2]])
    found = Samples.open(store, {"s": 1}, indices, (2, 3, 3), 2)
    with found.lock():
        for block in found.missing([A]):
            latents = np.full((2, 2, 3, 3), block.row, np.float32)
            found.write(block, latents, {A: np.ones(2, np.float32)}, None, 1.0, {})
    before = found.digest([A])
    assert packing.pack(store, "samples", found.key).packed == ("latents", f"rewards/{A}")
    assert Samples.load(store, found.key).digest([A]) == before
    assert Contents.load(store, "samples", found.key).values("latents")[1].tolist() == [
        [True] * 2,
        [False] * 2,
        [True] * 2,
    ]


def test_shards_are_whole_rows_or_parts_of_one():
    most = packing.SHARD_BYTES
    assert packing.shard_of(1000, 12, 96) == (1000, 12)
    assert packing.shard_of(1000, 4, most // 16) == (4, 4)
    assert packing.shard_of(1000, 12, most // 3) == (1, 3)
    assert packing.shard_of(3, 2, 2 * most) == (1, 1)


def test_blocks_that_fill_a_file_stay_as_they_are(store, monkeypatch):
    key = fill(store).key
    before = facts(store)
    monkeypatch.setattr(packing, "SHARD_BYTES", 2 * CHUNK * 8 * 8 * 3 - 1)
    done = packing.pack(store, "pools", key)
    assert done.large == ("images",) and done.packed == (f"rewards/{A}",)
    assert facts(store) == before


def test_small_shards_hold_the_same(store, monkeypatch):
    key = fill(store).key
    before = facts(store)
    monkeypatch.setattr(packing, "SHARD_BYTES", 2 * CHUNK * 8 * 8 * 3)
    packing.pack(store, "pools", key)
    assert facts(store) == before


def test_what_is_not_finished_or_in_use_is_refused(store):
    pool = fill(store)
    with pool.lock(), pytest.raises(errors.LockedError, match="a pool is being filled"):
        packing.pack(store, "pools", pool.key)
    with pool.lock():
        pool.ensure_columns(16)
    with pytest.raises(errors.StoreError, match=r"not finished \(rewards/soft@1 lacks 5 of 20 blocks\)"):
        packing.pack(store, "pools", pool.key)
    with pytest.raises(errors.MissingObjectError):
        packing.pack(store, "pools", "a" * 24)


def test_damage_is_not_packed(store):
    key = fill(store).key
    chunk = next((store.root / "pools" / key / "data.zarr/rewards" / A / "values/c/2").rglob("1"))
    chunk.write_bytes(chunk.read_bytes()[:-1] + b"\x00")
    with pytest.raises(errors.StoreError, match=r"row 2, block 1 is damaged: run again"):
        packing.pack(store, "pools", key)
    assert not BlockFolder.load(store, "pools", key).array(f"rewards/{A}").packed


def test_a_packed_array_that_reads_back_differently_is_dropped(store, monkeypatch):
    key = fill(store).key
    before = facts(store)
    whole = packing._copy

    def bad(array, target):
        whole(array, target)
        shard = next(path for path in (target.root / "values" / "c").rglob("*") if path.is_file())
        shard.write_bytes(b"\x00" + shard.read_bytes()[1:])

    monkeypatch.setattr(packing, "_copy", bad)
    with pytest.raises(errors.StoreError, match="reads back differently"):
        packing.pack(store, "pools", key)
    assert facts(store) == before and not list(store.root.rglob("packed"))


def _pack_until(root, key, nth):
    """Pack in a child that dies at its nth change of the disk."""
    die_at(nth, ("replace", "rename", "fsync", "unlink", "rmdir", "mkdir"))
    packing.pack(Store(root), "pools", key)


def test_a_kill_leaves_the_old_or_the_new_pool_whole(tmp_path):
    store = Store.open(tmp_path / "store")
    key = fill(store).key
    before = facts(store)
    states, nth, ended = set(), 1, False
    while not ended:
        child = CONTEXT.Process(target=_pack_until, args=(store.root, key, nth))
        child.start()
        child.join(120)
        ended = child.exitcode == 0
        assert ended or child.exitcode == -signal.SIGKILL
        folder = BlockFolder.load(store, "pools", key)
        states.add(tuple(folder.array(name).packed for name in folder.names()))
        assert facts(store) == before
        assert Pool.load(store, key).missing([A], COLUMNS, images=True) == []
        nth += 9
    assert states == {(False, False), (True, False), (True, True)}
    packing.pack(store, "pools", key)
    assert facts(store) == before
    plain = [path for path in store.root.rglob("values") if path.parent.name != "packed"]
    assert plain == [] and not list(store.root.rglob("*.tmp"))
