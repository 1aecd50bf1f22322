import math

import pytest

from solrl_tasks.studies.results.comparison import (
    add_measurements,
    evaluations,
    find_results,
    measured_cost,
    to_curves,
)
from solrl_tasks.studies.results.findings import NothingToReportError, Results, Roles
from solrl_tasks.studies.results.ranks import ProxyRow, Ranking
from tests.support.arm_records import arm_record

STEPS = {2: "steps-2", 6: "solrl-nvfp4"}
CANDIDATES = {24: "bf16-24of24", 96: "solrl-nvfp4"}
RACES = ("bf16-24of24", "bf16-96full", "solrl-nvfp4", "nvfp4-direct")
ROLES = Roles("bf16-24of24", "bf16-96full", "solrl-nvfp4", "nvfp4-direct", STEPS, CANDIDATES, RACES)
RISE = {"bf16-24of24": 0.02, "bf16-96full": 0.05, "solrl-nvfp4": 0.05, "nvfp4-direct": 0.01, "steps-2": 0.03}
"""Reward an iteration, until it stops after five."""
HOURS = {"bf16-24of24": 1, "bf16-96full": 4, "solrl-nvfp4": 2, "nvfp4-direct": 2, "steps-2": 1}


def curve(rise, seed, iterations=10):
    wobble = 0.001 * seed
    return [0.3, *(0.3 + rise * min(at, 5) + wobble for at in range(1, iterations + 1))]


def records(seeds=(1, 2, 3, 4), names=RISE, **changes):
    return [
        arm_record(name, seed, curve(RISE[name], seed), modelled=3600.0 * HOURS[name], **changes)
        for seed in seeds
        for name in names
    ]


def only(items, **wanted):
    (found,) = [item for item in items if all(getattr(item, name) == value for name, value in wanted.items())]
    return found


@pytest.fixture(scope="module")
def found():
    return find_results(records(), ROLES, 10)


def test_arms_have_their_end_their_gain_and_their_costs(found):
    arm = found.arm("solrl-nvfp4")
    assert (arm.seeds, arm.left_out, arm.places[-1], arm.modelled) == ((1, 2, 3, 4), 0, 10, 7200)
    assert arm.end.mean == pytest.approx(0.55 + 0.0025) and arm.gain.mean == pytest.approx(0.2525)
    assert arm.curve[0].mean == pytest.approx(0.3)
    assert arm.measured is None and arm.timed is None
    assert (found.candidates, found.keep, found.hardware) == (96, 24, ("Some GPU",))


def test_ablations_are_paired_with_the_method_and_stand_beside_the_published(found):
    row = only(found.steps.rows, value=2)
    assert row.difference.mean == pytest.approx(-0.1) and row.published == 0.3587
    assert only(found.steps.rows, value=6).arm == "solrl-nvfp4" and found.steps.reference == 6
    (claim,) = found.steps.claims
    assert claim.ours == pytest.approx(0.1) and claim.agreement == "agrees in direction"
    (claim,) = found.candidates_ablation.claims
    assert claim.says == "96 candidates less 24" and claim.agreement == "agrees in direction"


def test_an_ablation_without_its_reference_or_another_value_is_none():
    alone = find_results(records(names=("solrl-nvfp4", "bf16-96full")), ROLES, 10)
    assert alone.steps is None and alone.candidates_ablation is None
    assert find_results(records(names=("steps-2", "bf16-24of24")), ROLES, 10).steps is None


def test_parity_is_of_every_arm_and_claimed_of_the_method(found):
    assert [one.arm for one in found.parity] == ["solrl-nvfp4"]
    one = found.parity[0]
    assert one.difference.mean == pytest.approx(0) and one.of_gain == pytest.approx(0)
    assert one.claim.agreement == "agrees"


