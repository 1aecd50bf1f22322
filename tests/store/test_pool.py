"""Pools: what is done is known block by block, and nothing damaged is ever taken for done."""

import shutil

import numpy as np
import pytest

from solrl_tasks.store import errors
from solrl_tasks.store.pool import Pool, describe_pools
from solrl_tasks.store.root import Store

ROWS = ("aa-0", "bb-0", "cc-0")
CHUNK = 4
SPEC = {"engine": "fake", "steps": 6, "prompts": "abc"}
RECORD = {"libraries": {"torch": "1"}, "threads": 2}
A, B = "soft@1", "strict@2"


def truth(name: str, row: int, start: int, stop: int) -> np.ndarray:
    columns = np.arange(start, stop)
    values = (columns * 0.25 + row + len(name)).astype(np.float32)
    values[columns % 7 == 3] = np.nan
    return values


def picture(row: int, start: int, stop: int) -> np.ndarray:
    values = np.arange(start, stop, dtype=np.uint8)[:, None, None, None] + np.uint8(row * 50)
    return np.broadcast_to(values, (stop - start, 8, 8, 3)).copy()


def fill(pool: Pool, rewards, candidates, images=False, seconds=1.0, record=RECORD, limit=None):
    with pool.lock("test"):
        pool.ensure_columns(candidates)
        todo = pool.missing(rewards, candidates, images)
        for block in todo[:limit]:
            values = {name: truth(name, block.row, block.start, block.stop) for name in block.missing}
            shown = picture(block.row, block.start, block.stop) if block.images_missing else None
            pool.write(block, values, shown, seconds, record)
    return todo


def expected(name: str, candidates: int) -> np.ndarray:
    return np.stack([truth(name, row, 0, candidates) for row in range(len(ROWS))])


def open_pool(store: Store, **kwargs) -> Pool:
    return Pool.open(store, SPEC, ROWS, CHUNK, **kwargs)


def test_a_new_pool_lacks_everything_in_order(store):
    pool = open_pool(store)
    todo = pool.missing([A], 12)
    assert [(b.row, b.index, b.start, b.stop) for b in todo] == [
        (row, index, index * 4, index * 4 + 4) for row in range(3) for index in range(3)
    ]
    assert all(b.missing == (A,) and b.needs_sampling for b in todo)


def test_values_come_back_bit_for_bit_and_another_process_finds_them(store):
    fill(open_pool(store), [A], 12)
    again = open_pool(Store(store.root))
    assert again.missing([A], 12) == []
    assert again.rewards(A, 12).tobytes() == expected(A, 12).tobytes()
    assert again.rewards(A, 9).shape == (3, 9)


def test_the_tail_block_is_whole(store):
    pool = open_pool(store)
    assert len(fill(pool, [A], 9)) == 9
    assert pool.missing([A], 12) == []


def test_more_candidates_lack_only_the_new_ones(store):
    pool = open_pool(store)
    fill(pool, [A], 8)
    before = pool.digest([A], 8)
    todo = fill(pool, [A], 16)
    assert {b.index for b in todo} == {2, 3}
    assert pool.digest([A], 8) == before
    assert pool.rewards(A, 16).tobytes() == expected(A, 16).tobytes()


def test_a_new_reward_over_kept_images_needs_no_sampling(store):
    pool = open_pool(store)
    fill(pool, [A], 8, images=True)
    todo = pool.missing([A, B], 8, images=True)
    assert len(todo) == 6
    assert all(b.missing == (B,) and not b.needs_sampling for b in todo)
    assert not any(b.needs_sampling for b in pool.missing([B], 8))


def test_a_new_reward_without_images_needs_sampling(store):
    pool = open_pool(store)
    fill(pool, [A], 8)
    assert all(b.needs_sampling and b.missing == (B,) for b in pool.missing([A, B], 8))


def test_images_asked_for_later_need_sampling(store):
    pool = open_pool(store)
    fill(pool, [A], 8)
    todo = pool.missing([A], 8, images=True)
    assert len(todo) == 6
    assert all(b.images_missing and not b.missing and b.needs_sampling for b in todo)
    fill(pool, [A], 8, images=True)
    assert np.array_equal(pool.images(1, [5, 2]), np.stack([picture(1, 5, 6)[0], picture(1, 2, 3)[0]]))


def test_images_that_are_not_kept_are_refused(store):
    pool = open_pool(store)
    fill(pool, [A], 8)
    with pytest.raises(errors.IncompleteError, match="images of row 0, columns 0 to 3"):
        pool.images(0, [1])


