"""Groups that were both explored and sampled precisely, from jobs, pools and runs."""

from dataclasses import replace

import numpy as np
import pytest

from solrl_tasks.stages.explore import explore
from solrl_tasks.stages.iteration import run_all
from solrl_tasks.stages.recorded import PolicyName, StudyError, resolve_policy
from solrl_tasks.store.errors import DamagedError, MissingObjectError
from solrl_tasks.store.runs import view_run
from solrl_tasks.studies.evidence import (
    audited_evidence,
    find_key,
    measured_evidence,
    pair_jobs,
    pooled_evidence,
    with_prices_of,
)
from solrl_tasks.studies.plan import plan_pools
from solrl_tasks.studies.rank_fidelity import make_study, settle_settings

UNTRAINED = PolicyName(None, None, "old")


def test_held_out_groups_are_sampled_once(opened):
    with opened("theory") as session:
        jobs = pair_jobs(session, 2, UNTRAINED)
        assert plan_pools(session, jobs.named()).missing == 2 * 4
        found = measured_evidence(session, jobs, UNTRAINED)
        assert found.computed == 8
        assert session.worker.counters.forwards == 2 * 8 * (2 + 3)
    with opened("theory") as session:
        again = measured_evidence(session, pair_jobs(session, 2, UNTRAINED), UNTRAINED)
        assert session.worker.counters.loads == 0
    assert again.computed == 0
    np.testing.assert_array_equal(again.proxy, found.proxy)
    np.testing.assert_array_equal(again.true, found.true)
    assert found.proxy.shape == (2, 8)
    assert not np.array_equal(found.proxy, found.true)
    assert (found.explored.engine, found.explored.steps) == ("nvfp4-emulated", 2)
    assert (found.reference.engine, found.reference.steps) == ("bf16", 3)
    assert found.explored.seconds > 0 and found.reference.seconds > 0
    assert found.update is None
    assert "untrained" in found.origin


def test_pools_of_a_study_of_ranks_are_used_again(opened):
    with opened("ranks") as session:
        asked = {"steps": (2,), "references": (3,), "prompts": 2}
        for job in make_study(session, settle_settings(session.recipe, asked)).jobs().values():
            explore(session, job)
    with opened("theory") as session:
        assert measured_evidence(session, pair_jobs(session, 2, UNTRAINED), UNTRAINED).computed == 0
        assert session.worker.counters.loads == 0


def test_two_pools_by_key_say_the_same(opened):
    with opened("theory") as session:
        found = measured_evidence(session, pair_jobs(session, 2, UNTRAINED), UNTRAINED)
        store = session.store
    by_key = pooled_evidence(store, found.pools[0][:8], found.pools[1])
    np.testing.assert_array_equal(by_key.proxy, found.proxy)
    np.testing.assert_array_equal(by_key.true, found.true)
    assert by_key.explored == found.explored
    assert by_key.keep == 2
    assert by_key.reward.startswith("colourfulness@")
    assert pooled_evidence(store, *found.pools, reward="colourfulness", keep=4).keep == 4
    with pytest.raises(StudyError, match=r"reward is 'scene', .* both have: both have colourfulness@"):
        pooled_evidence(store, *found.pools, reward="scene")
    with pytest.raises(StudyError, match="are both pool"):
        pooled_evidence(store, found.pools[0], found.pools[0])
    with pytest.raises(StudyError, match="no pool of the store begins with '0000'"):
        find_key(store, "0000")
    with pytest.raises(StudyError, match="2 pools of the store"):
        find_key(store, "")


def test_pools_share_the_prompts_that_both_have(opened):
    with opened("theory") as session:
        jobs = pair_jobs(session, 2, UNTRAINED)
        found = measured_evidence(session, jobs, UNTRAINED)
        three = pair_jobs(session, 3, UNTRAINED).explored
        key = explore(session, three).ref.key
        mixed = pooled_evidence(session.store, key, found.pools[1])
    np.testing.assert_array_equal(mixed.proxy, found.proxy)


def test_pools_of_other_seeds_are_refused(opened):
    with opened("theory") as session:
        found = measured_evidence(session, pair_jobs(session, 2, UNTRAINED), UNTRAINED)
    with opened("other", seed=8) as session:
        other = measured_evidence(session, pair_jobs(session, 2, UNTRAINED), UNTRAINED)
        with pytest.raises(StudyError, match="differ in exploration_seed"):
            pooled_evidence(session.store, found.pools[0], other.pools[1])


@pytest.fixture
def trained(opened):
    with opened("trained", iterations=2, audit__every=1, audit__prompts=1) as session:
        summaries = list(run_all(session))
        return session.store, summaries


