"""Whatever happens to the files of a pool: it is found and redone, and never read as a result."""

import json
import random
import shutil

import numpy as np
import pytest

from solrl_tasks.store import errors
from solrl_tasks.store.atomic import write_sealed
from solrl_tasks.store.pool import Pool, describe_pools, survey_pools

ROWS = ("aa-0", "bb-0")
SPEC = {"engine": "fake"}
RECORD = {"threads": 1}
A = "soft@1"


def open_pool(store):
    return Pool.open(store, SPEC, ROWS, 4)


def truth(row, start, stop):
    return (np.arange(start, stop) * 0.5 + row).astype(np.float32)


def fill(pool, images=True):
    with pool.lock():
        pool.ensure_columns(8)
        todo = pool.missing([A], 8, images)
        for block in todo:
            shown = np.random.default_rng(block.row).integers(0, 255, (4, 8, 8, 3), dtype=np.uint8)
            pool.write(block, {A: truth(block.row, block.start, block.stop)}, shown, 1.0, RECORD)
    return todo


@pytest.fixture
def filled(store):
    pool = open_pool(store)
    fill(pool)
    return pool, store, store.root / "pools" / pool.key, pool.digest([A], 8)


def damages(path):
    whole = path.read_bytes()
    generator = random.Random(path.name)
    yield "removed", None
    yield "emptied", b""
    yield "truncated", whole[: len(whole) // 2]
    yield "one byte short", whole[:-1]
    yield "longer", whole + b"\0"
    yield "zeroed", bytes(len(whole))
    for _ in range(12):
        flipped = bytearray(whole)
        bit = generator.randrange(len(whole) * 8)
        flipped[bit // 8] ^= 1 << bit % 8
        yield f"bit {bit} flipped", bytes(flipped)


CHUNKS = ["rewards/soft@1/values/c/0/1", "rewards/soft@1/ledger/c/0/1/0", "images/values/c/0/1/0/0/0",
          "images/ledger/c/0/1/0"]  # fmt: skip


@pytest.mark.parametrize("name", CHUNKS)
def test_a_damaged_chunk_or_mark_costs_its_block_only(filled, name):
    pool, _, root, digest = filled
    path = root / "data.zarr" / name
    whole = path.read_bytes()
    for what, data in damages(path):
        path.unlink() if data is None else path.write_bytes(data)
        todo = pool.missing([A], 8, images=True)
        assert [(b.row, b.index) for b in todo] == [(0, 1)], what
        assert todo[0].images_missing == name.startswith("images"), what
        assert todo[0].needs_sampling == name.startswith("images"), what
        if name.startswith("rewards"):
            with pytest.raises(errors.IncompleteError):
                pool.rewards(A, 8)
        else:
            with pytest.raises(errors.IncompleteError):
                pool.images(0, [4])
        assert len(fill(pool)) == 1
        assert pool.digest([A], 8) == digest and pool.missing([A], 8, images=True) == [], what
        assert path.read_bytes()[:16] == whole[:16] or "ledger" in name


def test_a_chunk_in_the_place_of_another_is_found(filled):
    pool, _, root, _ = filled
    chunks = root / "data.zarr" / "rewards" / A
    for part in ("values/c/0/0", "ledger/c/0/0/0"):
        other = chunks / part.replace("c/0/0", "c/0/1", 1)
        other.write_bytes((chunks / part).read_bytes())
    assert [(b.row, b.index) for b in pool.missing([A], 8)] == [(0, 1)]


def test_a_chunk_that_is_a_folder_is_found(filled):
    pool, _, root, _ = filled
    path = root / "data.zarr" / CHUNKS[0]
    path.unlink()
    path.mkdir()
    assert [(b.row, b.index) for b in pool.missing([A], 8)] == [(0, 1)]


def test_marks_alone_are_believed_only_if_nobody_asked_to_verify(filled):
    pool, _, root, _ = filled
    (root / "data.zarr" / CHUNKS[0]).unlink()
    assert pool.missing([A], 8, verify=False) == []


@pytest.mark.parametrize("name", ["values", "ledger"])
@pytest.mark.parametrize("damage", ["truncated", "emptied", "removed", "no json", "other shape", "other codecs"])
def test_damaged_metadata_of_a_reward_puts_that_reward_aside(filled, caplog, name, damage):
    pool, store, root, digest = filled
    path = root / "data.zarr" / "rewards" / A / name / "zarr.json"
    text = path.read_text()
    metadata = json.loads(text)
    if damage == "removed":
        path.unlink()
    elif damage == "other shape":
        path.write_text(json.dumps({**metadata, "shape": [3, *metadata["shape"][1:]]}))
    elif damage == "other codecs":
        path.write_text(json.dumps({**metadata, "codecs": metadata["codecs"][:1]}))
    else:
        path.write_text({"truncated": text[:100], "emptied": "", "no json": "[1,"}[damage])
    todo = pool.missing([A], 8, images=True)
    assert len(todo) == 4 and not any(b.needs_sampling for b in todo)
    assert "moved to" in caplog.text
    assert any(path.name.startswith("pools-") for path in store.quarantine.iterdir())
    fill(pool)
    assert open_pool(store).digest([A], 8) == digest


def test_every_flipped_bit_of_array_metadata_is_harmless_or_found(filled):
    pool, _, root, digest = filled
    path = root / "data.zarr" / "rewards" / A / "values" / "zarr.json"
    whole = path.read_bytes()
    aside = root.parent / "copy"
    shutil.copytree(path.parent.parent, aside)
    for bit in range(0, len(whole) * 8, 37):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        path.write_bytes(flipped)
        lacking = pool.missing([A], 8)
        if not lacking:
            assert pool.digest([A], 8) == digest
        shutil.rmtree(path.parent.parent, ignore_errors=True)
        shutil.copytree(aside, path.parent.parent)
    assert pool.missing([A], 8) == []


@pytest.mark.parametrize("damage", ["truncated", "removed", "of another key"])
def test_a_damaged_spec_puts_the_pool_aside(filled, caplog, damage):
    _, store, root, digest = filled
    path = root / "spec.json"
    if damage == "removed":
        path.unlink()
    elif damage == "of another key":
        other = Pool.open(store, {"engine": "other"}, ROWS, 4)
        path.write_bytes((store.root / "pools" / other.key / "spec.json").read_bytes())
    else:
        path.write_bytes(path.read_bytes()[:-10])
    pool = open_pool(store)
    assert "everything in it is computed again" in caplog.text
    assert len(list(store.quarantine.glob("*.why.txt"))) == 1
    assert len(fill(pool)) == 4
    assert pool.digest([A], 8) == digest


def test_damaged_groups_are_mended_without_loss(filled):
    _, store, root, _ = filled
    for path in (root / "data.zarr" / "zarr.json", root / "data.zarr" / "rewards" / "zarr.json"):
        path.write_text("{")
    assert open_pool(store).missing([A], 8, images=True) == []
    assert json.loads((root / "data.zarr" / "zarr.json").read_text())["attributes"]["spec"] == SPEC


def test_a_lost_record_is_said(filled):
    pool, _, root, _ = filled
    shutil.rmtree(root / "records")
    assert list(pool.records().values()) == [None]
    with pytest.raises(errors.RecordMismatchError, match="its record is lost"):
        pool.admit({"threads": 2}, pool.missing(["b@1"], 8, images=True)[:0] + pool.missing(["b@1"], 12))


def test_a_damaged_pool_does_not_break_listings(filled):
    _, store, root, _ = filled
    Pool.open(store, {"engine": "other"}, ROWS, 4)
    (root / "spec.json").write_text("{")
    assert [info.spec for info in describe_pools(store)] == [{"engine": "other"}]
    assert "damaged" in survey_pools(store).unreadable[root.name]
    assert not store.quarantine.exists()


@pytest.mark.parametrize("content", [[], {"spec": SPEC}, "spec", None])
def test_a_whole_file_of_something_else_in_the_place_of_a_spec_is_damage(filled, content):
    _, store, root, digest = filled
    write_sealed(root / "spec.json", content)
    with pytest.raises(errors.DamagedError, match=r"spec\.json is damaged: it holds no spec and shape"):
        Pool.load(store, root.name)
    assert describe_pools(store) == []
    pool = open_pool(store)
    fill(pool)
    assert pool.digest([A], 8) == digest


@pytest.mark.parametrize("content", [{"a": 1}, [], "text"])
def test_prompts_of_something_else_are_damage_and_noted_anew(filled, content):
    pool, _, root, _ = filled
    prompts = [{"text": row, "metadata": {}} for row in ROWS]
    write_sealed(root / "prompts.json", content)
    assert pool.noted_prompts() is None
    assert f"it does not hold {len(ROWS)} prompts" in pool.note_prompts(prompts)
    assert pool.noted_prompts() == prompts and pool.prompts_fault() == ""


def test_half_written_files_of_dead_writers_are_swept_by_the_next(filled):
    pool, _, root, _ = filled
    stray = root / "data.zarr" / "rewards" / A / "values" / "c" / "0" / "0.0123.partial"
    stray.write_bytes(b"half")
    assert pool.missing([A], 8) == []
    with pool.lock():
        assert not stray.exists()


def test_a_growth_that_was_interrupted_is_completed(filled):
    _, store, root, digest = filled
    path = root / "data.zarr" / "rewards" / A / "values" / "zarr.json"
    metadata = json.loads(path.read_text())
    path.write_text(json.dumps({**metadata, "shape": [2, 16]}))
    again = open_pool(store)
    assert again.missing([A], 8) == [] and len(again.missing([A], 16)) == 4
    with again.lock():
        again.ensure_columns(16)
        for block in again.missing([A], 16):
            again.write(block, {A: truth(block.row, block.start, block.stop)}, None, 1.0, RECORD)
    assert again.missing([A], 16) == [] and again.digest([A], 8) == digest
