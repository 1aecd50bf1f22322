"""Real processes on one store: killed at any moment, or filling the same pool together."""

import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from solrl_tasks.store.errors import LockedError
from solrl_tasks.store.evaluations import find_evaluation
from solrl_tasks.store.pool import Pool
from solrl_tasks.store.root import Store
from solrl_tasks.store.runs import Run

WORKER = """
import logging, sys, time
from pathlib import Path
import numpy as np
from solrl_tasks.store.pool import Pool
from solrl_tasks.store.evaluations import find_evaluation, save_evaluation
from solrl_tasks.store.root import Store

ROWS = tuple(f"p{i}-0" for i in range(3))

def truth(name, row, start, stop):
    return np.sin(np.arange(start, stop) + 10 * row + len(name)).astype(np.float32)

def fill(root, name, pause, images):
    store = Store.open(Path(root))
    pool = Pool.open(store, {"engine": "fake"}, ROWS, 4)
    made = 0
    with pool.lock(name):
        print("locked", flush=True)
        if "hold" in sys.argv:
            sys.stdin.readline()
        pool.ensure_columns(24)
        for block in pool.missing(["soft@1", "other@1"], 24, images):
            time.sleep(pause)
            values = {n: truth(n, block.row, block.start, block.stop) for n in block.missing}
            shown = np.full((4, 16, 16, 3), block.index, np.uint8) if block.images_missing else None
            pool.write(block, values, shown, 1.0, {"threads": 1})
            made += 1
    print("made", made, flush=True)
    return store

if __name__ == "__main__":
    logging.basicConfig(stream=sys.stderr)
    store = fill(sys.argv[1], sys.argv[2], float(sys.argv[3]), sys.argv[4] == "images")
    for number in range(40 if "folders" in sys.argv else 0):
        if find_evaluation(store, {"number": number}) is None:
            save_evaluation(store, {"number": number}, {}, {"a": bytes([number]) * 50_000, "b": b"b"})
"""


@pytest.fixture
def start(tmp_path):
    script = tmp_path / "worker.py"
    script.write_text(WORKER)
    running = []

    def start(*arguments, name="worker", pause=0.0):
        command = [sys.executable, str(script), str(tmp_path / "store"), name, str(pause), *arguments]
        pipe = subprocess.PIPE
        child = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        running.append(child)
        return child

    yield start
    for child in running:
        child.kill()
        child.communicate()


def made(child):
    out, err = child.communicate(timeout=60)
    assert child.returncode == 0, err
    return int(out.split()[-1])


def open_pool(tmp_path):
    return Pool.open(Store(tmp_path / "store"), {"engine": "fake"}, tuple(f"p{i}-0" for i in range(3)), 4)


def expected(name):
    columns = np.arange(24)
    return np.stack([np.sin(columns + 10 * row + len(name)).astype(np.float32) for row in range(3)])


def check_whole(tmp_path):
    pool = open_pool(tmp_path)
    for name in ("soft@1", "other@1"):
        assert pool.rewards(name, 24).tobytes() == expected(name).tobytes()
    assert pool.missing(["soft@1", "other@1"], 24, images=True) == []


def check_nothing_wrong(tmp_path, caplog):
    """What counts as done after a kill is right, and nothing was taken for damage that a kill can leave."""
    if not (tmp_path / "store" / "store.json").exists():
        return
    pool = open_pool(tmp_path)
    for name in ("soft@1", "other@1"):
        done = np.ones((3, 24), dtype=bool)
        for block in pool.missing([name], 24):
            done[block.row, block.start : block.stop] = False
        array = pool._folder.array(f"rewards/{name}")
        if array is not None:
            found = np.full((3, 24), np.nan, np.float32)
            there = min(array.columns, 24)
            found[:, :there] = array.read_rows(6)[0][:, :there]
            assert found[done].tobytes() == expected(name)[done].tobytes()
    assert "moved to" not in caplog.text and "fit their ledger" not in caplog.text


def test_killed_again_and_again_it_ends_whole(start, tmp_path, caplog):
    generator = random.Random(7)
    done = 0
    for _ in range(8):
        child = start("images", pause=0.01)
        if child.stdout.readline() != "locked\n":
            break
        time.sleep(generator.uniform(0.0, 0.35))
        child.kill()
        child.communicate()
        check_nothing_wrong(tmp_path, caplog)
        left = len(open_pool(tmp_path).missing(["soft@1", "other@1"], 24, images=True))
        assert 18 - left >= done
        done = 18 - left
    assert made(start("images")) == 18 - done
    check_whole(tmp_path)
    assert not list((tmp_path / "store").rglob("*.partial")) and not list((tmp_path / "store").rglob("*.tmp"))


@pytest.mark.slow
def test_killed_thirty_times_it_ends_whole(start, tmp_path, caplog):
    generator = random.Random(11)
    for _ in range(30):
        child = start("images", "folders", pause=generator.choice([0.0, 0.02]))
        child.stdout.readline()
        time.sleep(generator.uniform(0.0, 0.3))
        child.kill()
        child.communicate()
        check_nothing_wrong(tmp_path, caplog)
    made(start("images", "folders"))
    check_whole(tmp_path)
    store = Store.open(tmp_path / "store")
    for number in range(40):
        found = find_evaluation(store, {"number": number})
        assert found is not None and found.images["a"].read_bytes() == bytes([number]) * 50_000
    assert not store.quarantine.exists() and not list(store.root.rglob("*.tmp"))


def test_a_second_process_waits_with_a_message_and_finds_it_done(start, tmp_path):
    one = start("images", "hold", name="run one")
    assert one.stdout.readline() == "locked\n"
    two = start("images", name="run two")
    told = two.stderr.readline()
    assert "run two" in told and "waits for run one" in told and str(one.pid) in told
    one.stdin.write("go\n")
    one.stdin.flush()
    assert made(one) == 18 and made(two) == 0
    check_whole(tmp_path)


def test_many_processes_that_start_at_once_do_every_block_once(start, tmp_path):
    children = [start("images", name=f"run {number}") for number in range(5)]
    assert sum(made(child) for child in children) == 18
    check_whole(tmp_path)


def test_without_waiting_the_holder_is_named(start, tmp_path):
    child = start("images", "hold", name="run one")
    assert child.stdout.readline() == "locked\n"
    pool = open_pool(tmp_path)
    with pytest.raises(LockedError, match="held by run one"), pool.lock("mine", wait=False):
        pass


def test_readers_beside_a_writer_see_done_or_not_done_never_wrong(start, tmp_path, caplog):
    child = start("images", pause=0.02)
    assert child.stdout.readline() == "locked\n"
    while child.poll() is None:
        check_nothing_wrong(tmp_path, caplog)
    assert child.returncode == 0
    check_whole(tmp_path)


def test_two_runs_of_one_id_exclude_each_other(tmp_path):
    store = Store.open(tmp_path / "store")
    code = (
        "import sys; from pathlib import Path; from solrl_tasks.store.root import Store;"
        "from solrl_tasks.store.runs import Run; Run.open(Store(Path(sys.argv[1])), 'demo', {})"
    )
    with Run.open(store, "demo", {}):
        child = subprocess.run(
            [sys.executable, "-c", code, str(store.root)], check=False, capture_output=True, text=True
        )
        assert child.returncode == 1 and "run demo: the lock is held by run demo (process" in child.stderr
    assert Path(store.runs / "demo" / "config.json").exists()
