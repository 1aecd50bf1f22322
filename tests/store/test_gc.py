"""Garbage collection removes what nothing refers to, and nothing else."""

import os
import signal
import time

import numpy as np
import pytest

from solrl_tasks.store import errors
from solrl_tasks.store.atomic import write_json
from solrl_tasks.store.contents import Contents
from solrl_tasks.store.gc import Garbage, alone, collect, plan_gc
from solrl_tasks.store.holds import hold
from solrl_tasks.store.pool import Pool
from solrl_tasks.store.root import Store
from solrl_tasks.store.runs import Run
from solrl_tasks.store.selections import load_selection, save_selection
from tests.support.dying import die_at
from tests.support.killing import CONTEXT

A = "soft@1"


def make_pool(store, name):
    pool = Pool.open(store, {"name": name}, ("k-0",), 2)
    with pool.lock():
        pool.ensure_columns(2)
        for block in pool.missing([A], 2):
            pool.write(block, {A: np.zeros(2, np.float32)}, None, 1.0, {})
    return pool.ref([A], 2)


def selection(store, name):
    return save_selection(store, {"name": name}, np.array([[1, 0]]), {})


def keys(plan):
    return {(item.kind, item.key) for item in plan}


def test_what_runs_and_studies_refer_to_stays(store):
    used, studied, loose = (make_pool(store, name) for name in ("used", "studied", "loose"))
    kept, dropped = selection(store, "kept"), selection(store, "dropped")
    with Run.open(store, "demo", {}) as run:
        run.note_ref(0, "explore", used)
        run.note_ref(0, "select", kept)
    write_json(store.studies / "ranks" / "cells.json", {"cells": [{"pool": studied.model_dump()}]})
    plan = plan_gc(store, min_age_seconds=0)
    assert keys(plan) == {("pools", loose.key), ("selections", dropped.key)}
    assert all(item.bytes > 0 and "no run or study" in item.why for item in plan)
    assert store.path(loose).exists()
    assert collect(store, plan) == sum(item.bytes for item in plan)
    assert not store.path(loose).exists() and not store.path(dropped).exists()
    assert Pool.load(store, used).rewards(A, 2).shape == (1, 2)
    assert load_selection(store, kept).ref == kept
    assert plan_gc(store, min_age_seconds=0) == []


def test_what_a_study_has_only_read_stays_until_its_note_is_removed(store):
    read, other = make_pool(store, "read"), make_pool(store, "other")
    note = hold(store, "study-theory", [Contents.load(store, "pools", read.key).place()])
    assert keys(plan_gc(store, min_age_seconds=0)) == {("pools", other.key)}
    before = note.stat().st_mtime_ns
    hold(store, "study-theory", [Contents.load(store, "pools", read.key).place()])
    assert note.stat().st_mtime_ns == before
    note.unlink()
    assert keys(plan_gc(store, min_age_seconds=0)) == {("pools", read.key), ("pools", other.key)}


def test_young_objects_stay(store):
    ref = selection(store, "young")
    assert plan_gc(store) == []
    past = time.time() - 2 * 24 * 3600
    for path in (store.path(ref), *store.path(ref).iterdir()):
        os.utime(path, (past, past))
    assert keys(plan_gc(store)) == {("selections", ref.key)}


def test_a_live_run_keeps_everything(store):
    ref = selection(store, "x")
    plan = plan_gc(store, min_age_seconds=0)
    with Run.open(store, "demo", {}), pytest.raises(errors.LockedError, match="live runs: demo"):
        collect(store, plan)
    assert store.path(ref).exists()


def test_a_pool_that_is_being_filled_keeps_everything(store):
    pool = Pool.open(store, {"name": "x"}, ("k-0",), 2)
    plan = plan_gc(store, min_age_seconds=0)
    with pool.lock(), pytest.raises(errors.LockedError, match="a pool is being filled"):
        collect(store, plan)


def test_what_came_into_use_after_the_plan_stays(store):
    ref = selection(store, "x")
    plan = plan_gc(store, min_age_seconds=0)
    with Run.open(store, "demo", {}) as run:
        run.note_ref(0, "select", ref)
    assert collect(store, plan) == 0
    assert store.path(ref).exists()


def test_an_iteration_whose_references_are_lost_keeps_what_its_summary_names(store):
    """Somebody removed refs.json, or restored a copy without it."""
    used, other = selection(store, "y"), selection(store, "x")
    with Run.open(store, "demo", {}) as run:
        run.note_ref(0, "select", used)
        run.commit_summary(0, {"metrics": {}, "refs": {"select": used.model_dump(mode="json")}})
        (run.iteration_dir(0) / "refs.json").unlink()
    assert keys(plan_gc(store, min_age_seconds=0)) == {("selections", other.key)}
    (run.iteration_dir(0) / "summary.json").write_text("{")
    with pytest.raises(errors.DamagedError, match=r"summary\.json"):
        plan_gc(store, min_age_seconds=0)