def test_a_run_gives_its_audits_and_its_prices(trained):
    store, summaries = trained
    found = audited_evidence(store, "trained")
    assert found.proxy.shape == found.true.shape == (2, 8)
    assert np.isfinite(found.true).all()
    assert found.keep == 4
    spent = [summary.stages["update"].attributed_seconds for summary in summaries[1:]]
    assert found.update == pytest.approx(np.median(spent) / 8)
    spent = [summary.stages["explore"].attributed_seconds for summary in summaries[1:]]
    assert found.explored.seconds == pytest.approx(np.median(spent) / 16)


def test_a_damaged_summary_of_the_run_is_refused_in_words(trained):
    store, _ = trained
    groups = audited_evidence(store, "trained")
    path = view_run(store, "trained").iteration_dir(1) / "summary.json"
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"colourfulness", b"colourfulmess"))
    told = rf"{path} is damaged: .*Start that run again with the same recipe and run id"
    with pytest.raises(DamagedError, match=told):
        audited_evidence(store, "trained")
    with pytest.raises(DamagedError, match=told):
        with_prices_of(store, groups, "trained")
    with pytest.raises(DamagedError, match=told):
        resolve_policy(store, PolicyName("trained", None, "old"))
    assert resolve_policy(store, PolicyName("trained", 2, "old")).step == 2, "one that is whole can still be named"
    assert path.exists(), "whoever only reads sets nothing aside"
    path.write_bytes(whole)
    assert audited_evidence(store, "trained").proxy.shape == (2, 8)


def test_groups_can_have_the_prices_of_a_run(opened, trained):
    store, _ = trained
    audited = audited_evidence(store, "trained")
    with opened("theory") as session:
        held_out = measured_evidence(session, pair_jobs(session, 2, UNTRAINED), UNTRAINED)
        other = measured_evidence(
            session, replace(pair_jobs(session, 2, UNTRAINED), explored=other_steps(session)), UNTRAINED
        )
    priced = with_prices_of(store, held_out, "trained")
    assert priced.explored.seconds == audited.explored.seconds
    assert priced.reference.seconds == audited.reference.seconds
    assert priced.update == audited.update
    np.testing.assert_array_equal(priced.true, held_out.true)
    with pytest.raises(StudyError, match="nvfp4-emulated in 2 steps at 32 px, the groups by nvfp4-emulated in 1"):
        with_prices_of(store, other, "trained")


def other_steps(session):
    job = pair_jobs(session, 2, UNTRAINED).explored
    return replace(job, sampling=job.sampling.model_copy(update={"steps": 1}))


def test_audits_agree_with_the_metrics_of_their_iteration(trained):
    from solrl_tasks.analysis.ranks import whole_groups

    store, summaries = trained
    found = audited_evidence(store, "trained")
    for row, summary in enumerate(summaries[1:]):
        measured = whole_groups(found.proxy[row : row + 1], found.true[row : row + 1], 4)
        if "rank/audit_contrast" in summary.metrics:
            assert measured["contrast"].mean == pytest.approx(summary.metrics["rank/audit_contrast"])


def test_runs_without_audits_are_refused(opened):
    with opened("blind", iterations=1, audit__every=0) as session:
        list(run_all(session))
        store = session.store
    with pytest.raises(StudyError, match="has no audit"):
        audited_evidence(store, "blind")
    with pytest.raises(MissingObjectError):
        audited_evidence(store, "nobody")


def test_normalised_rewards_are_on_the_scale_of_what_was_explored(opened):
    plain = {"name": "colourfulness", "weight": 2.0}
    with opened("plain", rewards=[plain]) as session:
        raw = measured_evidence(session, pair_jobs(session, 2, UNTRAINED), UNTRAINED)
    with opened("scaled", rewards=[plain | {"normalize": "pool"}]) as session:
        scaled = measured_evidence(session, pair_jobs(session, 2, UNTRAINED), UNTRAINED)
        assert scaled.computed == 0
    for side in ("proxy", "true"):
        expected = 2 * (getattr(raw, side) / 2 - raw.proxy.mean() / 2) / (raw.proxy / 2).std()
        np.testing.assert_allclose(getattr(scaled, side), expected, rtol=1e-6)


def test_the_study_holds_its_pools(opened):
    with opened("theory") as session:
        found = measured_evidence(session, pair_jobs(session, 2, UNTRAINED), UNTRAINED)
        refs = view_run(session.store, "theory").refs(0)
    assert {refs[name].key for name in ("explored", "reference")} == set(found.pools)