def test_an_invalid_candidate_is_done_and_counted(store):
    pool = open_pool(store)
    fill(pool, [A], 12)
    assert pool.invalid(A, 12).tolist() == [2, 2, 2]
    assert pool.missing([A], 12) == []


def test_an_all_invalid_block_is_done(store):
    pool = open_pool(store)
    with pool.lock():
        pool.ensure_columns(4)
        for block in pool.missing([A], 4):
            pool.write(block, {A: np.full(4, np.nan, np.float32)}, None, 1.0, RECORD)
    assert open_pool(store).missing([A], 4) == []
    assert pool.invalid(A, 4).tolist() == [4, 4, 4]


def test_unfinished_rewards_are_refused_with_the_blocks_named(store):
    pool = open_pool(store)
    fill(pool, [A], 12, limit=4)
    with pytest.raises(errors.IncompleteError, match=r"not done in 5 of 9 blocks: \(row 1, columns 4 to 7\)"):
        pool.rewards(A, 12)
    with pytest.raises(errors.IncompleteError):
        pool.rewards(B, 12)


def test_writing_needs_the_lock(store):
    pool = open_pool(store)
    block = pool.missing([A], 4)[0]
    with pytest.raises(errors.NotLockedError, match="lock"):
        pool.write(block, {A: truth(A, 0, 0, 4)}, None, 1.0, RECORD)
    with pytest.raises(errors.NotLockedError):
        pool.ensure_columns(4)


@pytest.mark.parametrize("values", [np.zeros(3, np.float32), np.zeros(4, np.float64), np.zeros((4, 1), np.float32)])
def test_wrong_shapes_and_types_are_refused(store, values):
    pool = open_pool(store)
    with pool.lock():
        pool.ensure_columns(4)
        block = pool.missing([A], 4)[0]
        with pytest.raises((ValueError, TypeError)):
            pool.write(block, {A: values}, None, 1.0, RECORD)
    assert len(pool.missing([A], 4)) == 3


def test_columns_that_are_not_made_are_refused(store):
    pool = open_pool(store)
    with pool.lock():
        pool.ensure_columns(4)
        block = pool.missing([A], 8)[1]
        with pytest.raises(ValueError, match="ensure_columns"):
            pool.write(block, {A: truth(A, 0, 4, 8)}, None, 1.0, RECORD)


@pytest.mark.parametrize("name", ["plain", "a/b@1", "../x@1", ".hidden@1", "@1", ""])
def test_reward_names_that_could_leave_the_pool_are_refused(store, name):
    with pytest.raises(ValueError, match="name@version"):
        open_pool(store).missing([name], 4)


def test_what_is_done_is_not_written_again(store, caplog):
    pool = open_pool(store)
    fill(pool, [A], 4)
    with pool.lock():
        pool.ensure_columns(4)
        block = pool.missing([B], 4)[0]
        pool.write(block, {A: truth(A, 0, 0, 4), B: truth(B, 0, 0, 4)}, None, 1.0, RECORD)
        assert "differently" not in caplog.text
        block = pool.missing([B], 4)[0]
        pool.write(block, {A: truth(A, 1, 0, 4) + 5, B: truth(B, 1, 0, 4)}, None, 1.0, RECORD)
    assert "came out differently" in caplog.text
    assert pool.rewards(A, 4).tobytes() == expected(A, 4).tobytes()


def test_the_digest_is_of_values_not_of_order_time_or_cost(store, tmp_path):
    one, other = open_pool(store), open_pool(Store.open(tmp_path / "other"))
    fill(one, [A, B], 8, seconds=1.0)
    with other.lock():
        other.ensure_columns(16)
        for block in reversed(other.missing([B, A], 16)):
            values = {name: truth(name, block.row, block.start, block.stop) for name in (B, A)}
            other.write(block, values, picture(block.row, block.start, block.stop), 7.0, RECORD)
    assert one.digest([A, B], 8) == other.digest([B, A], 8)
    assert one.digest([A], 8) != one.digest([A, B], 8) != one.digest([A, B], 4)
    assert one.ref([A], 8).path == f"pools/{one.key}"


def test_seconds_count_a_computation_once_and_only_what_is_asked_for(store):
    pool = open_pool(store)
    fill(pool, [A, B], 8, images=True, seconds=2.0)
    assert pool.seconds([A, B], 8) == pytest.approx(12.0)
    assert pool.seconds([A], 8) == pytest.approx(12.0)
    assert pool.seconds([A], 4) == pytest.approx(6.0)
    fill(pool, ["third@1"], 8, seconds=0.5)
    assert pool.seconds([A], 8) == pytest.approx(12.0)
    assert pool.seconds([A, "third@1"], 8, images=True) == pytest.approx(15.0)


