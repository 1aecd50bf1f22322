"""Two processes on one store: nothing is spoiled, nothing is done twice, and one run has one process."""

import pytest

from solrl_tasks.config.recipe import WorkersSpec
from solrl_tasks.stages.session import open_session
from solrl_tasks.store.errors import LockedError
from solrl_tasks.store.locks import holder
from solrl_tasks.store.root import Store
from solrl_tasks.store.runs import Run
from tests.support.contents import run_contents
from tests.support.killing import Child, Kill, check_kill_left_no_damage, leftovers, run_child
from tests.support.micro import micro_recipe, write_prompts
from tests.support.wholeness import check_whole

WORK = (r"\d/\w+/forward", r"\d/\w+/decode", r"\d/\w+/score", r"\d/update/optimizer step")
PAUSE = 0.004
"""Seconds a child waits at each event, so that two are sure to meet."""


@pytest.fixture(scope="module")
def recipe(micro_model, tmp_path_factory):
    return micro_recipe(micro_model, write_prompts(tmp_path_factory.mktemp("prompts")), iterations=1)


@pytest.fixture(scope="module")
def alone(recipe, tmp_path_factory):
    """What one run in a store of its own does and makes."""
    root = tmp_path_factory.mktemp("alone") / "store"
    attempt = run_child(root, "run", recipe)
    return attempt, run_contents(root, "run")


def finish(*children):
    attempts = [child.wait() for child in children]
    for attempt in attempts:
        assert not attempt.error and not attempt.killed, attempt.error
    return attempts


def test_two_runs_that_want_the_same_do_it_once_between_them(recipe, alone, tmp_path):
    root = tmp_path / "store"
    attempts = finish(*(Child(root, name, recipe, pause=PAUSE) for name in ("one", "two")))
    for name in ("one", "two"):
        assert run_contents(root, name) == alone[1]
        check_whole(root, name, recipe)
    for pattern in WORK:
        assert sum(attempt.count(pattern) for attempt in attempts) == alone[0].count(pattern), pattern
    assert leftovers(root) == []
    for attempt in attempts:
        check_kill_left_no_damage(root, attempt)
    assert all(attempt.count(r"\d/\w+/begin") == alone[0].count(r"\d/\w+/begin") for attempt in attempts)


def test_two_runs_that_share_a_pool_explore_it_once(recipe, alone, micro_model, tmp_path):
    root = tmp_path / "store"
    other = recipe.model_copy(update={"select": recipe.select.model_copy(update={"keep": 6})})
    attempts = finish(Child(root, "four", recipe, pause=PAUSE), Child(root, "six", other, pause=PAUSE))
    assert run_contents(root, "four") == alone[1]
    explored = r"1/explore/forward"
    assert sum(attempt.count(explored) for attempt in attempts) == alone[0].count(explored)
    run_child(tmp_path / "apart", "six", other)
    assert run_contents(root, "six") == run_contents(tmp_path / "apart", "six")


def test_a_run_takes_over_what_a_killed_one_left_of_their_pool(recipe, alone, tmp_path):
    root = tmp_path / "store"
    killed = Child(root, "one", recipe, Kill(r"1/explore/score", 2), pause=PAUSE)
    assert killed.seen(r"1/explore/forward")
    other = Child(root, "two", recipe, pause=PAUSE)
    assert killed.wait().killed
    (attempt,) = finish(other)
    assert attempt.count(r"1/explore/forward") < alone[0].count(r"1/explore/forward")
    assert run_contents(root, "two") == alone[1]
    run_child(root, "one", recipe)
    assert run_contents(root, "one") == alone[1]
    assert leftovers(root) == []


def test_the_same_run_in_a_second_process_is_refused_with_the_holder_named(recipe, alone, tmp_path):
    root = tmp_path / "store"
    first = Child(root, "run", recipe, pause=PAUSE)
    assert first.seen(r"1/explore/begin")
    held = holder(root / "runs" / "run" / "lock")
    second = Child(root, "run", recipe).wait()
    assert "LockedError" in second.error and second.count("") == 0
    assert f"run run (process {held['pid']} on {held['host']}, since" in second.error
    finish(first)
    assert run_contents(root, "run") == alone[1]


def test_no_actors_are_hired_for_a_run_that_another_process_has(recipe, tmp_path, monkeypatch):
    def never(*_):
        raise AssertionError("actors were wanted")

    monkeypatch.setattr("solrl_tasks.workers.ray_worker.hired", never)
    by_actors = recipe.model_copy(update={"workers": WorkersSpec(kind="ray", actors=2)})
    store = Store.open(tmp_path / "store")
    with (
        Run.open(store, "run", {}),
        pytest.raises(LockedError, match=r"run run: the lock is held by run run \(process"),
    ):
        open_session(store.root, "run", by_actors).__enter__()
    with pytest.raises(AssertionError, match="actors were wanted"):
        open_session(store.root, "run", by_actors).__enter__()
