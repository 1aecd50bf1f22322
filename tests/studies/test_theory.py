"""What theory, pools and prices say together, on groups whose answer is known."""

import math
from dataclasses import replace

import numpy as np
import pytest

from solrl_tasks.analysis.order_statistics import bernoulli_contrast, gaussian_contrast
from solrl_tasks.analysis.ranks import ends
from solrl_tasks.reports.page import Figure, Table
from solrl_tasks.stages.recorded import StudyError
from solrl_tasks.studies.evidence import Evidence, Side
from solrl_tasks.studies.theory import stops_by_price, study_theory
from solrl_tasks.studies.theory_figures import value_figure
from solrl_tasks.studies.theory_page import answer_sentence, theory_page

CPU = {"hardware": "a CPU", "device_class": "cpu", "threads": 1}


def evidence_of(proxy, true, keep=8, explore=1.0, update=2.0) -> Evidence:
    return Evidence(
        proxy=proxy,
        true=true,
        keep=keep,
        reward="scene",
        explored=Side("nvfp4-emulated", 6, 64, CPU, explore, "median of 4 blocks"),
        reference=Side("bf16", 10, 64, CPU, 2.0, "median of 4 blocks"),
        update=update,
        origin="groups made by hand",
        update_origin="as given",
        pools=("a", "b"),
    )


def gaussian(prompts=60, count=48, rho=0.7, sigma=0.5, seed=0):
    rng = np.random.default_rng(seed)
    true = sigma * rng.normal(size=(prompts, count)) + rng.normal(size=(prompts, 1))
    noise = sigma * rng.normal(size=true.shape)
    return rho * true + math.sqrt(1 - rho**2) * noise, true


@pytest.fixture(scope="module")
def theory():
    return study_theory(evidence_of(*gaussian()), 0.5)


def test_estimates_find_what_the_groups_were_made_with(theory):
    assert theory.sigma.mean == pytest.approx(0.5, abs=4 * theory.sigma.stderr)
    assert theory.rho.mean == pytest.approx(0.7, abs=4 * theory.rho.stderr)
    assert abs(theory.shape.skew.mean) < 4 * theory.shape.skew.stderr
    assert theory.shape.tied.mean == 0


def test_gaussian_groups_follow_the_gaussian_lines(theory):
    kept = theory.kept
    for n in (8, 24, 48):
        at = n - 8
        assert kept.ideal.at(n).mean == pytest.approx(kept.gaussian[at], abs=4 * kept.ideal.at(n).stderr)
        assert kept.measured.at(n).mean == pytest.approx(kept.proxied[at], abs=4 * kept.measured.at(n).stderr)
    assert kept.gaussian[-1] == pytest.approx(theory.sigma.mean * gaussian_contrast(48, 8))
    found = ends(theory.evidence.proxy, theory.evidence.true, 8)["contrast"].mean()
    assert kept.measured.mean[-1] == pytest.approx(found)


def test_the_asymptote_promises_too_much_everywhere_and_the_certain_line_never(theory):
    pair = theory.pair
    assert pair.promised_too_much(pair.asymptote, pair.gaussian) == (2, 48)
    assert pair.promised_too_much(pair.certain, pair.measured.mean) is None
    assert theory.kept.promised_too_much(theory.kept.certain, theory.kept.measured.mean) is None
    assert theory.vacuous_below > 48, "a proxy of correlation .7 leaves the bound below nothing"


def test_a_perfect_proxy_breaks_the_bound(theory):
    _, true = gaussian()
    perfect = study_theory(evidence_of(true + 3.0, true), 0.5)
    assert perfect.delta.mean == pytest.approx(0, abs=1e-12), "a constant is no deviation"
    assert perfect.pair.promised_too_much(perfect.pair.bound, perfect.pair.measured.mean) == (2, 48)
    assert perfect.vacuous_below == pytest.approx(1)


def test_stops_answer_at_the_prices(theory):
    answer = theory.answers["contrast"]
    assert answer.ratio.candidates == pytest.approx(answer.gaussian_ratio, abs=3)
    assert answer.ratio.low <= answer.ratio.candidates <= answer.ratio.high
    assert answer.marginal.candidates >= answer.ratio.candidates
    dear = study_theory(replace(theory.evidence, update=None), 0.5)
    assert not dear.priced
    assert dear.answers["contrast"].ratio.candidates <= answer.ratio.candidates


def test_other_prices_stand_beside_the_measured_one(theory):
    rows = stops_by_price(theory)
    ratios = [ratio for ratio, _ in rows]
    assert ratios == sorted(ratios, reverse=True)
    assert theory.prices.ratio in ratios
    best = [stops["contrast"][0] for _, stops in rows]
    assert best == sorted(best)


def test_zero_one_rewards_do_not_follow_a_gaussian():
    rng = np.random.default_rng(3)
    coins = (rng.random((200, 48)) < 0.08) * 1.0
    found = study_theory(evidence_of(coins, coins), 0.5)
    assert found.shape.binary
    assert found.shape.tied.mean > 0.8
    expected = bernoulli_contrast(0.08, 48, 8)
    assert found.kept.ideal.mean[-1] == pytest.approx(expected, abs=4 * found.kept.ideal.at(48).stderr)
    few = bernoulli_contrast(0.08, 8, 8)
    assert found.kept.ideal.mean[0] == pytest.approx(few, abs=4 * found.kept.ideal.at(8).stderr)
    assert found.kept.gaussian[0] != pytest.approx(found.kept.ideal.mean[0], rel=0.05)
    assert found.shape.kurtosis.mean > 1