def test_another_environment_is_refused_unless_compatible(store):
    fill(open_pool(store), [A], 8, limit=2)
    newer = {"libraries": {"torch": "2"}, "threads": 2}
    pool = open_pool(store)
    with pytest.raises(errors.RecordMismatchError, match=r"libraries\.torch: '1' -> '2'.*reuse: compatible"):
        pool.admit(newer, pool.missing([A], 8))
    with pytest.raises(errors.RecordMismatchError):
        fill(pool, [A], 8, record=newer)
    mixed = open_pool(store, reuse="compatible")
    fill(mixed, [A], 8, record=newer)
    assert sorted(r["libraries"]["torch"] for r in mixed.records().values()) == ["1", "2"]
    assert describe_pools(store)[0].records == 2


def test_a_pool_of_a_gpu_goes_on_beside_another_number_of_threads(store):
    gpu = {"libraries": {"torch": "1"}, "device_class": "sm_90", "threads": 32}
    fill(open_pool(store), [A], 8, limit=1, record=gpu)
    fill(open_pool(store), [A], 8, record={**gpu, "threads": 1})
    assert open_pool(store).missing([A], 8) == []
    with pytest.raises(errors.RecordMismatchError, match="device_class"):
        fill(open_pool(store), [A, B], 12, record={**gpu, "device_class": "sm_100"})


def test_another_environment_may_read_and_may_score_kept_images(store):
    fill(open_pool(store), [A], 8, images=True)
    newer = {"libraries": {"torch": "2"}, "threads": 2}
    pool = open_pool(store)
    assert pool.missing([A], 8) == []
    fill(pool, [B], 8, limit=1, record=newer)
    with pytest.raises(errors.RecordMismatchError):
        fill(pool, [B], 8, record=RECORD)
    fill(pool, [B], 8, record=newer)
    assert pool.missing([A, B], 8) == []


def test_the_same_spec_with_other_rows_or_chunk_is_an_error(store):
    open_pool(store)
    with pytest.raises(errors.StoreError, match="rows"):
        Pool.open(store, SPEC, ROWS[:2], CHUNK)
    with pytest.raises(errors.StoreError, match="chunk: 4 -> 8"):
        Pool.open(store, SPEC, ROWS, 8)


def test_another_spec_is_another_pool(store):
    pool = open_pool(store)
    fill(pool, [A], 8)
    other = Pool.open(store, {**SPEC, "steps": 4}, ROWS, CHUNK)
    assert other.key != pool.key
    assert len(other.missing([A], 8)) == 6


def test_a_deleted_pool_is_missing_and_can_be_filled_again(store):
    pool = open_pool(store)
    fill(pool, [A], 8)
    shutil.rmtree(store.root / "pools" / pool.key)
    assert len(fill(open_pool(store), [A], 8)) == 6


def test_a_pool_is_what_its_name_says_and_lies_in_the_store(store, tmp_path):
    pool = open_pool(store)
    fill(pool, [A], 4)
    folder = store.folder("pools") / pool.key
    shutil.copytree(folder, store.folder("pools") / ("f" * 24))
    shutil.copytree(folder, tmp_path / "elsewhere")
    shutil.copytree(folder, store.folder("pools") / f"{pool.key} (copy)")
    for other in ("f" * 24, f"{pool.key} (copy)", str(tmp_path / "elsewhere"), f"{pool.key}/../{pool.key}"):
        with pytest.raises(errors.DamagedError, match="it belongs to another key"):
            Pool.load(store, other)
    assert [info.key for info in describe_pools(store)] == [pool.key]


def test_a_moved_store_still_resolves(store, tmp_path):
    pool = open_pool(store)
    fill(pool, [A], 8)
    ref = pool.ref([A], 8)
    store.root.rename(tmp_path / "elsewhere")
    moved = Store(tmp_path / "elsewhere")
    assert moved.path(ref).is_dir()
    assert Pool.load(moved, ref).ref([A], 8) == ref


def test_listings_show_what_is_filled(store):
    pool = open_pool(store)
    fill(pool, [A], 8)
    fill(pool, [B], 8, limit=3)
    (info,) = describe_pools(store)
    assert (info.key, info.rows, info.candidates, info.chunk) == (pool.key, 3, 8, 4)
    assert info.filled == {A: 1.0, B: 0.5}
    assert info.partial and info.records == 1 and info.bytes > 100 and info.spec == SPEC


def test_an_empty_pool_is_listed_as_partial(store):
    open_pool(store)
    (info,) = describe_pools(store)
    assert info.filled == {} and info.candidates == 0 and info.partial
