import pytest

from solrl_tasks.bench.reports.rollout import Arm
from solrl_tasks.studies.results.comparison import add_measurements, find_results
from solrl_tasks.studies.results.findings import Roles
from solrl_tasks.studies.results.times import find_times
from tests.support.arm_records import arm_record
from tests.support.bench_reports import model_facts, update_of, whole_rollout


@pytest.fixture
def rollout_report():
    return whole_rollout()


def results():
    records = [arm_record("a", seed, [0.1, 0.2]) for seed in (1, 2)]
    return find_results(records, Roles("a", "b", "c", "d"), 1)


def test_rollouts_stand_beside_the_published_ones(rollout_report):
    (found,) = find_times([rollout_report])
    arms = {arm.name: arm for arm in found.arms}
    assert set(arms) == {"eager-pipeline", "bf16-full", "fp8-two-stage", "fp8-full"}, "without those that failed"
    assert (arms["fp8-two-stage"].over_precise, arms["fp8-two-stage"].over_pipeline) == (1.6, 2.4)
    assert (arms["fp8-two-stage"].kind, arms["eager-pipeline"].kind) == ("real", "")
    assert round(found.published, 2) == 2.33 and round(found.published_iteration, 2) == 1.62
    assert found.best.name == "fp8-two-stage"


def test_the_claim_is_of_the_fastest_real_one_in_two_stages(rollout_report):
    (claim,) = add_measurements(results(), None, find_times([rollout_report]), "x").time_claims
    assert claim.ours == 1.6 and claim.agreement == "agrees in direction" and "fp8-two-stage" in claim.says
    slower = rollout_report.model_copy(update={"arms": tuple(slow(arm) for arm in rollout_report.arms)})
    (claim,) = add_measurements(results(), None, find_times([slower]), "x").time_claims
    assert claim.agreement == "disagrees"


def slow(arm: Arm) -> Arm:
    return arm.model_copy(update={"seconds": 80.0}) if arm.name == "fp8-two-stage" else arm


def test_what_was_not_measured_claims_nothing(rollout_report):
    alone = rollout_report.model_copy(update={"arms": rollout_report.arms[:1]})
    other = rollout_report.model_copy(update={"model": model_facts().model_copy(update={"family": "mine"})})
    found = find_times([alone, other])
    assert found[0].best is None and found[1].published is None
    assert add_measurements(results(), None, found, "x").time_claims == ()


def test_other_reports_tell_nothing_here():
    assert find_times([update_of()]) == ()
