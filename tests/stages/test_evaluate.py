"""Held-out measurements during training: what they hold, and what they may not depend on."""

import numpy as np
import pytest

from solrl_tasks.analysis.distances import diversity
from solrl_tasks.stages.comparison import Comparison
from solrl_tasks.stages.evaluate import EvaluateJob, evaluate, held_out_scores, stored_evaluation
from solrl_tasks.stages.iteration import policy_after, run_step
from solrl_tasks.stages.plan import plan_baseline, plan_evaluate
from solrl_tasks.workers.inline import InlineWorker
from solrl_tasks.workers.policies import load_lora

DARKNESS = "tests.support.rewards:darkness"
WATCHED = {"evaluate__rewards": [{"name": DARKNESS}]}


def baseline(session):
    """The baseline's job, filled."""
    job = plan_baseline(session)
    evaluate(session, EvaluateJob(0, job))
    return job


def test_all_rewards_are_measured_and_compared_trained_on_or_not(opened):
    with opened("run", audit__every=0, **WATCHED) as session:
        first, second = (run_step(session, step) for step in (0, 1))
        lora = load_lora(session.store, second.refs["policy"], "ema")
    for name in ("colourfulness", DARKNESS):
        assert f"eval/{name}" in first.metrics and f"eval/gain_{name}" not in first.metrics
        gain = second.metrics[f"eval/{name}"] - first.metrics[f"eval/{name}"]
        assert second.metrics[f"eval/gain_{name}"] == pytest.approx(gain, abs=1e-6)
        assert second.stderr[f"eval/gain_{name}"] < second.stderr[f"eval/{name}"]
    assert second.metrics["policy/distance"] > 0
    assert second.metrics["policy/diversity"] > 0
    assert (first.metrics["policy/lora_norm"], "policy/distance" in first.metrics) == (0.0, False)
    whole = np.sqrt(sum(float(lora.delta(path).double().square().sum()) for path in lora.paths))
    assert second.metrics["policy/lora_norm"] == pytest.approx(whole, rel=1e-5)


def test_the_stored_result_says_how_it_came_about(opened):
    with opened("run", evaluate__guidance=3.5) as session:
        job = baseline(session)
        found = stored_evaluation(session, job)
        pool = job.open(session)
    sampling = found.content["sampling"]
    assert (sampling["policy"], sampling["steps"], sampling["guidance"]) == ("base", 2, 3.5)
    assert sampling["guidance_scale"] == 1.0
    assert found.content["diversity"]["features"] == "pixels@1"
    vectors = pool.features("pixels@1", 2)
    assert found.content["diversity"]["prompts"] == pytest.approx(diversity(vectors, "rms").tolist())


def scores_of(opened, run_id, **overrides):
    with opened(run_id, evaluate__seeds=4, **overrides) as session:
        job = baseline(session)
        pool = job.open(session)
        return held_out_scores(job, pool)["colourfulness"], pool.features("pixels@1", 4), pool.key


@pytest.mark.parametrize("chunk", [1, 2])
def test_scores_do_not_depend_on_how_many_images_are_computed_together(opened, chunk):
    """Of one prompt; float32 rounds sums of batches of another size differently, and engines with one scale for a
    whole batch differ for real."""
    whole, vectors, key = scores_of(opened, "whole", evaluate__sampling__chunk=4)
    parts, others, other_key = scores_of(opened, "parts", evaluate__sampling__chunk=chunk)
    assert key != other_key
    assert parts == pytest.approx(whole, abs=2e-3)
    assert others == pytest.approx(vectors, abs=2 / 255)


