"""Leases: one holder at a time, lost ones end, and whoever lost one unnoticed does no harm."""

import json
import multiprocessing
import os
import signal
import time

import numpy as np
import pytest

from solrl_tasks.store import leases
from solrl_tasks.store.blocks import Block
from solrl_tasks.store.errors import LeaseLostError, LockedError, StoreError
from solrl_tasks.store.leases import Lease, lease_holder
from solrl_tasks.store.object_path import ObjectPath
from solrl_tasks.store.pool import Pool
from solrl_tasks.store.root import Store
from solrl_tasks.store.runs import Run
from tests.support.s3 import S3Server

LEASE = 2.0
SPEC = {"engine": "bf16"}
RECORD = {"hardware": "x"}
REWARD = "scene@1"
CONTEXT = multiprocessing.get_context("forkserver")


@pytest.fixture
def path(url: str) -> ObjectPath:
    return ObjectPath.of(url) / "locks" / "one.lock"


def elsewhere(monkeypatch: pytest.MonkeyPatch, boot: str) -> None:
    """From here on this process says that it is another machine."""
    monkeypatch.setattr(leases, "boot_id", lambda: boot)


def stop_beating(lease: Lease) -> None:
    """As if its process or its network stood still."""
    leases._heart.drop(lease)


def test_one_holds_it_and_others_are_told_who(path: ObjectPath):
    with Lease(path, "run demo").hold() as first:
        assert first.held and lease_holder(path)["purpose"] == "run demo"
        with pytest.raises(LockedError, match=rf"run other: .*run demo \(process {os.getpid()} on"):
            Lease(path, "run other").acquire()
        with pytest.raises(LockedError, match="after 0 s of waiting"):
            Lease(path, "run other").acquire(wait=True, timeout=0.1)
    assert lease_holder(path) is None
    Lease(path, "run other").acquire().release()


def test_it_may_be_entered_again_and_is_renewed(path: ObjectPath, monkeypatch: pytest.MonkeyPatch):
    lease = Lease(path, "long")
    with lease.hold(), lease.hold():
        pass
    assert not lease.held
    with lease.hold():
        elsewhere(monkeypatch, "another machine")
        time.sleep(1.6 * LEASE + 2)
        lease.confirm()
        assert json.loads(path.read_bytes())["beat"] >= 3
        with pytest.raises(LockedError):
            Lease(path, "late").acquire()


def test_a_lost_holder_blocks_for_its_lease_only(path: ObjectPath, monkeypatch: pytest.MonkeyPatch):
    lost = Lease(path, "lost").acquire()
    stop_beating(lost)
    elsewhere(monkeypatch, "another machine")
    start = time.monotonic()
    with Lease(path, "next").hold():
        assert LEASE - 1 < time.monotonic() - start < LEASE + 4
        with pytest.raises(LeaseLostError, match=r"lost: the lease s3://.* was taken over by next \(process"):
            lost.confirm()
        assert not lost.held
    lost.release()
    assert lease_holder(path) is None


def test_a_holder_that_stood_still_and_was_not_missed_goes_on(path: ObjectPath):
    lease = Lease(path, "slow").acquire()
    stop_beating(lease)
    time.sleep(LEASE + 1)
    lease.renew()
    lease.confirm()
    lease.release()


def test_renewing_tells_that_it_was_taken_over(path: ObjectPath, caplog: pytest.LogCaptureFixture):
    lost = Lease(path, "lost").acquire()
    stop_beating(lost)
    path.unlink()
    with Lease(path, "next").hold():
        lost.renew()
        assert not lost.held and "was taken over by next" in caplog.text
        lost.renew()
        assert lease_holder(path)["purpose"] == "next"


@pytest.mark.parametrize("skew", [-3600.0, 3600.0])
def test_clocks_of_clients_do_not_matter(path: ObjectPath, monkeypatch: pytest.MonkeyPatch, skew: float):
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + skew)
    with Lease(path, "here").hold():
        elsewhere(monkeypatch, "another machine")
        with pytest.raises(LockedError, match="here"):
            Lease(path, "there").acquire()


def test_errors_of_the_server_do_not_lose_a_lease(server: S3Server, path: ObjectPath):
    with Lease(path, "run demo").hold() as lease:
        server.failing = 3
        time.sleep(LEASE)
        server.failing = 0
        lease.confirm()


def test_what_is_no_lease_is_named(path: ObjectPath):
    path.bucket.put(path.key, b"{]")
    with pytest.raises(StoreError, match="is no lease"):
        Lease(path, "run demo").acquire()


def test_sharers_and_the_one_alone_keep_each_other_out(path: ObjectPath):
    alone = Lease(path, "collection", shareable=True)
    with (
        Lease(path, "a", shared=True).hold(),
        Lease(path, "b", shared=True).hold(),
        pytest.raises(LockedError, match=r"held by [ab] \("),
    ):
        alone.acquire()
    with alone.hold(), pytest.raises(LockedError, match="held by collection"):
        Lease(path, "a", shared=True).acquire()
    Lease(path, "a", shared=True).acquire().release()


def test_a_sharer_that_died_is_swept(path: ObjectPath, monkeypatch: pytest.MonkeyPatch):
    dead = Lease(path, "dead", shared=True).acquire()
    stop_beating(dead)
    elsewhere(monkeypatch, "another machine")
    with Lease(path, "collection", shareable=True).hold():
        assert list((path.parent / "one.lock.shared").iterdir()) == []


