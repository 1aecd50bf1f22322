"""Policies, selections and evaluations: sealed folders that are verified on every hit."""

import logging
import time

import numpy as np
import pytest
import torch

from solrl_tasks.store import errors, folders
from solrl_tasks.store.evaluations import find_evaluation, load_evaluation, save_evaluation
from solrl_tasks.store.policies import find_policy, load_policy, save_policy
from solrl_tasks.store.root import Store
from solrl_tasks.store.selections import find_selection, load_selection, save_selection

SPEC = {"parent": "base", "lr": 0.001}
META = {"optimizer_step": 3, "counters": {"epoch": 1}}


def tensors():
    base = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    current = {"b.lora_B": base.T, "a.lora_A": base[:, :2]}
    return {"current": current, "optimizer": {"step": torch.tensor(3.0), "m": base * 1e-30}}


def save(store):
    return save_policy(store, SPEC, tensors(), META)


def test_a_policy_comes_back_bit_for_bit(store):
    ref = save(store)
    policy = load_policy(Store(store.root), ref)
    assert policy.stems == ("current", "optimizer") and policy.meta == META and policy.spec == SPEC
    for stem, named in tensors().items():
        loaded = policy.tensors(stem)
        assert loaded.keys() == named.keys()
        assert all(torch.equal(loaded[name], named[name]) for name in named)
    assert find_policy(store, SPEC) == ref
    assert load_policy(store, ref.key).ref == ref
    with pytest.raises(KeyError, match="it has current, optimizer"):
        policy.tensors("ema")


def test_equal_policies_have_equal_digests_and_bytes(store, tmp_path):
    other = Store.open(tmp_path / "other")
    assert save(store) == save(other)
    name = f"policies/{save(store).key}/current.safetensors"
    assert (store.root / name).read_bytes() == (other.root / name).read_bytes()


def test_the_digest_covers_tensors_and_meta(store, tmp_path):
    changed = tensors()
    changed["optimizer"]["m"] = changed["optimizer"]["m"] + 1
    digests = {save(store).digest}
    digests.add(save_policy(Store.open(tmp_path / "a"), SPEC, changed, META).digest)
    digests.add(save_policy(Store.open(tmp_path / "b"), SPEC, tensors(), {}).digest)
    assert len(digests) == 3


def test_the_digest_does_not_cover_what_the_making_took(store, tmp_path):
    other = Store.open(tmp_path / "other")
    ref = save_policy(store, SPEC, tensors(), META, {"seconds": 1.0})
    assert save_policy(other, SPEC, tensors(), META, {"seconds": 2.0}) == ref
    assert load_policy(other, ref).making == {"seconds": 2.0}


def test_what_is_there_stays(store):
    ref = save(store)
    assert save_policy(store, SPEC, {"current": {"x": torch.zeros(1)}}, {}) == ref


def test_an_unknown_policy_is_none_or_an_error(store):
    assert find_policy(store, SPEC) is None
    with pytest.raises(errors.MissingObjectError, match="policies/000000000000000000000000"):
        load_policy(store, "0" * 24)


def damage_flip(path):
    data = bytearray(path.read_bytes())
    data[-5] ^= 4
    path.write_bytes(data)


def damage_truncate(path):
    path.write_bytes(path.read_bytes()[:-1])


def damage_remove(path):
    path.unlink()


@pytest.mark.parametrize("name", ["current.safetensors", "optimizer.safetensors", "manifest.json"])
@pytest.mark.parametrize("damage", [damage_flip, damage_truncate, damage_remove])
def test_a_damaged_policy_is_moved_aside_and_missing(store, caplog, damage, name):
    ref = save(store)
    path = store.path(ref) / name
    before = path.read_bytes()
    damage(path)
    if damage is damage_truncate and name == "manifest.json":
        path.write_bytes(before[:-20])
    with pytest.raises(errors.DamagedError, match=r"damaged: .*; start the run that made it with the same run id"):
        load_policy(store, ref)
    caplog.set_level(logging.WARNING)
    assert find_policy(store, SPEC) is None
    assert "moved to" in caplog.text
    assert len(list(store.quarantine.glob("policies-*"))) == 2
    assert save(store) == ref
    assert find_policy(store, SPEC) == ref