@pytest.mark.parametrize("damage", ["folder", "deep", "empty"])
def test_a_study_that_cannot_be_read_stops_it(store, damage):
    path = store.studies / "x.json"
    store.studies.mkdir()
    if damage == "folder":
        path.mkdir()
    else:
        path.write_text("[" * 100_000 if damage == "deep" else "")
    with pytest.raises(errors.DamagedError, match=r"x\.json is damaged: .*remove or mend it"):
        plan_gc(store, min_age_seconds=0)


def test_unreadable_references_stop_it(store):
    selection(store, "x")
    with Run.open(store, "demo", {}) as run:
        run.note_ref(0, "select", used := selection(store, "y"))
        (run.iteration_dir(0) / "refs.json").write_text("{")
        with pytest.raises(errors.DamagedError, match=r"refs\.json is damaged: .*start the run again"):
            plan_gc(store, min_age_seconds=0)
        run.commit_summary(0, {"metrics": {}, "refs": {"select": used.model_dump(mode="json")}})
    with pytest.raises(errors.DamagedError, match=r"refs\.json is damaged: .*; remove it: the summary"):
        plan_gc(store, min_age_seconds=0)
    (run.iteration_dir(0) / "refs.json").unlink()
    assert used.key not in {item.key for item in plan_gc(store, min_age_seconds=0)}


def test_what_was_moved_aside_is_listed_and_goes(store):
    ref = selection(store, "x")
    store.move_aside(store.path(ref), "bad")
    plan = plan_gc(store, min_age_seconds=0)
    assert {item.kind for item in plan} == {"quarantine"} and len(plan) == 2
    collect(store, plan)
    assert list(store.quarantine.iterdir()) == []


@pytest.mark.parametrize(
    ("kind", "key", "path"),
    [
        ("pools", "x", "../elsewhere"),
        ("pools", "x", "pools/x"),
        ("pools", "..", "pools/.."),
        ("pools", "*", "pools/*"),
        ("runs", "demo", "runs/demo"),
        ("quarantine", "..", "quarantine/.."),
        ("quarantine", "../runs", "quarantine/../runs"),
    ],
)
def test_only_objects_can_be_removed(store, kind, key, path):
    with pytest.raises(errors.StoreError, match="nothing that the garbage collection may remove"):
        collect(store, [Garbage(kind, key, path, 1, "")])
    assert (store.root / "store.json").exists()


def test_what_has_no_key_for_a_name_is_not_ours_to_remove(store):
    copy = store.folder("pools") / "0844 before the change"
    copy.mkdir(parents=True)
    assert plan_gc(store, min_age_seconds=0) == []


def test_a_link_goes_and_what_it_leads_to_stays(store, tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "precious").write_text("x")
    store.folder("pools").mkdir(exist_ok=True)
    link = store.folder("pools") / ("a" * 24)
    link.symlink_to(tmp_path / "outside")
    assert keys(plan_gc(store, min_age_seconds=0)) == {("pools", "a" * 24)}
    collect(store, plan_gc(store, min_age_seconds=0))
    assert not link.is_symlink() and (tmp_path / "outside" / "precious").read_text() == "x"


def _collect_until(root, nth):
    """Collect in a child that dies at its nth change of a name."""
    die_at(nth, ("rename", "unlink", "rmdir"))
    found = Store(root)
    collect(found, plan_gc(found, min_age_seconds=0))


def test_killed_at_place_after_place_nothing_half_is_left_under_a_key_and_the_next_ends_it(store):
    """The same pool, made again between the kills, comes in the way of nothing."""
    used = make_pool(store, "used")
    with Run.open(store, "demo", {}) as run:
        run.note_ref(0, "explore", used)
    for nth in (1, 2, 4, 9, 14):
        loose = make_pool(store, "loose")
        child = CONTEXT.Process(target=_collect_until, args=(store.root, nth))
        child.start()
        child.join(60)
        assert child.exitcode == -signal.SIGKILL
        if store.path(loose).exists():
            assert Pool.load(store, loose).ref([A], 2) == loose
    make_pool(store, "loose")
    collect(store, plan_gc(store, min_age_seconds=0))
    assert [path.name for path in store.folder("pools").iterdir()] == [used.key]
    assert Pool.load(store, used).ref([A], 2) == used


def test_what_an_earlier_version_left_half_removed_goes(store):
    (store.root / ".trash" / "pools-x").mkdir(parents=True)
    collect(store, [])
    assert not (store.root / ".trash").exists()


def test_two_at_once_are_told_of_each_other(store):
    with alone(store, "packing of pools/x"), pytest.raises(errors.LockedError, match=r"packing of pools/x \(process"):
        collect(Store(store.root), [])
