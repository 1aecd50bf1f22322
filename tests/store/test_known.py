"""What is remembered of a bucket: only what cannot change, only while the store is in use, and never too much."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from solrl_tasks.store import atomic, leases
from solrl_tasks.store.bucket import Bucket
from solrl_tasks.store.bucket_objects import Entry, Listing
from solrl_tasks.store.errors import DamagedError, IncompleteError, LockedError, MissingObjectError
from solrl_tasks.store.gc import collect, plan_gc
from solrl_tasks.store.known import Known
from solrl_tasks.store.object_path import ObjectPath
from solrl_tasks.store.pool import Pool
from solrl_tasks.store.root import Store
from solrl_tasks.store.runs import Run, view_run
from solrl_tasks.store.selections import find_selection, load_selection, save_selection
from tests.support.request_counts import Request, counted

LEASE = 4.0
ROWS = ("a-0", "b-0")
REWARD, OTHER = "scene@1", "strict@1"
INDICES = np.array([[0, 1], [2, 3]])


class Guard:
    """One that is told whether it is sure."""

    sure = True


@pytest.fixture
def store(url: str) -> Store:
    """The store as this process has it open."""
    return Store.open(url)


@pytest.fixture
def other(store: Store) -> Store:
    """The same store as another process has it open: it remembers what it has seen itself."""
    return Store(ObjectPath(Bucket(str(store.root))))


def fill(store: Store, rewards=(REWARD,), candidates: int = 8, most: int = 100) -> Pool:
    pool = Pool.open(store, {"engine": "bf16"}, ROWS, 4)
    with pool.lock("a test"):
        pool.ensure_columns(candidates)
        for block in pool.missing(rewards, candidates)[:most]:
            values = (np.arange(4) + 10 * block.row + block.start).astype(np.float32)
            pool.write(block, dict.fromkeys(block.missing, values), None, 1.0, {"hardware": "x"})
    return pool


def verbs(requests: list[Request]) -> list[str]:
    return sorted(request.verb for request in requests)


# The memory by itself.


def test_nothing_is_remembered_without_a_guard_or_under_one_that_is_not_sure():
    known, guard = Known(), Guard()
    known.settle("a", b"1", known.since)
    assert not known.trusted and known.settled("a") is None
    known.trust(guard)
    known.settle("a", b"1", known.since)
    assert known.settled("a") == b"1"
    guard.sure = False
    assert known.settled("a") is None and known.held == 0
    guard.sure = True
    assert known.settled("a") is None and not known.trusted


def test_what_was_asked_before_everything_was_forgotten_is_not_remembered():
    known = Known()
    known.trust(Guard())
    since, listing = known.since, Listing("a", known.since)
    known.forget()
    known.settle("a", b"1", since)
    known.keep(listing)
    assert known.settled("a") is None and known.listing("a") is None


def test_it_is_bounded_in_bytes():
    known = Known(settled=1000, listings=10_000)
    known.trust(Guard())
    for number in range(100):
        known.settle(f"{number}", bytes(100), known.since)
        listing = Listing(f"folder {number}", known.since)
        listing.fill(Entry(f"folder {number}/{name}", 1, "tag", 0.0) for name in range(number % 20))
        known.keep(listing)
        assert known.held <= 11_000
    assert known.settled("99") is not None and known.settled("0") is None


def test_a_part_of_it_is_forgotten():
    known = Known()
    known.trust(Guard())
    for key in ("a/b/c", "a/bb"):
        known.settle(key, b"1", known.since)
    known.keep(Listing("a/b", known.since))
    assert known.drop_below("a/b") and not known.drop_below("a/b")
    assert known.settled("a/b/c") is None and known.listing("a/b") is None and known.settled("a/bb") == b"1"


def test_a_listing_is_kept_up_to_date_by_own_writes(store: Store):
    bucket = store.root.bucket
    bucket.put("x/a", b"1")
    listing = bucket.listing("x")
    bucket.put("x/b", b"22")
    bucket.put("xx/c", b"1")
    bucket.delete(["x/a"])
    assert [(entry.key, entry.size) for entry in listing.below("x")] == [("x/b", 2)]
    assert listing.find("x/b").etag == bucket.head("x/b").etag


def test_stamps_of_verified_blocks_are_bounded(store: Store):
    bucket = store.root.bucket
    for stamp in range(200_000):
        bucket.vouch(stamp)
    assert bucket.is_vouched(199_999) and not bucket.is_vouched(0)


# What cannot change is asked for once.


def test_what_is_finished_costs_no_request_while_the_store_is_in_use(store: Store):
    with store.in_use("a test"):
        pool = fill(store)
        ref = save_selection(store, {"pool": pool.key}, INDICES, {})
        load_selection(store, ref)
        with counted() as seen:
            again = Pool.open(store, {"engine": "bf16"}, ROWS, 4)
            again.rewards(REWARD, 8)
            again.digest([REWARD], 8)
            assert again.seconds([REWARD], 8) == 4.0
            assert load_selection(store, ref).indices.tolist() == INDICES.tolist()
        assert seen == []
    with counted() as seen:
        load_selection(store, ref)
    assert [request.verb for request in seen] == ["get", "list"]


def test_another_process_reads_a_pool_with_few_requests(store: Store, other: Store):
    key = fill(store, candidates=64).key
    with counted() as seen:
        Pool.load(other, key).rewards(REWARD, 64)
    # Spec, a listing, the metadata of two arrays, and 32 values and marks.
    assert verbs(seen) == ["get"] * (1 + 2 + 2 * 32) + ["list"]


# What can change is asked anew each time.


def test_that_something_is_not_there_is_never_remembered(store: Store, other: Store):
    with store.in_use("a test"), Run.open(other, "one", {"iterations": 1}) as run:
        view = view_run(store, "one")
        assert view.summary(0) is None and view.refs(0) == {}
        assert find_selection(store, {"of": 1}) is None
        with pytest.raises(MissingObjectError):
            Pool.load(store, "0" * 24)
        run.commit_summary(0, {"a": 1})
        ref = save_selection(other, {"of": 1}, INDICES, {})
        run.note_ref(0, "select", ref)
        assert view.summary(0) == {"a": 1} and view.refs(0) == {"select": ref}
        assert find_selection(store, {"of": 1}) is not None


def test_blocks_of_another_process_are_seen(store: Store, other: Store):
    with store.in_use("a test"):
        pool = fill(store, most=1)
        with pytest.raises(IncompleteError):
            pool.rewards(REWARD, 8)
        fill(other)
        assert np.isfinite(pool.rewards(REWARD, 8)).all()
        fill(other, candidates=16)
        assert np.isfinite(pool.rewards(REWARD, 16)).all()
        fill(other, rewards=(REWARD, OTHER), candidates=16)
        assert np.isfinite(pool.rewards(OTHER, 16)).all() and len(pool.arrays()) == 2
        with pool.lock():
            assert pool.missing([REWARD, OTHER], 16) == []


def test_references_and_leases_are_asked_for_each_time(store: Store):
    with Run.open(store, "one", {"iterations": 1}) as run:
        ref = save_selection(store, {"of": 1}, INDICES, {})
        view = view_run(store, "one")
        for name in ("a", "b", "c"):
            with counted() as seen:
                run.note_ref(0, name, ref)
            kinds = [(request.verb, request.kind) for request in seen]
            # Who holds the run is looked at before every write.
            assert kinds[0] == ("get", "runs/one/lock") and kinds[-1] == ("put", "runs/one/iterations/N/refs.json")
            with counted() as seen:
                assert view.refs(0)[name] == ref
            assert verbs(seen) == ["get"]


# Damage is told from the bucket, never from memory.


def test_whoever_opens_the_store_reads_it_and_not_the_memory(store: Store, other: Store):
    with store.in_use("a test"):
        ref = save_selection(store, {"of": 1}, INDICES, {})
        pool = fill(store)
        atomic.write_bytes(other.path(ref) / "manifest.json", b"damage")
        atomic.write_bytes(other.folder("pools") / pool.key / "spec.json", b"damage")
        # It is remembered as it was: nobody else may write it with another content.
        assert load_selection(store, ref).ref == ref
        again = Store.open(str(store.root))
        with pytest.raises(DamagedError):
            load_selection(again, ref)
        with pytest.raises(DamagedError):
            Pool.load(again, pool.key)


def test_a_chunk_that_changed_is_found_under_the_lock(store: Store, other: Store):
    with store.in_use("a test"):
        pool = fill(store)
        place = other.folder("pools") / pool.key / "data.zarr" / "rewards" / REWARD / "values" / "c" / "1" / "0"
        atomic.write_bytes(place, bytes(20))
        with pool.lock():
            assert [(block.row, block.index) for block in pool.missing([REWARD], 8)] == [(1, 0)]


def test_what_another_made_anew_is_not_taken_for_damage(store: Store, other: Store):
    spec = {"of": 1}
    with store.in_use("a test"):
        ref = save_selection(store, spec, INDICES, {})
        load_selection(store, ref)
        # Somebody found it damaged and made it again, differently.
        atomic.write_bytes(other.path(ref) / "manifest.json", b"damage")
        assert find_selection(other, spec) is None
        new = save_selection(other, spec, INDICES[::-1], {})
        with pytest.raises(DamagedError, match="where the reference expects"):
            load_selection(Store(str(store.root)), ref)
        assert find_selection(store, spec).ref == new
        assert len(list(store.quarantine.iterdir())) == 2


def test_files_that_another_made_anew_are_read_anew(store: Store, other: Store, tmp_path, monkeypatch):
    import torch

    from solrl_tasks.store.policies import find_policy, load_policy, save_policy

    spec = {"policy": 1}
    with store.in_use("a test"):
        ref = save_policy(store, spec, {"current": {"w": torch.ones(3)}}, {})
        load_policy(store, ref).path("current").unlink()
        store.root.bucket.bodies = type(store.root.bucket.bodies)()
        (other.path(ref) / "manifest.json").unlink()
        new = save_policy(other, spec, {"current": {"w": torch.zeros(3)}}, {})
        assert find_policy(store, spec) == new and not store.quarantine.is_dir()


# Removal by another process.


def test_nobody_removes_what_is_remembered(store: Store, other: Store):
    with store.in_use("a test"):
        save_selection(store, {"of": 1}, INDICES, {})
        with pytest.raises(LockedError, match="in use"):
            collect(other, plan_gc(other, -5.0))
    assert collect(other, plan_gc(other, -5.0)) > 0


@contextmanager
def standing_still(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process gives no sign of life for longer than its lease, and others take it for another machine's."""
    with monkeypatch.context() as patch:
        now = leases._now
        for lease in list(leases._heart._leases):
            leases._heart.drop(lease)
        patch.setattr(leases, "_now", lambda: now() + LEASE + 1)
        patch.setattr(leases, "boot_id", lambda: "another machine")
        patch.setattr(leases, "_is_free", lambda found, path: True)
        yield


