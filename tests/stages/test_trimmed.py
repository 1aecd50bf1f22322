"""A trimmed run goes on from its last policy, and what was let go on purpose is never made again."""

import shutil

import pytest

from solrl_tasks.stages.iteration import policy_after, run_all
from solrl_tasks.stages.recorded import PolicyName, find_policy
from solrl_tasks.stages.session import open_session
from solrl_tasks.store.errors import StoreError
from solrl_tasks.store.root import Store
from solrl_tasks.store.runs import RunView, view_run
from solrl_tasks.store.trimming import Keep, apply_trim, plan_trim
from solrl_tasks.store.trims import TrimmedError, read_trim
from tests.support.contents import run_contents


def run(root, recipe):
    with open_session(root, "run", recipe) as session:
        return list(run_all(session)), session.worker.counters.forwards, session.worker.counters.loads


@pytest.fixture
def trimmed(tmp_path, recipe_of):
    """A run of three iterations that kept its last, and what a run without trimming holds after the fourth."""
    summaries, *_ = run(tmp_path / "store", recipe_of(iterations=3))
    store = Store(tmp_path / "store")
    apply_trim(store, plan_trim(store, "run", Keep(pools=True)))
    assert sorted(read_trim(RunView(store, "run")).steps) == [1, 2]
    return store, summaries


def test_a_finished_trimmed_run_started_again_does_no_work(trimmed, recipe_of):
    store, before = trimmed
    again, forwards, loads = run(store.root, recipe_of(iterations=3))
    assert again == before and forwards == loads == 0
    assert not store.path(before[1].refs["policy"]).exists()


def test_it_goes_on_as_one_that_was_never_trimmed(trimmed, tmp_path, recipe_of):
    store, before = trimmed
    again, *_ = run(store.root, recipe_of(iterations=4))
    whole, *_ = run(tmp_path / "whole", recipe_of(iterations=4))
    assert again[:4] == before
    assert again[4].results() == whole[4].results()
    assert {n: r.digest for n, r in again[4].refs.items()} == {n: r.digest for n, r in whole[4].refs.items()}
    last = {name: found for name, found in run_contents(tmp_path / "whole", "run").items() if name.startswith("4/")}
    assert last["4/policy"]
    for step in (1, 2):
        assert not store.path(before[step].refs["policy"]).exists(), "nothing was made again"


def test_a_policy_that_was_let_go_is_refused_with_what_was_kept(trimmed, recipe_of):
    store, _ = trimmed
    with open_session(store.root, "other", recipe_of()) as session:
        assert find_policy(session, PolicyName("run", 3, "ema")).ref is not None
        with pytest.raises(TrimmedError, match=r"iteration 2 of run run was trimmed.*iterations 0, 3"):
            find_policy(session, PolicyName("run", 2, "ema"))


def test_a_lost_policy_that_cannot_be_made_again_stops_the_run_that_needs_it(trimmed, recipe_of):
    store, summaries = trimmed
    shutil.rmtree(store.path(summaries[3].refs["policy"]))
    assert run(store.root, recipe_of(iterations=3))[0] == summaries, "nothing needs it yet"
    with pytest.raises(StoreError, match=r"step 3: .*cannot be made again.*put it back from a copy"):
        run(store.root, recipe_of(iterations=4))


def test_a_damaged_policy_that_cannot_be_made_again_is_said_with_what_helps(trimmed, recipe_of, monkeypatch):
    store, summaries = trimmed
    (store.path(summaries[3].refs["policy"]) / "ema.safetensors").write_bytes(b"")
    notes: list[str] = []
    with open_session(store.root, "run", recipe_of(iterations=3)) as session:
        monkeypatch.setattr(session.reporter, "note", notes.append)
        assert list(run_all(session)) == summaries
    (said,) = [note for note in notes if "ema.safetensors is damaged" in note]
    assert "cannot be made again" in said and "put back from a copy" in said
    assert "with the same run id" not in said, "that would not help"


def test_what_was_lost_and_not_trimmed_is_made_again_as_ever(tmp_path, recipe_of):
    before, *_ = run(tmp_path / "store", recipe_of(iterations=2))
    store = Store(tmp_path / "store")
    apply_trim(store, plan_trim(store, "run", Keep(last=2)))
    assert read_trim(view_run(store, "run")).steps == {}
    shutil.rmtree(store.path(before[1].refs["policy"]))
    with open_session(store.root, "run", recipe_of(iterations=2)) as session:
        assert list(run_all(session)) == before
        assert store.path(policy_after(session, 1)).exists()
