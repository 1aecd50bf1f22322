"""A store in a bucket: the same content under the same addresses as in a folder, and no more requests than needed."""

import json
import time
from pathlib import Path

import numpy as np
import pytest

from solrl_tasks.store import atomic, places
from solrl_tasks.store.bucket import Bucket
from solrl_tasks.store.errors import DamagedError, StoreError, UnreachableError
from solrl_tasks.store.gc import collect, plan_gc
from solrl_tasks.store.object_path import ObjectPath
from solrl_tasks.store.policies import find_policy, load_policy, save_policy
from solrl_tasks.store.pool import Pool, describe_pools
from solrl_tasks.store.root import Store
from solrl_tasks.store.runs import Run, list_runs, view_run
from solrl_tasks.store.samples import Samples
from solrl_tasks.store.selections import find_selection, save_selection
from tests.support.s3 import HUNG, S3Server

SPEC = {"engine": "bf16", "steps": 6}
RECORD = {"hardware": "x"}
ROWS = ("a-0", "b-0", "c-0")
CHUNK = 4
REWARD = "scene@1"


@pytest.fixture
def store(url: str) -> Store:
    return Store.open(url)


def values_of(block) -> np.ndarray:
    return (np.arange(CHUNK) + 10 * block.row + block.start).astype(np.float32)


def fill(store: Store, candidates: int = 8, images: bool = False) -> Pool:
    pool = Pool.open(store, SPEC, ROWS, CHUNK)
    with pool.lock("a test"):
        pool.ensure_columns(candidates)
        for block in pool.missing([REWARD], candidates, images=images):
            picture = np.full((CHUNK, 8, 8, 3), block.row, dtype=np.uint8) if images else None
            pool.write(block, {REWARD: values_of(block)}, picture, 1.5, RECORD)
    return pool


def objects(store: Store) -> dict[str, bytes]:
    assert isinstance(store.root, ObjectPath)
    return {entry.key: store.root.bucket.get(entry.key).data for entry in store.root.entries()}


