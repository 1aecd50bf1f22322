"""Garbage collection removes what nothing refers to, and nothing else."""

import os
import time

import numpy as np
import pytest

from solrl_tasks.store import errors
from solrl_tasks.store.atomic import write_json
from solrl_tasks.store.contents import Contents
from solrl_tasks.store.gc import Garbage, collect, plan_gc
from solrl_tasks.store.holds import hold
from solrl_tasks.store.pool import Pool
from solrl_tasks.store.runs import Run
from solrl_tasks.store.selections import load_selection, save_selection

A = "soft@1"


def make_pool(store, name):
    pool = Pool.open(store, {"name": name}, ("k-0",), 2)
    with pool.lock():
        pool.ensure_columns(2)
        pool.write(pool.missing([A], 2)[0], {A: np.zeros(2, np.float32)}, None, 1.0, {})
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


def test_unreadable_references_stop_it(store):
    selection(store, "x")
    with Run.open(store, "demo", {}) as run:
        run.note_ref(0, "select", selection(store, "y"))
        (run.iteration_dir(0) / "refs.json").write_text("{")
    with pytest.raises(errors.DamagedError, match=r"refs\.json"):
        plan_gc(store, min_age_seconds=0)


def test_what_was_moved_aside_is_listed_and_goes(store):
    ref = selection(store, "x")
    store.move_aside(store.path(ref), "bad")
    plan = plan_gc(store, min_age_seconds=0)
    assert {item.kind for item in plan} == {"quarantine"} and len(plan) == 2
    collect(store, plan)
    assert list(store.quarantine.iterdir()) == []


def test_only_objects_can_be_removed(store):
    with pytest.raises(errors.StoreError, match="nothing that the garbage collection may remove"):
        collect(store, [Garbage("pools", "x", "../elsewhere", 1, "")])