def test_a_sharer_that_was_taken_for_lost_is_not_there_while_another_has_it_alone(
    path: ObjectPath, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    share, alone = Lease(path, "run demo", shared=True).acquire(), Lease(path, "collection", shareable=True)
    sharers = path.parent / "one.lock.shared"
    stop_beating(share)
    with monkeypatch.context() as patch:
        elsewhere(patch, "another machine")
        alone.acquire()
    share.renew()
    assert "run demo: collection (process" in caplog.text and list(sharers.iterdir()) == []
    assert not share.sure
    alone.release()
    share.renew()
    assert len(list(sharers.iterdir())) == 1
    with pytest.raises(LockedError, match="held by run demo"):
        alone.acquire()
    share.release()
    alone.acquire().release()


def hold_for_ever(url: str, key: str, ready: "multiprocessing.synchronize.Event") -> None:
    Lease(ObjectPath.of(url) / key, "victim").acquire()
    ready.set()
    time.sleep(60)


def test_a_process_killed_on_this_machine_is_known_at_once(url: str, path: ObjectPath):
    ready = CONTEXT.Event()
    process = CONTEXT.Process(target=in_environment, args=(dict(os.environ), hold_for_ever, url, path.key, ready))
    process.start()
    assert ready.wait(60)
    with pytest.raises(LockedError, match="victim"):
        Lease(path, "next").acquire()
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    start = time.monotonic()
    with Lease(path, "next").hold():
        assert time.monotonic() - start < 1.0


def count_alone(url: str, key: str, rounds: int) -> None:
    root = ObjectPath.of(url)
    for _ in range(rounds):
        with Lease(root / key, f"process {os.getpid()}").hold(wait=True):
            # Not atomic: two at once would lose counts.
            number = int((root / "count").read_bytes())
            time.sleep(0.02)
            root.bucket.put("count", str(number + 1).encode())


def test_two_processes_are_never_in_it_together(url: str, path: ObjectPath):
    path.bucket.put("count", b"0")
    arguments = (dict(os.environ), count_alone, url, path.key, 15)
    processes = [CONTEXT.Process(target=in_environment, args=arguments) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        assert process.exitcode == 0
    assert (ObjectPath.of(url) / "count").read_bytes() == b"45"


def in_environment(variables: dict[str, str], call, *args) -> None:
    """Children of a fork server have the environment that it was started with."""
    os.environ.update(variables)
    call(*args)


# Fencing: what a writer that lost its lease unnoticed can still do.


def block_of(pool: Pool, row: int = 0) -> Block:
    return next(block for block in pool.missing([REWARD], 4) if block.row == row)


@pytest.fixture
def lost_and_next(url: str, monkeypatch: pytest.MonkeyPatch):
    """A pool held by a writer that has lost the lease without noticing, and the same pool held by the next one."""
    store = Store.open(url)
    lost, following = (Pool.open(store, SPEC, ["a", "b"], 4) for _ in range(2))
    with lost.lock("the lost one"):
        lost.ensure_columns(4)
        block = block_of(lost)
        stop_beating(lost._folder._lock)
        elsewhere(monkeypatch, "another machine")
        with following.lock("the next one"):
            following.ensure_columns(4)
            yield lost, following, block


def values(number: float) -> dict[str, np.ndarray]:
    return {REWARD: np.full(4, number, dtype=np.float32)}


def test_a_late_write_of_what_is_there_changes_nothing(lost_and_next):
    lost, following, block = lost_and_next
    following.write(block, values(1.0), None, 7.0, RECORD)
    before = contents(following)
    with pytest.raises(LeaseLostError, match="taken over by the next one"):
        lost.write(block, values(1.0), None, 9.0, RECORD)
    assert contents(following) == before
    with pytest.raises(LeaseLostError):
        lost.ensure_columns(8)


def test_a_late_write_of_something_else_is_refused(lost_and_next):
    lost, following, block = lost_and_next
    following.write(block, values(1.0), None, 7.0, RECORD)
    before = contents(following)
    with pytest.raises(LeaseLostError):
        lost.write(block, values(2.0), None, 9.0, RECORD)
    assert contents(following) == before
    assert [b.row for b in following.missing([REWARD], 4)] == [1]


def test_a_late_write_where_nothing_is_yet_is_as_good_as_any(lost_and_next):
    lost, following, block = lost_and_next
    following.write(block_of(following, row=1), values(3.0), None, 1.0, RECORD)
    lost.write(block, values(1.0), None, 9.0, RECORD)
    following.write(block, values(1.0), None, 7.0, RECORD)
    assert following.missing([REWARD], 4) == []
    assert following.rewards(REWARD, 4).tolist() == [[1.0] * 4, [3.0] * 4]


def test_a_run_taken_over_commits_no_more(url: str, monkeypatch: pytest.MonkeyPatch):
    store = Store.open(url)
    with Run.open(store, "one", {"iterations": 2}) as lost:
        stop_beating(lost._lock)
        elsewhere(monkeypatch, "another machine")
        with Run.open(store, "one", {"iterations": 2}) as following:
            following.commit_summary(0, {"a": 1})
            with pytest.raises(LeaseLostError):
                lost.commit_summary(1, {"a": 2})
        assert lost.summaries() == {0: {"a": 1}}


def contents(pool: Pool) -> dict[str, bytes]:
    folder = pool._folder.path
    return {entry.key: folder.bucket.get(entry.key).data for entry in folder.entries()}
