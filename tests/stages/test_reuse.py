"""An exploration that was paid for is used again, and only what is missing is computed."""

import shutil

import pytest

from solrl_tasks.stages.iteration import run_step
from solrl_tasks.stages.session import open_session
from solrl_tasks.store.gc import plan_gc
from tests.support.micro import micro_recipe, write_prompts

SEEDS = 8
EVALUATION = 2 * 2 * 2
"""Forwards of a baseline: prompts x seeds x steps."""


def first_iteration(session):
    run_step(session, 0)
    return run_step(session, 1)


def forwards(session):
    return session.worker.counters.forwards


@pytest.fixture(scope="module")
def paid_store(micro_model, tmp_path_factory):
    """A store in which the first iteration of the micro recipe is done, with its prompts and summary."""
    folder = tmp_path_factory.mktemp("paid")
    prompts = write_prompts(folder)
    with open_session(folder / "store", "paid", micro_recipe(micro_model, prompts)) as session:
        summary = first_iteration(session)
    return folder / "store", prompts, summary


@pytest.fixture
def paid(paid_store, tmp_path):
    """The summary of that iteration; a copy of the store is the test's own."""
    shutil.copytree(paid_store[0], tmp_path / "store")
    return paid_store[2]


@pytest.fixture
def opened(paid_store, micro_model, tmp_path):
    """Opens a run in the copied store."""

    def open_run(run_id, **overrides):
        return open_session(tmp_path / "store", run_id, micro_recipe(micro_model, paid_store[1], **overrides))

    return open_run


REGENERATE = 2 * 4 * 3
"""Forwards of regeneration: prompts x kept x steps."""


@pytest.mark.parametrize(
    "overrides",
    [
        {"select__keep": 6},
        {"update__objective": {"name": "nft", "options": {"beta": 0.1}}},
        {"rewards": [{"name": "colourfulness", "weight": 2.0}]},
        {"update__optimizer__lr": 0.02},
    ],
    ids=["keep", "objective", "weights", "lr"],
)
def test_what_does_not_touch_exploration_explores_nothing(opened, paid, overrides):
    with opened("other", **overrides) as session:
        summary = first_iteration(session)
        assert summary.refs["explore"].key == paid.refs["explore"].key
        assert summary.metrics["explore/blocks_computed"] == 0


def test_a_new_weight_that_keeps_the_order_reuses_the_samples_as_well(opened, paid):
    with opened("other", rewards=[{"name": "colourfulness", "weight": 2.0}]) as session:
        first_iteration(session)
        assert session.worker.counters.decoded == EVALUATION / 2


def test_a_new_reward_is_scored_on_kept_images_without_a_forward(opened, paid):
    rewards = [{"name": "colourfulness"}, {"name": "tests.support.rewards:darkness"}]
    with opened("other", rewards=rewards, evaluate__every=0, audit__every=0) as session:
        summary = run_step(session, 1)
        assert summary.refs["explore"].key == paid.refs["explore"].key
        assert session.worker.counters.scored >= 2 * SEEDS
        # Another score may keep other seeds: those alone are sampled.
        assert forwards(session) <= REGENERATE


def test_more_candidates_pay_for_the_new_half_alone(opened, paid):
    with opened("other", explore__candidates=2 * SEEDS, evaluate__every=0, audit__every=0) as session:
        summary = run_step(session, 1)
        assert summary.refs["explore"].key == paid.refs["explore"].key
        explored = forwards(session) - REGENERATE
        assert explored <= 2 * SEEDS * 2
        assert summary.metrics["explore/blocks_computed"] == 4
        assert summary.metrics["explore/blocks_reused"] == 4


@pytest.mark.parametrize(
    "overrides",
    [{"explore__steps": 3}, {"explore__engine": {"name": "bf16"}}, {"seed": 8}, {"explore__sampler": "dpm2"}],
    ids=["steps", "engine", "seed", "sampler"],
)
def test_what_changes_bits_makes_another_pool(opened, paid, overrides):
    with opened("other", **overrides) as session:
        summary = first_iteration(session)
        assert summary.refs["explore"].key != paid.refs["explore"].key
        assert summary.metrics["explore/blocks_reused"] == 0


def test_a_moved_store_still_resolves(paid, paid_store, micro_model, tmp_path):
    (tmp_path / "store").rename(tmp_path / "moved")
    with open_session(tmp_path / "moved", "paid", micro_recipe(micro_model, paid_store[1])) as session:
        first_iteration(session)
        assert session.worker.counters.loads == 0


def test_what_an_interrupted_run_was_filling_is_no_garbage(opened, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    with opened("interrupted", seed=99) as session:
        run_step(session, 0)
        monkeypatch.setattr("solrl_tasks.store.pool.Pool.write", stop)
        with pytest.raises(KeyboardInterrupt):
            run_step(session, 1)
        begun = session.run.refs(1)["explore_begun"]
        store = session.store
    assert begun.key not in {item.key for item in plan_gc(store, min_age_seconds=-1.0)}