def test_scores_do_not_depend_on_which_worker_computes_a_block_or_when(opened, tmp_path, monkeypatch):
    """Blocks are shared out to two workers, from the last to the first."""
    whole, vectors, key = scores_of(opened, "whole", evaluate__sampling__chunk=2)
    rollout = InlineWorker.rollout
    helpers = []

    def shared(worker, job, blocks):
        if not helpers:
            helpers.append(InlineWorker(worker._device.model, worker._device.device))
        for number, work in enumerate(reversed(list(blocks))):
            yield from rollout(helpers[0] if number % 2 else worker, job, iter([work]))

    monkeypatch.setattr(InlineWorker, "rollout", shared)
    monkeypatch.setattr("solrl_tasks.store.root.Store.open", _elsewhere(tmp_path))
    again, others, same = scores_of(opened, "shared", evaluate__sampling__chunk=2)
    assert helpers[0].counters.forwards > 0
    assert same == key
    assert np.array_equal(again, whole) and np.array_equal(others, vectors)


def _elsewhere(tmp_path):
    from solrl_tasks.store.root import Store

    original = Store.open.__func__
    return classmethod(lambda cls, root, create=True: original(cls, tmp_path / "elsewhere", create))


def test_more_prompts_leave_the_scores_of_the_first_as_they_are(opened):
    few, *_ = scores_of(opened, "few", evaluate__prompts=2)
    more, *_ = scores_of(opened, "more", evaluate__prompts=4)
    assert np.array_equal(more[:2], few)


def test_a_watched_reward_that_is_added_is_scored_on_what_is_kept(opened):
    with opened("one") as session:
        baseline(session)
    with opened("two", **WATCHED) as session:
        baseline(session)
        assert (session.worker.counters.loads, session.worker.counters.scored) == (0, 4)


def test_features_that_are_added_are_seen_on_what_is_kept(opened):
    with opened("one") as session:
        before = baseline(session).open(session)
    with opened("two", evaluate__features={"name": "pixels", "options": {"side": 2}}) as session:
        job = baseline(session)
        assert (session.worker.counters.loads, session.worker.counters.scored) == (0, 0)
        pool = job.open(session)
        assert pool.key == before.key
        assert pool.features(job.feature_ids()[0], 2).shape == (2, 2, 12)


def test_without_kept_images_features_are_sampled_again_and_rewards_stay(opened):
    with opened("one", evaluate__store_images="none") as session:
        job = baseline(session)
        scores = held_out_scores(job, job.open(session))
    side = {"name": "pixels", "options": {"side": 2}}
    with opened("two", evaluate__store_images="none", evaluate__features=side) as session:
        job = baseline(session)
        assert session.worker.counters.scored == 0
        assert session.worker.counters.decoded == 4
        assert np.array_equal(held_out_scores(job, job.open(session))["colourfulness"], scores["colourfulness"])


def test_one_image_a_prompt_has_no_diversity_and_no_note_about_it(opened):
    with opened("run", evaluate__seeds=1, evaluate__sampling__chunk=1) as session:
        summary = run_step(session, 0)
    assert "policy/diversity" not in summary.metrics
    assert summary.notes == []


def test_guidance_of_the_evaluation_makes_a_pool_of_its_own_unless_it_is_the_models(opened):
    with opened("plain") as session:
        plain = plan_baseline(session)
        key = plain.open(session).key
    with opened("same", evaluate__guidance=1.0, evaluate__guidance_scale=1.0) as session:
        assert plan_baseline(session).open(session).key == key
    with opened("guided", evaluate__guidance_scale=4.0) as session:
        job = baseline(session)
        assert job.open(session).key != key
        assert job.open(session).spec["conditioning"]["guidance_scale"] == 4.0
        guided = held_out_scores(job, job.open(session))["colourfulness"]
        assert session.worker.counters.forwards == 8
    with opened("plain") as session:
        assert not np.allclose(guided, held_out_scores(baseline(session), plain.open(session))["colourfulness"])


def test_a_policy_beside_itself_differs_in_nothing(opened):
    with opened("run") as session:
        job = baseline(session)
        compared = Comparison.of(session, job, job)
    assert all(gain.mean == 0 for gain in compared.gains().values())
    assert (compared.distance == 0).all()


def test_an_evaluation_that_is_not_due_is_not_planned(opened):
    with opened("run", evaluate__every=2) as session:
        policy = policy_after(session, 0)
        assert [plan_evaluate(session, step, policy) is not None for step in range(4)] == [True, False, True, False]