def test_parity_takes_difference_and_gain_from_the_same_pairs():
    every = records()
    # Of the precise arm alone: a seed that gains nothing has no pair, and changes nothing.
    every.append(arm_record("bf16-96full", 5, [0.3] * 11))
    every = [record for record in every if (record.arm.name, record.seed) != ("solrl-nvfp4", 4)]
    raised = [
        arm_record("solrl-nvfp4", record.seed, [0.3, *([0.3 + 0.05] * 10)])
        if record.arm.name == "solrl-nvfp4"
        else record
        for record in every
    ]
    one = only(find_results(raised, ROLES, 10).parity, arm="solrl-nvfp4")
    # Seeds 1 to 3: gains of .251, .252 and .253 beside .05.
    assert one.difference.n == 3 and one.of_gain == pytest.approx(-0.202 / 0.252)


def test_training_on_low_precision_samples(found):
    direct = found.direct
    assert direct.difference[0].mean == 0 and direct.difference[5].mean == pytest.approx(0.2)
    assert direct.direct_end.trend == "flat"
    assert [claim.agreement for claim in direct.claims] == ["agrees in direction", "not resolved"]


def test_costs_to_reward_in_units_that_stay_apart(found):
    assert [race.unit for race in found.races] == ["iterations", "measured device-seconds", "modelled GPU-hours"]
    iterations, measured, hours = found.races
    at = iterations.arms["solrl-nvfp4"][-1]
    # The baseline is at 0.4025 after five; the method at iteration 2 and something.
    assert at.arm.cost.mean == pytest.approx(2.03, abs=0.05) and at.baseline.cost.mean == pytest.approx(5, abs=0.8)
    assert hours.arms["solrl-nvfp4"][-1].arm.cost.mean == pytest.approx(2 * at.arm.cost.mean)
    ratio = iterations.arms["solrl-nvfp4"][1].speedup.of_mean
    assert hours.arms["solrl-nvfp4"][1].speedup.of_mean == pytest.approx(ratio / 2)
    assert measured.plateau is None and "not timed" in measured.absent["bf16-24of24"]
    assert [claim.agreement for claim in hours.claims[:2]] == ["agrees in direction"] * 2
    assert iterations.claims == ()


def test_rewards_at_equal_cost(found):
    hours = found.races[2]
    # The cheapest arm has spent ten hours at its end: the method is at its fifth iteration then.
    last = hours.budgets["solrl-nvfp4"][-1]
    assert last.budget == pytest.approx(10) and last.reward.mean == pytest.approx(0.5525)
    assert last.difference.mean == pytest.approx(0.15) and last.verdict == "higher"
    assert hours.budgets["bf16-24of24"][-1].difference.mean == 0


def test_measured_seconds_are_those_of_a_run_that_was_alone():
    timed = {"explore": 1.0, "update": 2.0, "evaluate": 9.0}
    alone = [arm_record("a", 1, [0.1, 0.2], timed=timed)]
    assert measured_cost(alone, 1) == 3.0
    assert measured_cost([arm_record("a", 1, [0.1, 0.2])], 1) is None
    assert measured_cost([arm_record("a", 1, [0.1, 0.2], processes=None)], 1) is None
    # Without a timed run, runs that each had the device: only counted stages.
    assert measured_cost([arm_record("a", 1, [0.1, 0.2], processes=1)], 1) == 2.0
    raced = find_results(records(timed={"update": 2.0}), ROLES, 10).races[1]
    assert raced.arms["solrl-nvfp4"][0].baseline.cost.mean == pytest.approx(2 * 1.25, abs=0.2)


def test_an_arm_whose_precision_the_hardware_lacks_is_absent_with_the_reason():
    some = [r for r in records() if r.arm.name != "nvfp4-direct"]
    lacking = [arm_record("nvfp4-direct", seed, curve(0.01, seed), modelled=None) for seed in (1, 2)]
    hours = find_results([*some, *lacking], ROLES, 10).races[2]
    assert "nvfp9" in hours.absent["nvfp4-direct"] and "nvfp4-direct" not in hours.arms


