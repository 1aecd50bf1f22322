"""Kept images serve rewards that come later; kept pictures never change the rewards that are there."""

import shutil

import numpy as np
import pytest

from solrl_tasks.config.recipe import ModelSpec, RewardSpec
from solrl_tasks.rewards.base import reward_id
from solrl_tasks.rewards.scoring import make_reward
from solrl_tasks.stages import thumbnails
from solrl_tasks.stages.explore import explore
from solrl_tasks.stages.iteration import policy_after
from solrl_tasks.stages.plan import plan_explore
from solrl_tasks.stages.rescore import RescoreError, rescore
from solrl_tasks.store.pool import Pool, describe_pools
from solrl_tasks.workers.inline import InlineWorker
from solrl_tasks.workers.numerics import default_device

DARKNESS = RewardSpec(name="tests.support.rewards:darkness")
NAME = reward_id(make_reward(DARKNESS))
COLOURS = "colourfulness@1"
BLOCKS, IMAGES = 4, 16
"""Of the micro recipe: two prompts with eight candidates in chunks of four."""


def fill(session):
    """Explores the first iteration; returns the open pool."""
    job = plan_explore(session, 1, policy_after(session, 0))
    explore(session, job)
    return job.open(session)


@pytest.fixture
def pool(opened):
    """A filled pool that keeps its images."""
    with opened("first") as session:
        return fill(session)


@pytest.fixture
def small(monkeypatch):
    """Thumbnails of 16 px: the images of the micro model, 32 px, are larger."""
    monkeypatch.setattr(thumbnails, "SIDE", 16)


@pytest.fixture
def worker():
    return InlineWorker(ModelSpec(), default_device())


def add(pool, worker, spec=DARKNESS, **more):
    return rescore(pool, spec, worker, default_device(), **more)


def test_a_reward_is_added_without_sampling_decoding_or_weights(pool, worker, opened):
    before = pool.rewards(COLOURS, 8)
    done = add(pool, worker)
    counters = worker.counters
    assert (counters.loads, counters.forwards, counters.decoded, counters.syncs) == (0, 0, 0, 0)
    assert (counters.scored, done.scored, done.total, done.unexplored) == (IMAGES, BLOCKS, BLOCKS, 0)
    images = np.stack([pool.images(row, range(8)) for row in range(2)])
    assert pool.rewards(NAME, 8) == pytest.approx(1 - images.mean(axis=(2, 3, 4)) / 255, rel=1e-5)
    assert np.array_equal(pool.rewards(COLOURS, 8), before)
    with opened("second", rewards=[{"name": "colourfulness"}, {"name": DARKNESS.name}]) as session:
        fill(session)
        assert session.worker.counters.scored == 0


def test_what_it_cost_is_charged_where_the_reward_is_used(pool, worker):
    alone = pool.seconds([COLOURS], 8)
    done = add(pool, worker)
    assert pool.seconds([COLOURS], 8) == alone
    assert pool.seconds([COLOURS, NAME], 8) == pytest.approx(alone + done.seconds, abs=1e-4)


def test_a_second_call_does_nothing(pool, worker):
    add(pool, worker)
    done = add(pool, worker)
    assert (done.scored, done.total, worker.counters.scored) == (0, BLOCKS, IMAGES)


def test_a_call_that_was_stopped_goes_on_where_it_stopped(pool, worker):
    def stop(done, total):
        assert total == BLOCKS
        if done == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        add(pool, worker, progress=stop)
    again = InlineWorker(ModelSpec(), default_device())
    assert add(pool, again).scored == again.counters.scored / 4 == 1
    assert pool.missing([NAME], 8) == []


def test_a_pool_without_images_is_refused_and_left_alone(opened, worker):
    with opened("bare", explore__store_images="none") as session:
        pool = fill(session)
    with pytest.raises(RescoreError, match=r"keeps no images of 4 of 4 blocks.*`store_images: lossless`"):
        add(pool, worker)
    assert pool.arrays() == [f"rewards/{COLOURS}"]


def test_a_reward_of_thumbnails_is_refused(opened, worker, small):
    with opened("small", explore__store_images="thumbnails") as session:
        pool = fill(session)
    with pytest.raises(RescoreError, match=r"thumbnails of .* px only, and a reward of a smaller image is another"):
        add(pool, worker)


