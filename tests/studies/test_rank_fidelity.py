"""Rank fidelity over pools: computed once, for the base and for recorded policies, with the cost told beforehand."""

import pytest

from solrl_tasks.stages.iteration import run_all
from solrl_tasks.stages.recorded import StudyError, recorded_policy
from solrl_tasks.studies.rank_fidelity import base_study, measure_ranks, study_cost

STEPS = (1, 2)
ENGINES = ("nvfp4-emulated", "bf16")
IMAGES = 2 * 8
"""Prompts x candidates."""


def test_a_study_costs_what_was_told_and_nothing_the_second_time(opened):
    with opened("study") as session:
        study = base_study(session, 2, STEPS, ENGINES)
        costs = study_cost(session, study)
        assert session.worker.counters.loads == 0
        result = measure_ranks(session, study)
        assert session.worker.counters.forwards == sum(cost.forwards for cost in costs) == IMAGES * (3 + 2 * sum(STEPS))
    with opened("study") as session:
        assert sum(cost.forwards for cost in study_cost(session, study)) == 0
        again = measure_ranks(session, study)
        assert session.worker.counters.loads == 0
    assert [proxy.metrics for proxy in again.proxies] == [proxy.metrics for proxy in result.proxies]
    assert {proxy.computed for proxy in again.proxies} == {0}


def test_a_proxy_that_is_the_reference_ranks_perfectly(opened):
    with opened("study") as session:
        result = measure_ranks(session, base_study(session, 2, (3,), ("bf16",)))
    assert result.proxies[0].pool == result.reference
    assert result.proxies[0].metrics["spearman"].mean == pytest.approx(1.0)
    assert result.proxies[0].metrics["contrast_share"].mean == pytest.approx(1.0)


def test_a_recorded_policy_is_studied_in_pools_of_its_own(opened):
    with opened("trained", iterations=1) as session:
        list(run_all(session))
    with opened("study") as session:
        base = base_study(session, 2, (2,), ("bf16",))
        trained = base_study(session, 2, (2,), ("bf16",), recorded_policy(session, "trained"))
        assert trained.truth().open(session).key != base.truth().open(session).key
        assert recorded_policy(session, "trained", 0).digest == "base"
        assert measure_ranks(session, trained).prompts == 2


def test_what_is_not_recorded_cannot_be_studied(opened):
    with opened("trained", iterations=1) as session:
        list(run_all(session))
    with opened("study") as session:
        with pytest.raises(StudyError, match=r"no committed iteration 7: it has \[0, 1\]"):
            recorded_policy(session, "trained", 7)
        with pytest.raises(StudyError, match="prompts is 99"):
            base_study(session, 99, (2,), ("bf16",))