def test_after_standing_still_nothing_remembered_counts(store: Store, other: Store, monkeypatch):
    with store.in_use("a test"):
        pool = fill(store)
        ref = save_selection(store, {"pool": pool.key}, INDICES, {})
        assert load_selection(store, ref).ref == ref and np.isfinite(pool.rewards(REWARD, 8)).all()
        with standing_still(monkeypatch):
            assert collect(other, plan_gc(other, -5.0)) > 0
            with pytest.raises(MissingObjectError):
                load_selection(store, ref)
            with pytest.raises(MissingObjectError, match="was removed"):
                pool.rewards(REWARD, 8)
        assert find_selection(store, {"pool": pool.key}) is None
        # It is used again under a lease of its own, and made again.
        fill(store)
        assert np.isfinite(pool.rewards(REWARD, 8)).all()


def test_what_was_removed_by_hand_is_whole_in_memory_and_missing_at_the_next_start(store: Store, other: Store):
    with store.in_use("a test"):
        ref = save_selection(store, {"of": 1}, INDICES, {})
        load_selection(store, ref)
        other.root.bucket.delete([entry.key for entry in other.path(ref).entries()])
        assert load_selection(store, ref).indices.tolist() == INDICES.tolist()
        with pytest.raises(MissingObjectError):
            load_selection(Store.open(str(store.root)), ref)


