"""Rewards that fail, and groups that teach nothing: what the design says, and visible in the metrics."""

import math
from dataclasses import replace

import numpy as np
import pytest

from solrl_tasks.rewards.base import RewardError
from solrl_tasks.selection.groups import NoValidCandidateError
from solrl_tasks.stages import session as sessions
from solrl_tasks.stages.iteration import run_all
from solrl_tasks.stages.reporter import SilentReporter
from solrl_tasks.stages.session import open_session
from solrl_tasks.stages.update import NothingToLearnError
from solrl_tasks.store.pool import Pool
from solrl_tasks.store.selections import load_selection
from solrl_tasks.workers.inline import InlineWorker
from solrl_tasks.workers.numerics import default_device
from tests.support.micro import micro_recipe, write_prompts

REWARDS = "tests.support.edge_rewards"
CANDIDATES = 16


@pytest.fixture(scope="module")
def recipe_with(micro_model, tmp_path_factory):
    """A recipe of one iteration over two prompts, thing 0 and thing 1, with one reward."""
    prompts = write_prompts(tmp_path_factory.mktemp("prompts"), count=2)

    def make(reward, **overrides):
        rewards = [{"name": reward if ":" in reward else f"{REWARDS}:{reward}"}]
        overrides = {"iterations": 1, "explore__candidates": CANDIDATES, "rewards": rewards, **overrides}
        return micro_recipe(micro_model, prompts, **overrides)

    return make


@pytest.fixture(scope="module")
def worker(recipe_with):
    return InlineWorker(recipe_with("binary").model, default_device())


@pytest.fixture
def run(recipe_with, worker, tmp_path, monkeypatch):
    """Runs it all; returns the last summary and the open session's store."""
    monkeypatch.setattr(sessions, "InlineWorker", lambda *_: worker)

    def start(reward, **overrides):
        with open_session(tmp_path / "store", "run", recipe_with(reward, **overrides)) as session:
            return list(run_all(session))[-1], session

    return start


def explored(session, summary):
    """Proxy scores [P, N] and kept indices [P, K] of an iteration."""
    pool = Pool.load(session.store, summary.refs["explore"])
    (name,) = [name for name in pool._folder.names() if name.startswith("rewards/")]
    return pool.rewards(name.removeprefix("rewards/"), CANDIDATES), load_selection(
        session.store, summary.refs["select"]
    ).indices


@pytest.mark.parametrize("reward", ["not_a_number", "infinite", "raising"])
def test_an_invalid_candidate_is_never_kept_and_is_counted(run, reward):
    summary, session = run(reward)
    scores, indices = explored(session, summary)
    invalid = int((~np.isfinite(scores)).sum())
    assert 0 < invalid < scores.size
    assert summary.metrics["select/invalid_candidates"] == invalid
    assert np.isfinite(np.take_along_axis(scores, indices, axis=1)).all()
    assert summary.metrics["reward/proxy"] == pytest.approx(np.nanmean(np.nanmean(scores, axis=1)))
    assert any("could not be scored" in note for note in summary.notes)
    assert all(math.isfinite(value) for value in (*summary.metrics.values(), *summary.stderr.values()))


def test_why_images_have_no_score_is_told_as_soon_as_the_stage_ends(run, monkeypatch):
    told = []
    monkeypatch.setattr(SilentReporter, "note", lambda _, message: told.append(message))
    run("raising")
    assert any(message.startswith("explore: images could not be scored, the first failure was: ") for message in told)


def test_an_exception_costs_the_image_and_not_its_batch(run):
    summary, session = run("raising")
    scores, _ = explored(session, summary)
    blocks = scores.reshape(-1, 4)
    assert any(0 < np.isfinite(block).sum() < 4 for block in blocks)
    assert any("this image cannot be scored" in note for note in summary.notes)


def test_a_wrong_number_of_scores_stops_the_run_and_stores_nothing(run, recipe_with, tmp_path):
    with pytest.raises(RewardError, match="too_short' returned 1 score for 2 images"):
        run("too_short")
    assert not list((tmp_path / "store").rglob("ledger"))


def test_a_group_without_spread_is_left_out_and_counted(run):
    summary, session = run("flat_group")
    scores, indices = explored(session, summary)
    flat = int(np.flatnonzero(scores.std(axis=1) == 0)[0])
    assert (indices[flat] == -1).all() and (indices[1 - flat] >= 0).all()
    assert summary.metrics["select/left_out_no_spread"] == 1
    assert summary.metrics["select/kept_groups"] == 1
    assert summary.metrics["select/left_out_few_finite"] == 0


def test_a_group_with_fewer_finite_scores_than_are_kept_is_left_out_and_counted(run):
    summary, _ = run("blind_group", audit__prompts=2)
    assert summary.metrics["select/left_out_few_finite"] == 1
    assert summary.metrics["select/kept_groups"] == 1
    assert summary.metrics["select/invalid_candidates"] == CANDIDATES
    assert "eval/gain_" + f"{REWARDS}:blind_group" in summary.metrics


def test_the_update_learns_from_the_kept_groups_alone(run, worker, monkeypatch):
    seen = []
    train = worker.train
    monkeypatch.setattr(worker, "train", lambda job, policy: seen.append(job) or train(job, policy))
    run("flat_group")
    (job,) = seen
    assert set(job.texts) == {"a red circle and thing 1"}
    assert len(job.x0) == 4


def test_groups_that_are_all_alike_say_that_there_is_nothing_to_learn(run):
    with pytest.raises(NothingToLearnError, match="none of 2 groups can be trained on"):
        run("tests.support.rewards:constant")


def test_no_valid_candidate_at_all_is_an_error(run):
    with pytest.raises(NoValidCandidateError, match="none of 32 candidates"):
        run("tests.support.rewards:broken", evaluate__every=0)


def test_ties_are_kept_distinct_and_without_regard_to_the_index(run):
    summary, session = run("binary", select__keep=8)
    scores, indices = explored(session, summary)
    for row in range(len(scores)):
        assert len(set(indices[row])) == 8
        best, worst = scores[row][indices[row][:4]], scores[row][indices[row][4:]]
        assert best.min() >= worst.max()
        ones = np.flatnonzero(scores[row] == 1)
        if len(ones) > 4:
            assert set(indices[row][:4]) != set(ones[:4]) or set(indices[row][4:]) != set(range(4))
    assert summary.metrics["select/left_out_no_spread"] == 0


def precisely_invalid(worker, monkeypatch, rows):
    """Makes some images of the regeneration (3 steps) impossible to score."""
    rollout = worker.rollout

    def spoiled(job, blocks):
        for result in rollout(job, blocks):
            if job.steps == 3:
                rewards = {name: np.array(values) for name, values in result.rewards.items()}
                for values in rewards.values():
                    values[rows] = np.nan
                result = replace(result, rewards=rewards)
            yield result

    monkeypatch.setattr(worker, "rollout", spoiled)


def test_a_kept_sample_that_cannot_be_scored_again_is_not_trained_on(run, worker, monkeypatch):
    precisely_invalid(worker, monkeypatch, [1])
    summary, _ = run("tests.support.rewards:darkness")
    assert summary.metrics["select/invalid_samples"] == 2
    assert summary.metrics["select/invalid_candidates"] == 0
    assert math.isfinite(summary.metrics["train/loss"])


def test_samples_that_can_all_not_be_scored_again_stop_the_run(run, worker, monkeypatch):
    precisely_invalid(worker, monkeypatch, [0, 1, 2, 3])
    with pytest.raises(NothingToLearnError, match="2 were kept"):
        run("tests.support.rewards:darkness")
