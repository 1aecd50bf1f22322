"""Samples: latents are kept, so what is added later is computed from them."""

import numpy as np
import pytest

from solrl_tasks.store import errors
from solrl_tasks.store.root import Store
from solrl_tasks.store.samples import Samples

SPEC = {"selection": "s", "steps": 10}
INDICES = np.array([[7, 2, 9, 4, 0], [-1, -1, -1, -1, -1], [1, 3, 5, 8, 6]])
SHAPE = (2, 3, 3)
RECORD = {"threads": 1}
A, B = "soft@1", "strict@2"


def open_samples(store, **kwargs):
    return Samples.open(store, SPEC, INDICES, SHAPE, 4, **kwargs)


def latents_of(candidates, row):
    return np.stack([np.full(SHAPE, row * 100 + c, np.float32) for c in candidates])


def fill(samples, rewards, images=False, limit=None):
    with samples.lock("test"):
        todo = samples.missing(rewards, images)
        for block in todo[:limit]:
            made = latents_of(samples.candidates(block), block.row) if block.needs_sampling else None
            x0 = samples.block_latents(block) if made is None else made
            values = {name: x0.mean(axis=(1, 2, 3)).astype(np.float32) + len(name) for name in block.missing}
            shown = np.zeros((4, 4, 4, 3), np.uint8) + x0[:, :1, :1, :1].astype(np.uint8)
            samples.write(block, made, values, shown if block.images_missing else None, 2.0, RECORD)
    return todo


def test_samples_come_back_and_left_out_rows_lack_nothing(store):
    samples = open_samples(store)
    todo = fill(samples, [A], images=True)
    assert [(b.row, b.index) for b in todo] == [(0, 0), (0, 1), (2, 0), (2, 1)]
    assert all(b.needs_sampling and b.missing == (A,) and b.images_missing for b in todo)
    again = open_samples(Store(store.root))
    assert again.missing([A], images=True) == []
    assert again.latents().shape == (3, 5, *SHAPE)
    assert np.array_equal(again.latents()[2], latents_of(INDICES[2], 2))
    assert np.isnan(again.latents()[1]).all() and np.isnan(again.rewards(A)[1]).all()
    assert np.array_equal(again.rewards(A)[0], INDICES[0].astype(np.float32) + len(A))
    assert np.array_equal(again.images(2, [4, 0])[:, 0, 0, 0], [206, 201])
    assert again.active.tolist() == [True, False, True]


def test_the_tail_repeats_the_last_candidate(store):
    samples = open_samples(store)
    block = samples.missing([A])[1]
    assert (block.start, block.stop) == (4, 8)
    assert samples.candidates(block).tolist() == [0, 0, 0, 0]


def test_a_new_reward_needs_no_sampling(store):
    samples = open_samples(store)
    fill(samples, [A])
    todo = fill(samples, [A, B])
    assert len(todo) == 4
    assert all(b.missing == (B,) and not b.needs_sampling for b in todo)
    assert samples.missing([A, B]) == []


def test_images_asked_for_later_need_no_sampling(store):
    samples = open_samples(store)
    fill(samples, [A])
    todo = samples.missing([A], images=True)
    assert all(b.images_missing and not b.missing and not b.needs_sampling for b in todo)
    fill(samples, [A], images=True)
    assert samples.missing([A], images=True) == []


def test_damaged_latents_make_everything_of_the_block_missing(store):
    samples = open_samples(store)
    fill(samples, [A])
    digest = samples.digest([A])
    (store.root / "samples" / samples.key / "data.zarr/latents/values/c/2/0/0/0/0").write_bytes(b"")
    (block,) = samples.missing([A])
    assert (block.row, block.index, block.missing, block.needs_sampling) == (2, 0, (A,), True)
    with pytest.raises(errors.IncompleteError, match="row 2, columns 0 to 3"):
        samples.latents()
    assert len(fill(samples, [A])) == 1
    assert samples.digest([A]) == digest


def test_rewards_without_latents_do_not_count(store):
    samples = open_samples(store)
    with samples.lock():
        block = samples.missing([A])[0]
        with pytest.raises(ValueError, match="needs its latents"):
            samples.write(block, None, {A: np.zeros(4, np.float32)}, None, 1.0, RECORD)
        with pytest.raises(ValueError, match=r"latents is float32 \[4, 2, 3, 3\], found float32 \[4, 9\]"):
            samples.write(block, np.zeros((4, 9), np.float32), {A: np.zeros(4, np.float32)}, None, 1.0, RECORD)
    assert len(samples.missing([A])) == 4


def test_digest_seconds_and_reference(store, tmp_path):
    one, other = open_samples(store), open_samples(Store.open(tmp_path / "other"))
    fill(one, [A])
    fill(other, [A, B])
    assert one.digest([A]) == other.digest([A]) != other.digest([A, B])
    assert one.seconds([A]) == pytest.approx(8.0)
    fill(one, [B])
    assert one.seconds([A]) == pytest.approx(8.0) and one.seconds([A, B]) == pytest.approx(16.0)
    loaded = Samples.load(store, one.ref([A]))
    assert np.array_equal(loaded.indices, INDICES) and loaded.latent_shape == SHAPE
    assert loaded.rewards(A).tobytes() == one.rewards(A).tobytes()
    assert list(one.records().values()) == [RECORD]


def test_all_rows_left_out_is_nothing_to_do(store):
    samples = Samples.open(store, SPEC, np.full((2, 3), -1), SHAPE, 4)
    assert samples.missing([A]) == []
    assert samples.latents().shape == (2, 3, *SHAPE) and np.isnan(samples.rewards(A)).all()


@pytest.mark.parametrize("row", [[1, 1], [0, -1], [-2, 0]])
def test_bad_indices_are_refused(store, row):
    with pytest.raises(ValueError, match="indices of row 0"):
        Samples.open(store, SPEC, np.array([row]), SHAPE, 4)


def test_other_indices_under_the_same_spec_are_an_error(store):
    open_samples(store)
    with pytest.raises(errors.StoreError, match="another shape"):
        Samples.open(store, SPEC, INDICES[:, ::-1], SHAPE, 4)