# The lease behind it.


def sharers(store: Store) -> int:
    return len(list((store.root / "locks" / "store.lock.shared").iterdir()))


def test_all_users_of_a_process_share_one_lease(store: Store):
    with store.in_use("one"), Run.open(store, "run", {"iterations": 1}), fill(store).lock("two"):
        assert sharers(store) == 1
        with counted() as seen, store.in_use("three"):
            pass
        assert seen == []
    assert sharers(store) == 0 and not store.root.bucket.known.trusted


def test_the_lease_outlives_the_one_who_took_it(store: Store, other: Store):
    first, second = store.in_use("first"), store.in_use("second")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert store.root.bucket.known.trusted
    with pytest.raises(LockedError):
        collect(other, [])
    second.__exit__(None, None, None)
    collect(other, [])


def test_threads_share_it_too(store: Store):
    with store.in_use("one"):
        counts: list[int] = []

        def use() -> None:
            with store.in_use("another"):
                counts.append(sharers(store))

        threads = [threading.Thread(target=use) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert counts == [1] * 4 and store.root.bucket.known.trusted


def test_one_that_lapsed_is_taken_anew_by_the_next_user(store: Store, monkeypatch: pytest.MonkeyPatch):
    with store.in_use("one"):
        before = {path.name for path in (store.root / "locks" / "store.lock.shared").iterdir()}
        with standing_still(monkeypatch):
            assert not store.root.bucket.known.trusted
        # A late sign of life does not make up for it.
        assert not store.root.bucket.known.trusted
        with store.in_use("two"):
            after = {path.name for path in (store.root / "locks" / "store.lock.shared").iterdir()}
            assert len(after) == 1 and not before & after and store.root.bucket.known.trusted
    assert sharers(store) == 0


def test_a_lease_that_is_renewed_in_time_stays_sure_and_a_late_one_does_not(store: Store, monkeypatch):
    with leases.Lease(store.root / "locks" / "x.lock", "a test", shared=True).hold() as lease:
        assert lease.sure
        real = leases._now
        monkeypatch.setattr(leases, "_now", lambda: real() + LEASE - 1)
        lease.renew()
        assert lease.sure
        monkeypatch.setattr(leases, "_now", lambda: real() + 2 * LEASE)
        lease.renew()
        monkeypatch.setattr(leases, "_now", lambda: real() + 2 * LEASE)
        assert lease.held and not lease.sure
    assert not lease.sure


def test_what_this_process_writes_over_or_removes_itself_is_not_remembered_as_it_was(store: Store):
    with store.in_use("a test"):
        ref = save_selection(store, {"of": 1}, INDICES, {})
        manifest = store.path(ref) / "manifest.json"
        load_selection(store, ref)
        atomic.write_bytes(manifest, b"damage")
        with pytest.raises(DamagedError):
            load_selection(store, ref)
        assert save_selection(store, {"of": 1}, INDICES, {}) == ref
        manifest.unlink()
        assert find_selection(store, {"of": 1}) is None


def test_a_store_that_is_opened_anew_reads_what_it_verifies(store: Store):
    with store.in_use("a test"):
        key = fill(store).key
        Pool.load(store, key).rewards(REWARD, 8)
        again = Pool.load(Store.open(str(store.root)), key)
        with counted() as seen, again.lock():
            assert again.missing([REWARD], 8) == []
        # Values and marks of four blocks.
        assert sum(request.verb == "get" and request.kind.endswith("/BLOCK") for request in seen) == 8


def test_threads_may_read_a_listing_that_another_writes_into():
    listing = Listing("a", 0)
    failures: list[BaseException] = []

    def write() -> None:
        for number in range(20_000):
            listing.note(f"a/{number}", Entry(f"a/{number}", 1, "tag", 0.0))

    def read() -> None:
        try:
            while writer.is_alive():
                listing.below("a")
        except RuntimeError as error:
            failures.append(error)

    writer, reader = threading.Thread(target=write), threading.Thread(target=read)
    writer.start()
    reader.start()
    writer.join()
    reader.join()
    assert failures == [] and len(listing.below("a")) == 20_000
