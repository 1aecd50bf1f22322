"""Packing and trimming of a store in a bucket do what they do in a folder."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from solrl_tasks.store import packing
from solrl_tasks.store.object_path import ObjectPath
from solrl_tasks.store.policies import save_policy
from solrl_tasks.store.pool import Pool
from solrl_tasks.store.root import Store
from solrl_tasks.store.runs import Run
from solrl_tasks.store.s3_client import S3Client
from solrl_tasks.store.trimming import Keep, apply_trim, plan_trim
from tests.support.request_counts import counted
from tests.support.s3 import speaking_to

A = "soft@1"


@pytest.fixture
def store(server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SOLRL_HOME", str(tmp_path / "home"))
    with speaking_to(server) as url:
        yield Store.open(url)


def fill(store, columns=8):
    pool = Pool.open(store, {"name": "x"}, ("k-0", "k-1"), 4)
    with pool.lock():
        pool.ensure_columns(columns)
        for block in pool.missing([A], columns, images=True):
            values = {A: np.arange(4, dtype=np.float32) + block.start} if block.missing else {}
            pool.write(block, values, np.full((4, 8, 8, 3), block.row, np.uint8), 1.0, {})
    return pool


def facts(store, key, columns=8):
    pool = Pool.load(store, key)
    return pool.digest([A], columns), [pool.images(row, range(columns)).tobytes() for row in (0, 1)]


def test_a_pool_in_a_bucket_is_packed_and_grows(store):
    key = fill(store).key
    before = facts(store, key)
    with counted() as seen:
        done = packing.pack(store, "pools", key)
    assert done.packed == ("images", f"rewards/{A}") and done.files[1] < done.files[0]
    # What was packed is read back from the server.
    read = {request.key.split("/data.zarr/")[1] for request in seen if request.verb == "get" and "/c/" in request.key}
    packed = [f"{name}/packed/{part}/c/0/0" for name in done.packed for part in ("values", "ledger")]
    assert all(any(key.startswith(start) for key in read) for start in packed)
    assert facts(store, key) == before
    assert Pool.load(store, key).missing([A], 8, images=True) == []
    assert packing.pack(store, "pools", key).packed == ()
    fill(store, 12)
    assert facts(store, key) == before and Pool.load(store, key).missing([A], 12, images=True) == []


def test_a_packed_store_that_is_copied_into_a_bucket_is_that_store(store, tmp_path):
    local = Store.open(tmp_path / "local")
    key = fill(local).key
    packing.pack(local, "pools", key)
    for path in (file for file in local.root.rglob("*") if file.is_file()):
        (store.root.bucket).put(f"{store.root.key}/{path.relative_to(local.root).as_posix()}", path.read_bytes())
    found = Store(str(store.root))
    assert found.format == 2 and facts(found, key) == facts(local, key)
    shutil.rmtree(local.root)


@pytest.mark.parametrize("nth", [1, 6, 12, 20])
def test_requests_that_fail_in_the_middle_leave_it_whole(store, monkeypatch, nth):
    key = fill(store).key
    before = facts(store, key)
    send, seen = S3Client.send, []

    def failing(self, verb, *rest):
        if verb in ("put", "delete", "copy"):
            seen.append(verb)
            if len(seen) == nth:
                raise KeyboardInterrupt
        return send(self, verb, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(S3Client, "send", failing)
        with pytest.raises(KeyboardInterrupt):
            packing.pack(store, "pools", key)
    assert facts(store, key) == before
    packing.pack(store, "pools", key)
    assert facts(store, key) == before


def test_a_run_in_a_bucket_is_trimmed(store):
    with Run.open(store, "run", {"iterations": 2}) as run:
        for step in range(3):
            ref = save_policy(store, {"policy": step}, {}, {"step": step})
            run.note_ref(step, "update", ref)
            run.commit_summary(step, {"metrics": {}, "refs": {"policy": ref.model_dump(mode="json")}})
    plan = plan_trim(store, "run", Keep())
    assert [item.kind for item in plan.objects] == ["policies"]
    assert apply_trim(store, plan) == plan.objects[0].bytes > 0
    assert isinstance(store.root, ObjectPath)
    assert not (store.root / plan.objects[0].path).exists() and len(list(store.folder("policies").iterdir())) == 2
    assert apply_trim(store, plan_trim(store, "run", Keep())) == 0
