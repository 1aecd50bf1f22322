"""Gain over candidates, what they cost, and where more of them stop paying."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from solrl_tasks.analysis.gain import (
    MEASURES,
    GainCurve,
    Prices,
    best_ratio,
    counts_between,
    elasticity,
    find_stop,
    gain_curve,
    gaussian_stop,
    last_above,
)
from solrl_tasks.analysis.order_statistics import gaussian_contrast
from solrl_tasks.analysis.ranks import ends

PRICES = Prices(explore=1.0, regenerate=2.0, update=2.0, keep=4)


def pools(prompts=20, count=40, rho=0.7, seed=0):
    rng = np.random.default_rng(seed)
    true = rng.normal(size=(prompts, count))
    return rho * true + np.sqrt(1 - rho**2) * rng.normal(size=true.shape), true


def test_a_curve_ends_at_what_the_whole_pools_give():
    proxy, true = pools()
    curve = gain_curve(proxy, true, 7)
    assert curve.candidates.tolist() == list(range(7, 41))
    np.testing.assert_allclose(curve.each[:, -1], ends(proxy, true, 7)["contrast"])
    assert curve.at(40).mean == pytest.approx(curve.mean[-1])
    assert curve.at(40).stderr == pytest.approx(curve.errors()[-1])
    with pytest.raises(KeyError, match="41"):
        curve.at(41)


def test_a_curve_is_what_resampling_finds():
    proxy, true = pools(prompts=1, count=20)
    rng, found = np.random.default_rng(9), []
    for _ in range(4000):
        rows = rng.permutation(20)[:9]
        found.append(ends(proxy[:, rows], true[:, rows], 4)["contrast"][0])
    error = np.std(found) / np.sqrt(len(found))
    assert gain_curve(proxy, true, 4, candidates=[9]).mean[0] == pytest.approx(np.mean(found), abs=4 * error)


@given(seed=st.integers(0, 1000), keep=st.integers(2, 10))
def test_no_proxy_gains_more_than_the_truth_and_the_truth_never_falls(seed, keep):
    proxy, true = pools(prompts=3, count=16, rho=0.5, seed=seed)
    ideal, found = gain_curve(true, true, keep), gain_curve(proxy, true, keep)
    assert (found.each <= ideal.each + 1e-12).all()
    assert (np.diff(ideal.each, axis=1) >= -1e-12).all()


def test_a_proxy_of_no_use_leaves_the_plain_spread():
    rng = np.random.default_rng(3)
    true, proxy = rng.normal(size=(400, 24)), rng.normal(size=(400, 24))
    contrast, spread = (gain_curve(proxy, true, 8, measure, [8, 24]) for measure in MEASURES)
    assert abs(contrast.at(24).mean) < 4 * contrast.at(24).stderr
    np.testing.assert_allclose(spread.mean, np.sqrt(true.var(axis=1).mean()), rtol=0.03)
    assert spread.at(24).stderr == pytest.approx(np.sqrt(2 / (400 * 8)) / 2, rel=0.1)  # of chi square, 8 a prompt


def test_prompts_with_too_few_valid_candidates_are_left_out_and_counted():
    proxy, true = pools(prompts=4, count=12)
    proxy[1, :3] = np.nan
    curve = gain_curve(proxy, true, 4, candidates=[4, 12])
    assert (len(curve.each), curve.excluded) == (3, 1)
    assert curve.at(12).excluded == 1
    assert gain_curve(proxy, true, 4, candidates=[7, 12]).excluded == 0


def test_prompts_without_contrast_count():
    proxy, true = pools(prompts=4, count=12)
    true[0] = 1.0
    curve = gain_curve(proxy, true, 4)
    assert curve.excluded == 0
    assert (curve.each[0] == 0).all()


# Costs and stops


def curve_of(values, keep=4, first=4):
    each = np.atleast_2d(np.asarray(values, dtype=np.float64))
    return GainCurve("contrast", keep, np.arange(first, first + each.shape[1]), each, 0)


def test_costs_are_what_is_explored_and_what_is_kept():
    assert PRICES.fixed == 16
    assert PRICES.ratio == 0.25
    assert PRICES.cost(np.array([4, 10])).tolist() == [20, 26]
    with pytest.raises(ValueError, match="must cost"):
        Prices(0, 1, 1, 4)
    with pytest.raises(ValueError, match="must cost"):
        Prices(1, 0, 0, 4)


def test_a_gain_that_grows_as_a_power_of_the_cost_has_that_elasticity():
    candidates = np.arange(4, 50)
    for power in (0.3, 1.0, 2.0):
        found = elasticity(PRICES.cost(candidates) ** power, candidates, PRICES)
        np.testing.assert_allclose(found, power)


def test_both_rules_find_a_closed_form():
    """Of a gain of n - 4, 4 + n - 4 = n candidates: (n - 4) / (n + 16) never stops; of sqrt(n - 4) it does at 24."""
    candidates = np.arange(4, 100)
    root = np.sqrt(candidates - 4.0)
    assert candidates[best_ratio(root, candidates, PRICES)] == 24
    assert abs(candidates[last_above(root, candidates, PRICES, 1.0)] - 24) <= 1
    line = candidates - 4.0
    assert best_ratio(line, candidates, PRICES) == len(candidates) - 1
    assert last_above(line, candidates, PRICES) == len(candidates) - 1
    # Elasticity of the root: (n + 16) / (2 (n - 4)) is 0.75 at 44.
    assert abs(candidates[last_above(root, candidates, PRICES, 0.75)] - 44) <= 1


def test_a_bump_does_not_stop_what_makes_up_for_it():
    candidates = np.arange(4, 40)
    steady = np.log(candidates - 3.0) + 1
    bumpy = steady.copy()
    bumpy[10:14] = steady[10]
    assert (elasticity(bumpy, candidates, PRICES) == 0).any()
    assert last_above(bumpy, candidates, PRICES) == last_above(steady, candidates, PRICES) > 14


def test_lower_thresholds_never_stop_earlier():
    proxy, true = pools(prompts=2, count=40, rho=0.4)
    curve = gain_curve(proxy, true, 4).mean
    stops = [last_above(curve, np.arange(4, 41), PRICES, threshold) for threshold in (2.0, 1.0, 0.5, 0.2, 0.01)]
    assert stops == sorted(stops)


def test_where_the_elasticity_falls_it_falls_below_the_threshold_at_the_stop():
    candidates = np.arange(24, 600)
    values = np.array([gaussian_contrast(int(n), 24) for n in candidates])
    prices = Prices(0.1, 0.5, 0.5, 24)
    found = elasticity(values, candidates, prices)
    for threshold in (1.0, 0.5, 0.3):
        stop = int(last_above(values, candidates, prices, threshold))
        assert found[stop - 1] >= threshold > found[stop]


def test_a_flat_gain_stops_at_once_and_a_loss_has_no_answer():
    candidates = np.arange(4, 20)
    flat, loss = np.ones(16), -np.ones(16)
    for rule in (best_ratio, last_above):
        assert rule(flat, candidates, PRICES) == 0
        assert rule(loss, candidates, PRICES) == -1
        assert rule(np.stack([flat, loss]), candidates, PRICES).tolist() == [0, -1]


def test_stops_have_intervals_over_prompts():
    candidates = np.arange(4, 100)
    rng = np.random.default_rng(0)
    each = np.sqrt(candidates - 4.0) * rng.uniform(0.5, 1.5, (10, 1)) + rng.normal(0, 0.2, (10, 1))
    stop = find_stop(curve_of(each), PRICES, best_ratio)
    assert stop.candidates is not None and stop.low is not None and stop.high is not None
    assert stop.low <= stop.candidates <= stop.high
    assert 20 < stop.candidates < 29
    assert (stop.at_edge, stop.unanswered) == (False, 0)
    assert find_stop(curve_of(each), PRICES, best_ratio) == stop
    alone = find_stop(curve_of(each[:1]), PRICES, best_ratio)
    assert (alone.low, alone.high) == (None, None)


def test_a_stop_at_the_edge_of_the_pool_says_at_least():
    stop = find_stop(curve_of([np.arange(1.0, 40)] * 3), PRICES, best_ratio)
    assert (stop.at_edge, stop.edge_share) == (True, 1)
    assert str(stop) == "at least 42 (42 to 42)"


def test_no_gain_is_no_answer():
    stop = find_stop(curve_of(-np.ones((3, 9))), PRICES, best_ratio)
    assert (stop.candidates, stop.low, stop.unanswered) == (None, None, 1)
    assert "no gain" in str(stop)
    with pytest.raises(ValueError, match="no prompt"):
        find_stop(curve_of(np.empty((0, 9))), PRICES, best_ratio)


def test_cheaper_candidates_are_worth_exploring_more_of():
    for measure in MEASURES:
        found = [gaussian_stop(Prices(price, 0.5, 0.5, 24), measure) for price in (1, 0.5, 0.25, 0.125, 1 / 64)]
        assert found == sorted(found)
        assert len(set(found)) == 5


def test_the_gaussian_stop_is_the_best_of_every_number():
    prices = Prices(0.02, 0.5, 0.5, 24)
    ratios = [gaussian_contrast(n, 24) / (n * 0.02 + 24) for n in range(24, 600)]
    assert gaussian_stop(prices) == 24 + int(np.argmax(ratios))


def test_a_poorer_proxy_has_less_spread_to_gain_and_the_same_contrast_for_its_cost():
    prices = Prices(0.1, 0.5, 0.5, 24)
    assert len({gaussian_stop(prices, "contrast", rho=rho) for rho in (0.2, 0.6, 1.0)}) == 1
    stops = [gaussian_stop(prices, "spread", rho=rho) for rho in (0.0, 0.3, 0.6, 1.0)]
    assert stops == sorted(stops)
    assert stops[0] == 24 < stops[-1]


def test_a_gaussian_pool_stops_where_a_gaussian_does():
    """The correlation of the proxy scales the curve and changes no answer."""
    prices = Prices(0.5, 1.0, 1.0, 8)
    expected = gaussian_stop(prices)
    for rho in (1.0, 0.6):
        proxy, true = pools(prompts=1500, count=64, rho=rho, seed=5)
        assert find_stop(gain_curve(proxy, true, 8), prices, best_ratio).candidates == pytest.approx(expected, abs=2)


def test_curves_are_taken_one_by_one_and_then_by_ratio():
    assert counts_between(4, 9).tolist() == [4, 5, 6, 7, 8, 9]
    assert counts_between(9, 9).tolist() == [9]
    far = counts_between(24, 10_000)
    assert far[0] == 24
    assert far[-1] == 10_000
    assert len(far) < 400
    assert (np.diff(far) > 0).all()
    with pytest.raises(ValueError, match="more than"):
        counts_between(10, 9)