def test_a_proxy_of_no_use_has_no_answer_by_contrast_and_one_by_spread():
    rng = np.random.default_rng(4)
    true = rng.normal(size=(40, 32))
    found = study_theory(evidence_of(-true, true), 0.5)
    assert found.answers["contrast"].ratio.candidates is None
    assert "No number of candidates" in answer_sentence(found)
    assert found.answers["spread"].ratio.candidates is not None
    assert theory_page(found, ["x"], {}).sections


def test_flat_prompts_count_as_no_contrast():
    proxy, true = gaussian(prompts=4)
    true[0] = 0.3
    found = study_theory(evidence_of(proxy, true), 0.5)
    assert found.shape.flat == 1
    np.testing.assert_allclose(found.kept.ideal.each[0], 0, atol=1e-12)
    assert found.sigma.n == 4


def test_what_cannot_be_answered_is_refused():
    proxy, true = gaussian(prompts=2, count=8)
    with pytest.raises(StudyError, match="keep is 9"):
        study_theory(evidence_of(proxy, true, keep=9), 0.5)
    with pytest.raises(StudyError, match="threshold is 0"):
        study_theory(evidence_of(proxy, true, keep=4), 0.0)
    with pytest.raises(StudyError, match="each of 2 groups has candidates that lack a reward"):
        study_theory(evidence_of(proxy * np.nan, true, keep=4), 0.5)


def test_the_page_says_what_it_is_of(theory):
    page = theory_page(theory, ["solrl study theory"], {"prompts": 60})
    tables = [block for block in page.blocks if isinstance(block, Table)]
    figures = [block for block in page.blocks if isinstance(block, Figure)]
    assert (len(tables), len(figures)) == (6, 3)
    assert str(theory.answers["contrast"].ratio.candidates) in page.summary
    assert "emulated" in page.summary
    for block in [*tables[:1], *tables[2:], *figures]:
        assert block.provenance is not None and block.provenance.real is False
    assert tables[1].provenance is not None and tables[1].provenance.kind == "modelled"


def test_metrics_and_curves_are_finite(theory):
    metrics = theory.metrics()
    assert all(math.isfinite(value) for value in metrics.values())
    assert {"theory/sigma", "theory/stop_contrast_ratio", "theory/stop_spread_marginal_high"} <= metrics.keys()
    for points in theory.curves().values():
        assert [step for step, _ in points] == list(range(8, 49))


def test_one_prompt_has_no_interval_but_an_answer():
    proxy, true = gaussian(prompts=1)
    found = study_theory(evidence_of(proxy, true), 0.5)
    assert found.answers["contrast"].ratio.low is None
    assert theory_page(found, [], {}).summary


def test_an_invalid_candidate_leaves_its_group_out_of_every_line():
    proxy, true = gaussian(prompts=6, count=24)
    spoilt = true.copy()
    spoilt[0, 3] = np.nan
    spoilt[1] = np.nan
    found = study_theory(evidence_of(proxy, spoilt), 0.5)
    alone = study_theory(evidence_of(proxy[2:], true[2:]), 0.5)
    assert found.left_out == 2
    assert found.metrics() == alone.metrics()
    assert found.kept.gaussian[-1] == pytest.approx(found.sigma.mean * gaussian_contrast(24, 8))
    tables = [block for block in theory_page(found, [], {}).blocks if isinstance(block, Table)]
    assert ("groups left out, for an invalid candidate", "2") in [row for table in tables for row in table.rows]


def test_groups_that_all_have_an_invalid_candidate_are_told():
    proxy, true = gaussian(prompts=3, count=24)
    true[:, 5] = np.nan
    with pytest.raises(StudyError, match="each of 3 groups has candidates that lack a reward"):
        study_theory(evidence_of(proxy, true), 0.5)


@pytest.mark.parametrize("level", [0.1, 0.5, 0.0])
def test_rewards_that_are_all_alike_gain_nothing(level):
    proxy, _ = gaussian(prompts=3, count=24)
    found = study_theory(evidence_of(proxy, np.full(proxy.shape, level)), 0.5)
    for answer in found.answers.values():
        assert answer.ratio.candidates is None
        assert answer.marginal.candidates is None
    assert "No number of candidates" in answer_sentence(found)
    assert theory_page(found, [], {}).blocks


def test_a_proxy_that_is_all_alike_gains_no_contrast():
    _, true = gaussian(prompts=5, count=24)
    found = study_theory(evidence_of(np.zeros_like(true), true), 0.5)
    assert found.answers["contrast"].ratio.candidates is None, "what rounding leaves of a gain is none"
    assert theory_page(found, [], {}).blocks


def test_a_proxy_that_ranks_the_wrong_way_round_has_no_line_of_value():
    _, true = gaussian(prompts=5, count=24)
    found = study_theory(evidence_of(-true, true), 0.5)
    drawn = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("solrl_tasks.studies.theory_figures.theory_lines", lambda lines, *_: drawn.extend(lines) or b"")
        value_figure(found)
    assert [line.label for line in drawn] == ["spread"], "a loss over a loss would look like a gain"