def test_thumbnails_are_mean_colours_and_small_images_are_kept_whole(small):
    images = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)
    little = thumbnails.make_thumbnails(images)
    means = images.reshape(3, 16, 2, 16, 2, 3).mean(axis=(2, 4))
    assert little.shape == (3, 16, 16, 3)
    assert np.abs(little - means).max() <= 1
    assert thumbnails.make_thumbnails(np.zeros((1, 64, 32, 3), dtype=np.uint8)).shape == (1, 16, 8, 3)
    assert thumbnails.resolved("thumbnails", 16) == "lossless"
    assert thumbnails.resolved("thumbnails", 17) == "thumbnails"
    assert thumbnails.resolved("none", 16) == "none"


def contents(pool):
    array = pool._folder.array(f"rewards/{COLOURS}")
    return pool.rewards(COLOURS, 8), array.entries(2)


@pytest.mark.parametrize(("first", "then"), [("none", "thumbnails"), ("none", "lossless"), ("thumbnails", "lossless")])
def test_pictures_are_filled_in_without_touching_rewards(opened, small, first, then):
    with opened("first", explore__store_images=first) as session:
        before = contents(fill(session))
    with opened("then", explore__store_images=then) as session:
        pool = fill(session)
        assert session.worker.counters.scored == 0
        assert session.worker.counters.decoded == IMAGES
        assert pool.pictures(0, [0, 5]).shape == ((2, 16, 16, 3) if then == "thumbnails" else (2, 32, 32, 3))
    assert all(np.array_equal(old, new) for old, new in zip(before, contents(pool), strict=True))


@pytest.mark.parametrize("wanted", ["none", "thumbnails"])
def test_kept_images_serve_for_less(opened, small, pool, wanted):
    with opened("less", explore__store_images=wanted) as session:
        assert fill(session).key == pool.key
        assert session.worker.counters.loads == 0


def test_images_are_stored_compressed_and_exactly(pool, worker):
    files = [
        path for path in (pool._folder.path / "data.zarr" / "images" / "values" / "c").rglob("*") if path.is_file()
    ]
    assert len(files) == BLOCKS
    codecs = (pool._folder.path / "data.zarr" / "images" / "values" / "zarr.json").read_text()
    assert '"zstd"' in codecs
    assert pool.images(0, [0]).dtype == np.uint8


def test_blocks_that_nobody_explored_are_left_to_a_run(opened, worker, monkeypatch):
    write, calls = Pool.write, []

    def stop(self, *arguments):
        calls.append(write(self, *arguments))
        if len(calls) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(Pool, "write", stop)
    with opened("first") as session, pytest.raises(KeyboardInterrupt):
        fill(session)
    monkeypatch.setattr(Pool, "write", write)
    (info,) = describe_pools(session.store)
    done = add(Pool.load(session.store, info.key), worker)
    assert (done.total, done.scored, done.unexplored) == (2, 2, 2)
    with opened("first") as session:
        pool = fill(session)
    assert len(pool.missing([NAME], 8)) == 2


def test_prompts_are_noted_with_what_rewards_need(opened, tmp_path, worker):
    lines = "".join(f'{{"prompt": "a red circle and thing {n}", "n": {n}}}\n' for n in range(5))
    (tmp_path / "known.jsonl").write_text(lines)
    with opened("known", prompts__train=str(tmp_path / "known.jsonl")) as session:
        pool = fill(session)
    add(pool, worker, RewardSpec(name="tests.support.rewards:number"))
    numbers = pool.rewards(reward_id(make_reward(RewardSpec(name="tests.support.rewards:number"))), 8)
    wanted = [item["metadata"]["n"] for item in pool.noted_prompts()]
    assert numbers.tolist() == [[float(n)] * 8 for n in wanted]
    (pool._folder.path / "prompts.json").unlink()
    with pytest.raises(RescoreError, match="does not know its prompts"):
        add(pool, worker)
    with opened("known", prompts__train=str(tmp_path / "known.jsonl")) as session:
        fill(session)
    assert add(pool, worker).scored == BLOCKS


def test_prompts_of_another_pool_are_not_taken_for_its_own(opened, pool, worker):
    with opened("other", seed=9) as session:
        other = fill(session)
    assert [p["text"] for p in pool.noted_prompts()] != [p["text"] for p in other.noted_prompts()]
    shutil.copyfile(other._folder.path / "prompts.json", pool._folder.path / "prompts.json")
    with pytest.raises(RescoreError, match="are not those of its rows"):
        add(pool, worker)