def test_a_baseline_that_gains_nothing_has_no_race_but_budgets():
    flat = [arm_record("bf16-24of24", seed, [0.3] * 11) for seed in (1, 2)]
    rest = [r for r in records((1, 2)) if r.arm.name != "bf16-24of24"]
    race = find_results([*flat, *rest], ROLES, 10).races[0]
    assert race.arms == {} and "gains nothing" in race.absent["bf16-24of24"] and race.budgets


def test_runs_that_are_not_as_far_are_left_out_and_counted():
    short = arm_record("solrl-nvfp4", 5, [0.3, 0.4])
    found = find_results([*records(), short], ROLES, 10)
    assert (found.arm("solrl-nvfp4").seeds, found.arm("solrl-nvfp4").left_out) == ((1, 2, 3, 4), 1)
    assert find_results([*records(), short], ROLES, 1).arm("solrl-nvfp4").seeds == (1, 2, 3, 4, 5)
    with pytest.raises(NothingToReportError, match=r"none of 1 run has 10 iterations.*longest has 1"):
        find_results([short], ROLES, 10)
    with pytest.raises(NothingToReportError, match="longest has 0"):
        find_results([], ROLES, 10)


def test_fewer_iterations_are_reported_as_if_the_runs_had_ended_there():
    whole, cut = find_results(records(), ROLES, 4), [arm_record("steps-2", 1, curve(0.03, 1)[:5])]
    assert whole.arm("steps-2").places == (0, 1, 2, 3, 4) and evaluations(cut, 4) == [0, 1, 2, 3, 4]
    assert whole.arm("steps-2").end.mean == pytest.approx(0.3 + 0.03 * 3 + 0.0025)


def test_curves_take_errors_over_prompts_of_the_gain():
    curves = to_curves([arm_record("a", 1, [0.1, 0.2, 0.3], stderr=0.05)], 2, lambda _: 2.0)
    assert curves.prompt_errors.tolist() == [[0, 0.05, 0.05]] and curves.costs.tolist() == [[0, 2, 4]]
    noisy = find_results(records(stderr=0.2), ROLES, 10).races[0]
    assert all(at.unresolved for at in noisy.arms["solrl-nvfp4"])


def test_ranks_are_claimed_of_the_methods_precision_against_the_nearest_reference(found):
    ranking = ranking_of((0.5, 0.99, "nvfp4-emulated"), (0.99, 0.99, "fp8"))
    claims = add_measurements(found, ranking, (), "nvfp4-emulated").rank_claims
    assert [claim.agreement for claim in claims] == ["disagrees", "agrees"]
    assert all("against bf16 in 10" in claim.says for claim in claims)


def test_all_of_it_survives_json(found):
    whole = add_measurements(found, ranking_of((0.5, 0.4, "nvfp4-emulated")), (), "nvfp4-emulated")
    again = Results.model_validate_json(whole.model_dump_json())
    assert again.model_dump_json() == whole.model_dump_json()
    assert len(again.claims) == len(whole.claims) == 1 + 1 + 1 + 2 + 4 + 2


def ranking_of(*proxies):
    def est(mean):
        return {"mean": mean, "stderr": 0.01, "n": 40}

    rows = [
        ProxyRow(
            engine=engine,
            kind="emulated",
            steps=6,
            reference_engine="bf16",
            reference_steps=steps,
            spearman=est(rho),
            kendall=est(tau),
            overlap={4: est(0.5)},
            match={4: est(0.8)},
            contrast=est(0.6),
        )
        for rho, tau, engine in proxies
        for steps in (10, 40)
    ]
    return Ranking(
        pools=("a",), reward="scene", hardware="Some GPU", prompts=40, candidates=96, keep=24, rows=tuple(rows)
    )


def test_a_ranking_of_nothing_claims_nothing(found):
    assert add_measurements(found, None, (), "x").rank_claims == ()
    assert not math.isnan(found.arm("steps-2").end.mean)
