"""Files and folders are whole or not there."""

import json
import os
import subprocess
import sys
import time

import pytest

from solrl_tasks.store import atomic
from solrl_tasks.store.errors import DamagedError
from solrl_tasks.store.process import start_of


def test_a_sealed_file_comes_back(tmp_path):
    content = {"a": [1, 2.5, "ü"], "b": None}
    seal = atomic.write_sealed(tmp_path / "deep" / "x.json", content)
    assert atomic.read_sealed(tmp_path / "deep" / "x.json") == content
    assert json.loads((tmp_path / "deep" / "x.json").read_text())["sha256"] == seal
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["x.json"]


def test_every_truncation_of_a_sealed_file_is_found(tmp_path):
    path = tmp_path / "x.json"
    atomic.write_sealed(path, {"a": [1, 2.5], "text": "hello"})
    whole = path.read_bytes()
    for length in range(len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(DamagedError):
            atomic.read_sealed(path)


def test_no_flipped_bit_of_a_sealed_file_changes_its_content(tmp_path):
    path = tmp_path / "x.json"
    content = {"a": [1, 2.5], "text": "hello", "flag": True}
    atomic.write_sealed(path, content)
    whole = path.read_bytes()
    found = 0
    for bit in range(len(whole) * 8):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        try:
            assert atomic.read_sealed(path) == content
        except DamagedError:
            found += 1
    assert found > len(whole) * 6


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "x.json"
    atomic.write_text(path, "old")

    def fail(*_):
        raise OSError("no space")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="no space"):
        atomic.write_text(path, "new")
    assert path.read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


def test_a_folder_is_published_whole_or_not_at_all(tmp_path):
    final = tmp_path / "done"
    with pytest.raises(RuntimeError), atomic.publish_folder(final) as folder:
        (folder / "a").write_text("1")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    with atomic.publish_folder(final) as folder:
        (folder / "a").write_text("1")
        assert not final.exists()
    assert (final / "a").read_text() == "1"


def test_the_first_to_publish_wins(tmp_path):
    final = tmp_path / "done"
    with atomic.publish_folder(final) as one:
        (one / "a").write_text("1")
        with atomic.publish_folder(final) as other:
            (other / "a").write_text("2")
    assert (final / "a").read_text() == "2"
    assert len(list(tmp_path.iterdir())) == 1


def test_only_what_dead_writers_left_is_swept(tmp_path):
    code = (
        "import sys, pathlib; from solrl_tasks.store import atomic; p = pathlib.Path(sys.argv[1]);"
        "t = atomic.temporary_name(p / 'x.json'); t.write_text('half');"
        "f = atomic.temporary_name(p / 'folder'); f.mkdir(); (f / 'a').write_text('half');"
        "print('ready', flush=True); sys.stdin.read()"
    )
    child = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with child:
        assert child.stdout.readline() == b"ready\n"
        assert atomic.sweep(tmp_path) == []
        assert len(list(tmp_path.iterdir())) == 2
        child.kill()
        child.wait()
    assert len(atomic.sweep(tmp_path)) == 2
    assert list(tmp_path.iterdir()) == []


def test_a_number_used_again_is_not_taken_for_the_writer(tmp_path):
    own = atomic.temporary_name(tmp_path / "x")
    start = str(start_of(os.getpid()))
    old = tmp_path / own.name.replace(f"-{start}-", f"-{int(start) - 1}-")
    old.write_text("half")
    assert atomic.sweep(tmp_path) == [old]


def test_what_another_host_left_stays_until_it_is_old(tmp_path):
    foreign = tmp_path / ".x.00000000-1-1-1.tmp"
    foreign.write_text("half")
    assert atomic.sweep(tmp_path) == []
    week_ago = time.time() - 8 * 24 * 3600
    os.utime(foreign, (week_ago, week_ago))
    assert atomic.sweep(tmp_path) == [foreign]


def test_names_that_only_look_temporary_stay(tmp_path):
    (tmp_path / ".notes.tmp").write_text("mine")
    assert atomic.sweep(tmp_path) == []