def test_saving_over_a_damaged_policy_replaces_it(store):
    ref = save(store)
    damage_flip(store.path(ref) / "current.safetensors")
    assert save(store) == ref
    assert load_policy(store, ref).meta == META


def test_a_reference_to_other_content_is_refused(store):
    ref = save(store)
    with pytest.raises(errors.DamagedError, match="where the reference expects"):
        load_policy(store, ref.model_copy(update={"digest": "0" * 64}))


@pytest.mark.parametrize("stem", ["../x", "a/b", ".hidden", ""])
def test_file_names_stay_in_the_folder(store, stem):
    with pytest.raises(ValueError, match="folder name"):
        save_policy(store, SPEC, {stem: {}}, {}) if stem else save_evaluation(store, SPEC, {}, {stem: b""})
    assert list(store.folder("policies").glob("*")) == []


def test_a_selection_comes_back(store):
    indices = np.array([[5, 3], [-1, -1], [0, 9]])
    spec = {"pool": "p", "keep": 2}
    assert find_selection(store, spec) is None
    ref = save_selection(store, spec, indices, {"reasons": {"1": "no_spread"}})
    found = find_selection(store, spec)
    assert found.ref == ref and found.notes == {"reasons": {"1": "no_spread"}}
    assert found.indices.dtype == np.int64 and np.array_equal(found.indices, indices)
    assert np.array_equal(load_selection(store, ref).indices, indices)
    other = save_selection(store, {**spec, "pool": "q"}, indices, {"reasons": {"1": "no_spread"}})
    assert other.digest != ref.digest


def test_a_damaged_selection_is_missing(store):
    ref = save_selection(store, SPEC, np.array([[1, 2]]), {})
    path = store.path(ref) / "manifest.json"
    path.write_text(path.read_text().replace("2", "3", 1))
    assert find_selection(store, SPEC) is None


def test_an_evaluation_comes_back_with_its_images(store):
    ref = save_evaluation(store, SPEC, {"mean": 0.25}, {"grid.png": b"\x89PNG", "a.png": b"x"})
    found = find_evaluation(store, SPEC)
    assert found.ref == ref and found.content == {"mean": 0.25}
    assert {name: path.read_bytes() for name, path in found.images.items()} == {
        "a.png": b"x",
        "grid.png": b"\x89PNG",
    }
    assert load_evaluation(store, ref.key).content == {"mean": 0.25}
    found.images["a.png"].write_bytes(b"y")
    assert find_evaluation(store, SPEC) is None


def counted_hashes(monkeypatch):
    hashed = []
    real = folders._sha256
    monkeypatch.setattr(folders, "_sha256", lambda file: hashed.append(file.name) or real(file))
    return hashed


def test_files_are_hashed_once_while_nobody_touches_them(store, monkeypatch):
    ref = save(store)
    time.sleep(0.15)
    load_policy(store, ref)
    hashed = counted_hashes(monkeypatch)
    load_policy(store, ref)
    assert hashed == []
    weights = store.path(ref) / "current.safetensors"
    weights.touch()
    load_policy(store, ref)
    assert "current.safetensors" in hashed


@pytest.mark.parametrize("damage", [damage_flip, damage_truncate, damage_remove])
def test_damage_after_a_file_was_verified_is_found(store, damage):
    ref = save(store)
    time.sleep(0.15)
    load_policy(store, ref)
    damage(store.path(ref) / "current.safetensors")
    with pytest.raises(errors.DamagedError):
        load_policy(store, ref)


def test_a_file_as_young_as_its_clock_is_coarse_is_hashed_again(store, monkeypatch):
    ref = save(store)
    now = time.time_ns()
    monkeypatch.setattr(folders.time, "time_ns", lambda: now - 10**9)
    load_policy(store, ref)
    hashed = counted_hashes(monkeypatch)
    load_policy(store, ref)
    assert hashed


def test_what_a_reader_does_with_what_it_was_given_reaches_no_other(store):
    ref = save(store)
    time.sleep(0.15)  # what has just been written is not remembered
    for _ in range(2):
        policy = load_policy(store, ref)
        assert policy.meta == META and policy.spec == SPEC
        policy.meta["counters"]["epoch"] = 99
        policy.spec["lr"] = 1.0
