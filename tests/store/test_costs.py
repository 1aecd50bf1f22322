"""Recorded costs: what counts, what does not, and nothing counted twice."""

import numpy as np
import pytest

from solrl_tasks.store.costs import CostBook, block_seconds
from solrl_tasks.store.errors import MissingObjectError
from solrl_tasks.store.pool import Pool

A, B = "soft@1", "strict@2"
HERE, THERE = {"hardware": "this"}, {"hardware": "that"}


def fill(store, rewards, seconds=2.0, record=HERE, steps=6, limit=None, engine="fake", columns=8):
    pool = Pool.open(store, {"engine": engine, "steps": steps}, ("a", "b"), 4, reuse="compatible")
    with pool.lock("test"):
        pool.ensure_columns(columns)
        for block in pool.missing(rewards, columns)[:limit]:
            values = {name: np.zeros(4, dtype=np.float32) for name in block.missing}
            pool.write(block, values, None, seconds, record)
    return pool


def costs(store, rewards=(A,), fits=lambda spec: True, made_here=lambda record: record == HERE):
    return [(cost.spec["steps"], cost.images, cost.seconds) for cost in CostBook(store).find(fits, rewards, made_here)]


def test_seconds_and_images_of_all_blocks(store):
    fill(store, [A])
    assert costs(store) == [(6, 2 * 2 * 4, pytest.approx(8.0))]


def test_what_was_scored_together_counts_once_and_what_was_added_counts_where_it_is_asked_for(store):
    fill(store, [A, B])
    assert costs(store, (A, B)) == costs(store, (A,)) == [(6, 16, pytest.approx(8.0))]
    fill(store, ["late@1"], seconds=0.5)
    assert costs(store, (A, "late@1")) == [(6, 16, pytest.approx(10.0))]


def test_blocks_without_a_reward_that_is_asked_for_do_not_count(store):
    fill(store, [A])
    fill(store, [B], limit=1)
    assert costs(store, (A, B)) == [(6, 4, pytest.approx(4.0))]
    assert costs(store, ("never@1",)) == []


def test_blocks_of_other_hardware_and_pools_of_another_kind_do_not_count(store):
    fill(store, [A], limit=3)
    fill(store, [A], seconds=100.0, record=THERE)
    fill(store, [A], engine="other", steps=2)
    assert costs(store, fits=lambda spec: spec["engine"] == "fake") == [(6, 12, pytest.approx(6.0))]
    assert {steps for steps, *_ in costs(store)} == {2, 6}


def test_a_block_whose_second_reward_was_scored_elsewhere_does_not_count(store):
    fill(store, [A])
    fill(store, [B], record=THERE)
    assert costs(store, (A, B)) == []


def test_a_damaged_pool_counts_in_no_cost_and_is_named(store):
    pool = fill(store, [A], steps=2)
    fill(store, [A])
    (store.folder("pools") / pool.key / "spec.json").write_text("torn", encoding="utf-8")
    assert [steps for steps, *_ in costs(store)] == [6]
    book = CostBook(store)
    assert book.unreadable.keys() == {pool.key} and "spec.json is damaged" in book.unreadable[pool.key]


def test_blocks_one_by_one(store):
    pool = fill(store, [A], seconds=1.5)
    assert block_seconds(store, pool.key, [A]) == pytest.approx([1.5] * 4)
    with pytest.raises(MissingObjectError):
        block_seconds(store, "0" * 24, [A])