def files(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def compared(found: dict[str, bytes]) -> dict[str, bytes]:
    """Without locks and marks, which hold times."""
    return {name: data for name, data in found.items() if not name.startswith("locks/") and "/ledger/c/" not in name}


def test_bucket_and_folder_hold_the_same_bytes_under_the_same_names(store: Store, tmp_path: Path):
    local = Store.open(tmp_path / "local")
    for one in (store, local):
        pool = fill(one, images=True)
        save_selection(one, {"pool": pool.key}, np.array([[0, 1], [2, 3], [4, 5]]), {})
        save_policy(one, {"policy": 1}, {}, {"step": 3}, {"seconds": 2.0})
    assert compared(objects(store)) == compared(files(tmp_path / "local"))
    names = [{name for name in one if "locks/" not in name} for one in (objects(store), files(tmp_path / "local"))]
    assert names[0] == names[1]


def test_a_pool_comes_back_and_its_digest_is_that_of_a_folder(store: Store, tmp_path: Path):
    pool, local = fill(store), fill(Store.open(tmp_path / "local"))
    again = Pool.load(Store(str(store.root)), pool.key)
    assert again.digest([REWARD], 8) == local.digest([REWARD], 8)
    assert again.missing([REWARD], 8) == [] and again.columns == 8
    assert again.seconds([REWARD], 8) == pytest.approx(9.0)
    assert [info.filled for info in describe_pools(store)] == [{REWARD: 1.0}]
    assert list(again.records().values()) == [RECORD]


def test_a_pool_grows_and_only_the_new_part_is_missing(store: Store):
    fill(store, candidates=4)
    pool = Pool.open(store, SPEC, ROWS, CHUNK)
    with pool.lock():
        pool.ensure_columns(12)
        assert [(b.row, b.index) for b in pool.missing([REWARD], 12)] == [(r, i) for r in range(3) for i in (1, 2)]


def test_a_block_costs_two_requests_for_each_array(store: Store):
    pool = Pool.open(store, SPEC, ROWS, CHUNK)
    bucket = store.root.bucket
    with pool.lock("a test"):
        pool.ensure_columns(64)
        blocks = pool.missing([REWARD], 64)
        pool.write(blocks[0], {REWARD: values_of(blocks[0])}, None, 1.0, RECORD)
        before = bucket.requests.total()
        for block in blocks[1:]:
            pool.write(block, {REWARD: values_of(block)}, None, 1.0, RECORD)
        assert bucket.requests.total() - before <= 2 * (len(blocks) - 1) + 12


def test_marks_and_values_known_from_before_cost_listings_only(store: Store):
    pool = fill(store, candidates=64)
    pool.digest([REWARD], 64)
    bucket = store.root.bucket
    before = bucket.requests.copy()
    assert pool.missing([REWARD], 64) == []
    pool.digest([REWARD], 64)
    assert bucket.requests["put"] == before["put"]
    asked = bucket.requests.total() - before.total()
    assert asked <= 20, bucket.requests - before


@pytest.mark.parametrize("part", ["values", "ledger"])
def test_a_changed_chunk_is_found(store: Store, part: str):
    pool = fill(store)
    path = store.folder("pools") / pool.key / "data.zarr" / "rewards" / REWARD / part / "c" / "1" / "0"
    path = path / "0" if part == "ledger" else path
    data = bytearray(path.read_bytes())
    data[3] ^= 4
    atomic.write_bytes(path, bytes(data))
    assert [(block.row, block.index) for block in pool.missing([REWARD], 8)] == [(1, 0)]
    fill(store)
    assert pool.missing([REWARD], 8) == []


def test_what_a_killed_removal_left_is_still_true(store: Store):
    pool = fill(store)
    path = store.folder("pools") / pool.key
    (path / "spec.json").unlink()
    assert describe_pools(store) == []
    assert [item.key for item in plan_gc(store, -5.0)] == [pool.key]
    again = Pool.open(store, SPEC, ROWS, CHUNK)
    assert again.missing([REWARD], 8) == [] and not store.quarantine.exists()


def test_a_pool_with_a_damaged_spec_is_moved_aside_whole(store: Store):
    pool = fill(store)
    path = store.folder("pools") / pool.key
    names = {entry.key.removeprefix(path.key) for entry in path.entries()}
    atomic.write_bytes(path / "spec.json", b"{}")
    again = Pool.open(store, SPEC, ROWS, CHUNK)
    assert len(again.missing([REWARD], 8)) == 6
    aside = next(entry for entry in store.quarantine.iterdir() if not entry.name.endswith(".why.txt"))
    assert {entry.key.removeprefix(aside.key) for entry in aside.entries()} == names


def test_an_array_that_nobody_finished_is_made_anew(store: Store):
    pool = fill(store)
    array = store.folder("pools") / pool.key / "data.zarr" / "rewards" / REWARD
    (array / "zarr.json").unlink()
    assert len(pool.missing([REWARD], 8)) == 6
    fill(store)
    assert pool.missing([REWARD], 8) == [] and not store.quarantine.exists()


def test_whoever_may_only_read_is_told_by_his_own_clock(store: Store, monkeypatch: pytest.MonkeyPatch, caplog):
    bucket = Bucket(str(store.root))
    monkeypatch.setattr(bucket, "put", lambda *_: (_ for _ in ()).throw(StoreError("AccessDenied")))
    assert abs(bucket.now() - bucket.now()) < 1 and "the clock of this machine stands in" in caplog.text


def test_samples_come_back(store: Store):
    samples = Samples.open(store, {"of": 1}, np.array([[3, 1], [-1, -1]]), (2, 2, 2), 2)
    with samples.lock():
        for block in samples.missing([REWARD]):
            latents = np.ones((2, 2, 2, 2), dtype=np.float32)
            samples.write(block, latents, {REWARD: np.zeros(2, dtype=np.float32)}, None, 1.0, RECORD)
    assert Samples.load(store, samples.key).digest([REWARD]) == samples.digest([REWARD])
    assert samples.latents().shape == (2, 2, 2, 2, 2)


def test_a_policy_is_believed_only_with_its_manifest(store: Store):
    import torch

    ref = save_policy(store, {"p": 1}, {"current": {"w": torch.ones(3)}}, {"n": 1})
    assert load_policy(store, ref).tensors("current")["w"].tolist() == [1.0, 1.0, 1.0]
    (store.path(ref) / "manifest.json").unlink()
    assert find_policy(store, {"p": 1}) is None
    assert not store.quarantine.is_dir()
    assert save_policy(store, {"p": 1}, {"current": {"w": torch.ones(3)}}, {"n": 1}) == ref


def test_a_damaged_policy_is_moved_aside_and_made_again(store: Store):
    import torch

    ref = save_policy(store, {"p": 1}, {"current": {"w": torch.ones(3)}}, {"n": 1})
    atomic.write_bytes(store.path(ref) / "current.safetensors", b"damage")
    with pytest.raises(DamagedError, match="does not match"):
        load_policy(store, ref)
    assert find_policy(store, {"p": 1}) is None
    assert len([path for path in store.quarantine.iterdir() if path.name.endswith(".why.txt")]) == 1
    assert save_policy(store, {"p": 1}, {"current": {"w": torch.ones(3)}}, {"n": 1}) == ref


def test_a_damaged_copy_on_this_machine_is_fetched_again(store: Store):
    import torch

    ref = save_policy(store, {"p": 1}, {"current": {"w": torch.ones(3)}}, {"n": 1})
    copy = load_policy(store, ref).path("current")
    copy.write_bytes(bytes(len(copy.read_bytes())))
    assert load_policy(store, ref).tensors("current")["w"].tolist() == [1.0, 1.0, 1.0]


def test_a_run_is_held_listed_and_resumed(store: Store):
    with Run.open(store, "one", {"iterations": 2}) as run:
        run.journal.append({"stage": "explore", "seconds": 1.0, "iteration": 1})
        run.journal.append({"stage": "explore", "seconds": 1.0, "iteration": 1})
        run.commit_summary(0, {"a": 1})
        assert [(info.run_id, info.status, info.committed) for info in list_runs(store)] == [("one", "running", 1)]
    assert list_runs(store)[0].status == "interrupted"
    with Run.open(store, "one", {"iterations": 3}) as run:
        run.commit_summary(1, {"a": 2})
    view = view_run(store, "one")
    assert view.summaries() == {0: {"a": 1}, 1: {"a": 2}}
    assert view.journal.totals() == {"explore": 2.0}


def test_a_summary_is_committed_once(store: Store):
    with Run.open(store, "one", {"iterations": 2}) as run:
        run.commit_summary(0, {"a": 1})
        run.commit_summary(0, {"a": 1})
        with pytest.raises(StoreError, match="another summary"):
            run.commit_summary(0, {"a": 2})


def test_garbage_goes_and_what_is_used_stays(store: Store):
    pool = fill(store)
    kept = save_selection(store, {"pool": pool.key}, np.array([[0]]), {})
    with Run.open(store, "one", {"iterations": 2}) as run:
        run.note_ref(0, "select", kept)
        with pytest.raises(StoreError, match="in use"):
            collect(store, plan_gc(store, 0.0))
    plan = plan_gc(store, -5.0)
    assert [(item.kind, item.key) for item in plan] == [("pools", pool.key)]
    assert collect(store, plan) == plan[0].bytes
    assert find_selection(store, {"pool": pool.key}) is not None
    assert not (store.folder("pools") / pool.key).exists()
    assert plan_gc(store, 86400.0) == []


def test_a_prefix_that_holds_something_else_is_no_store(url: str):
    root = places.place_of(url)
    atomic.write_bytes(root / "notes.txt", b"mine")
    with pytest.raises(StoreError, match="not empty and not a store"):
        Store.open(url)
    with pytest.raises(StoreError, match="is not a store"):
        Store(url)


def test_a_server_that_ignores_conditions_is_refused(server: S3Server, url: str):
    server.lax = True
    with pytest.raises(StoreError, match=r"ignores If-None-Match and If-Match .*a folder"):
        Store.open(url)


def test_a_bucket_that_is_not_there_is_named(url: str):
    for call in (lambda b: b.get("x"), lambda b: b.put("x", b""), lambda b: b.below("x")):
        with pytest.raises(StoreError, match=r"s3://no-such-bucket/p at http.*NoSuchBucket.*check that the bucket"):
            call(Bucket("s3://no-such-bucket/p"))


@pytest.mark.parametrize("status", ["503 Slow Down", "500 Internal Server Error", "429 Too Many Requests"])
def test_errors_that_pass_are_waited_out(server: S3Server, store: Store, status: str):
    server.status, server.failing = status, 2
    atomic.write_bytes(store.root / "x", b"1")
    server.failing = 2
    assert (store.root / "x").read_bytes() == b"1"
    server.failing = 2
    assert store.root.bucket.create("y", b"1") is not None


def test_a_server_that_stays_away_is_an_error_for_people(server: S3Server, url: str):
    bucket = Bucket(url, patience=1.0)
    server.failing = 10**6
    with pytest.raises(UnreachableError, match=rf"{server.url}: no get of x \(status 503\); check SOLRL_STORE"):
        bucket.get("x")
    server.calm()
    server.hanging = 3.0
    with pytest.raises(UnreachableError, match="no put of x"):
        bucket.put("x", b"")


def test_a_pool_is_filled_though_answers_to_writes_are_lost(server: S3Server, store: Store, tmp_path: Path):
    """Sent again, a conditional write finds its own content there, and whoever holds the pool knows of it."""
    for server.deaf in (3, 4):
        fill(store, 4 * server.deaf - 8, images=True)
    server.deaf = 0
    local = Store.open(tmp_path / "local")
    for candidates in (4, 8):
        fill(local, candidates, images=True)
    assert compared(objects(store)) == compared(files(local.root))
    assert fill(store).digest([REWARD], 8) == fill(local).digest([REWARD], 8)


def test_a_request_that_is_not_answered_at_all_is_sent_once_more(server: S3Server, url: str):
    """A connection that died silently is no server that is gone; late, the first may still be carried out."""
    bucket = Bucket(url, patience=1.5)
    server.hung = 1
    etag = bucket.create("x", b"1")
    assert etag is not None and bucket.get("x").data == b"1"
    server.hung = 1
    assert bucket.get("x").data == b"1"
    server.hung = 1
    new = bucket.replace("x", b"2", etag)
    assert new is not None
    time.sleep(2 * HUNG - 1.5)
    assert bucket.replace("x", b"3", new) is not None
    server.hung = 1
    with pytest.raises(UnreachableError):
        bucket.hurried(1.0).get("x")


def test_a_refusal_names_what_to_check_and_no_secret(server: S3Server, url: str):
    server.status, server.failing = "403 Forbidden", 1
    with pytest.raises(StoreError, match="AWS_ACCESS_KEY_ID") as error:
        Bucket(url).get("x")
    assert "of-a-test" not in str(error.value)


def test_a_conditional_write_whose_answer_was_lost_counts(server: S3Server, store: Store):
    bucket = store.root.bucket
    assert bucket.create("x", b"1") == bucket.create("x", b"1")
    etag = bucket.create("x", b"1")
    assert bucket.create("x", b"2") is None
    new = bucket.replace("x", b"3", etag)
    assert new is not None and bucket.replace("x", b"3", etag) == new
    assert bucket.replace("x", b"4", etag) is None


@pytest.mark.parametrize("url_given", ["s3://", "s3://UPPER/x", "gs://bucket/x", "http://host/bucket"])
def test_other_urls_are_refused(url_given: str):
    with pytest.raises(StoreError, match="s3://bucket/prefix"):
        places.place_of(url_given)


@pytest.mark.parametrize("prefix", ["a//b", "../up", "a/./b", "a/.."])
def test_prefixes_that_no_folder_of_a_bucket_can_have_are_refused(prefix: str):
    with pytest.raises(StoreError, match=r"the prefix '.*' has a part that is empty, '\.' or '\.\.'.*name every part"):
        places.place_of(f"s3://bucket/{prefix}")


@pytest.mark.parametrize("prefix", ["a b/\u00fc \u00f1", "a%20b", "a+b", "\u65e5\u672c", "a&b=c", "~t"])
def test_prefixes_with_other_letters_are_as_good_as_any(url: str, prefix: str):
    store = Store.open(f"{url}/{prefix}")
    key = fill(store).key
    assert [path.name for path in Store(f"{url}/{prefix}").folder("pools").iterdir()] == [key]


def test_plain_http_elsewhere_needs_leave(url: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://minio.example:9000")
    with pytest.raises(StoreError, match="AWS_ALLOW_HTTP"):
        Bucket(url).get("x")


def test_nothing_in_the_bucket_holds_a_secret(store: Store):
    fill(store)
    with Run.open(store, "one", {"iterations": 1}):
        pass
    assert not [key for key, data in objects(store).items() if b"of-a-test" in data]


def test_journal_entries_are_sent_once(store: Store):
    with Run.open(store, "one", {"iterations": 1}) as run:
        run.journal.append({"stage": "update", "seconds": 2.0})
    path = next(store.runs.rglob("*-*.json"))
    assert json.loads(path.read_bytes())["seconds"] == 2.0
    atomic.write_bytes(path, b"torn")
    assert run.journal.entries() == []
