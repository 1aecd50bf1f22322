"""Locks: one holder, named to the others, gone with its process."""

import fcntl
import multiprocessing
import os
import subprocess
import sys
import threading
import time

import pytest

from solrl_tasks.store.errors import LockedError
from solrl_tasks.store.locks import FileLock, holder

HOLD = (
    "import sys, pathlib; from solrl_tasks.store.locks import FileLock;"
    "FileLock(pathlib.Path(sys.argv[1]), 'run other').acquire(); print('held', flush=True); sys.stdin.read()"
)


@pytest.fixture
def other(tmp_path):
    path = tmp_path / "lock"
    child = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with child:
        assert child.stdout.readline() == b"held\n"
        yield path, child
        child.kill()


def test_a_second_process_is_refused_and_told_who_holds_it(other):
    path, child = other
    with pytest.raises(LockedError, match=rf"run mine: .* held by run other \(process {child.pid} on .*since"):
        FileLock(path, "run mine").acquire()
    assert holder(path)["pid"] == child.pid


def test_whoever_only_looks_is_no_holder_to_be_refused_for(tmp_path):
    """Lists of runs look at every lock; a run that begins at that moment is not told that somebody has it."""
    path = tmp_path / "lock"
    path.touch()
    looking = os.open(path, os.O_RDONLY)
    fcntl.flock(looking, fcntl.LOCK_SH)
    threading.Timer(0.05, os.close, (looking,)).start()
    with FileLock(path, "run mine").hold():
        assert holder(path)["pid"] == os.getpid()


def test_the_lock_is_free_when_its_holder_is_killed(other):
    path, child = other
    child.kill()
    child.wait()
    assert holder(path) is None
    with FileLock(path, "run mine").hold():
        assert holder(path)["pid"] == os.getpid()


def test_waiting_says_for_whom_and_ends_with_the_holder(other, caplog):
    path, child = other
    threading.Timer(0.4, child.kill).start()
    start = time.monotonic()
    with FileLock(path, "run mine").hold(wait=True, timeout=20):
        assert 0.2 < time.monotonic() - start < 10
    assert f"run mine waits for run other (process {child.pid}" in caplog.text


def test_waiting_has_an_end(other):
    path, _ = other
    with pytest.raises(LockedError, match="after 0 s"):
        FileLock(path, "run mine").acquire(wait=True, timeout=0.2)


def test_the_same_object_may_enter_again(tmp_path):
    lock = FileLock(tmp_path / "lock", "x")
    with lock.hold():
        with lock.hold():
            pass
        assert lock.held and holder(lock.path) is not None
    assert not lock.held and holder(lock.path) is None


def test_sharers_exclude_only_those_who_want_it_alone(tmp_path):
    one, two = (FileLock(tmp_path / "lock", name, shared=True) for name in "ab")
    alone = FileLock(tmp_path / "lock", "alone")
    with one.hold(), two.hold(), pytest.raises(LockedError):
        alone.acquire()
    with alone.hold(), pytest.raises(LockedError):
        one.acquire()


def test_a_damaged_lock_file_is_only_a_worse_message(tmp_path):
    path = tmp_path / "lock"
    with FileLock(path, "x").hold():
        path.write_bytes(b"\xff{")
        with pytest.raises(LockedError, match="another process"):
            FileLock(path, "y").acquire()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_does_not_keep_the_lock_of_a_dead_parent(tmp_path):
    lock = FileLock(tmp_path / "lock", "parent").acquire()
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(30,))
    child.start()
    try:
        os.close(lock._handle)  # all that the end of the parent would do
        with FileLock(tmp_path / "lock", "next").hold(wait=True, timeout=10):
            assert child.is_alive()
    finally:
        child.kill()
        child.join()
