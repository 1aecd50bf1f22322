import json
import math

import numpy as np
import pytest
from pydantic import ValidationError

from solrl_tasks.analysis.estimates import (
    Bounded,
    Estimate,
    bootstrap,
    bounded_estimate,
    confidence_interval,
    mean_estimate,
    paired_difference,
    paired_units,
    share_better,
    unit_means,
)


def test_mean_and_standard_error():
    found = mean_estimate(np.array([1.0, 2.0, 3.0, 4.0]))
    assert (found.mean, found.n, found.excluded) == (2.5, 4, 0)
    assert found.stderr == pytest.approx((5 / 3) ** 0.5 / 2)


def test_units_without_a_value_are_left_out_and_counted():
    found = mean_estimate(np.array([[1.0, np.nan], [3.0, np.inf]]))
    assert (found.mean, found.n, found.excluded) == (2.0, 2, 2)


def test_what_cannot_be_known_is_nan():
    empty, single = mean_estimate(np.array([np.nan])), mean_estimate(np.array([2.0]))
    assert math.isnan(empty.mean)
    assert math.isnan(empty.stderr)
    assert (empty.n, empty.excluded) == (0, 1)
    assert single.mean == 2.0
    assert math.isnan(single.stderr)


@pytest.mark.parametrize("values", [[1.0, 2.0], [2.0], []])
def test_json_round_trip_has_null_for_nan(values):
    found = mean_estimate(np.array(values))
    text = found.model_dump_json()
    assert "NaN" not in text
    assert json.loads(text) == found.model_dump(mode="json")
    back = Estimate.model_validate_json(text)
    assert (back.n, back.excluded) == (found.n, found.excluded)
    assert (back.mean, back.stderr) == pytest.approx((found.mean, found.stderr), nan_ok=True)


def test_estimates_are_frozen():
    with pytest.raises(ValidationError):
        mean_estimate(np.array([1.0])).mean = 2.0


def test_stderr_covers_the_spread_of_means():
    random = np.random.default_rng(0)
    many = [mean_estimate(random.standard_normal(16)) for _ in range(2000)]
    assert np.mean([e.stderr**2 for e in many]) == pytest.approx(np.var([e.mean for e in many]), rel=0.1)


def test_pairing_removes_what_both_sides_share():
    random = np.random.default_rng(0)
    prompts = 10 * random.standard_normal(64)
    before, after = prompts + 0.1 * random.standard_normal(64), prompts + 0.5 + 0.1 * random.standard_normal(64)
    gain = paired_difference(after, before)
    assert gain.mean == pytest.approx(0.5, abs=4 * gain.stderr)
    assert gain.stderr < mean_estimate(after).stderr / 20


def test_pairs_need_both_sides():
    gain = paired_difference(np.array([1.0, np.nan, np.inf]), np.array([0.5, 1.0, np.inf]))
    assert (gain.mean, gain.n, gain.excluded) == (0.5, 1, 2)
    with pytest.raises(ValueError, match="one shape"):
        paired_difference(np.zeros(2), np.zeros(3))


def test_values_of_a_unit_are_averaged_before_any_error_is_taken():
    assert unit_means(np.array([[1.0, 3.0], [np.nan, 5.0], [np.nan, np.inf]])).tolist() == pytest.approx(
        [2.0, 5.0, math.nan], nan_ok=True
    )


def test_pairs_count_where_both_sides_are_valid():
    after = np.array([[2.0, np.nan, 4.0], [1.0, 1.0, 1.0], [np.nan] * 3])
    before = np.array([[1.0, 100.0, np.nan], [0.0, 0.0, 3.0], [0.0] * 3])
    found = paired_units(after, before)
    assert (found.mean, found.n, found.excluded) == (pytest.approx(0.5), 2, 1)
    better = share_better(after, before)
    assert (better.mean, better.n) == (0.75, 2)


def test_pairing_takes_away_what_prompts_have_in_common():
    rng = np.random.default_rng(0)
    prompts = rng.standard_normal((40, 1)) * 10
    before = prompts + rng.standard_normal((40, 4))
    after = before + 0.5 + 0.1 * rng.standard_normal((40, 4))
    found = paired_units(after, before)
    assert found.mean == pytest.approx(0.5, abs=0.05)
    assert found.stderr < mean_estimate(unit_means(after)).stderr / 50


def test_an_interval_covers_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(1000):
        low, high = confidence_interval(mean_estimate(rng.standard_normal(8)))
        covered += low <= 0.0 <= high
    assert 930 <= covered <= 970
    low, high = confidence_interval(mean_estimate(np.array([1.0])))
    assert math.isnan(low) and math.isnan(high)


@pytest.mark.parametrize(
    ("draw", "mean"),
    [
        (lambda random: random.standard_normal(24), 0.0),
        (lambda random: 1 - random.beta(1, 8, 24), 8 / 9),
        (lambda random: random.exponential(1.0, 24), 1.0),
    ],
)
def test_bootstrap_bounds_hold_about_as_often_as_they_say(draw, mean):
    random = np.random.default_rng(5)
    bounds = [bootstrap(draw(random), seed, resamples=500) for seed in range(300)]
    held = np.mean([low <= mean <= high for low, high in bounds])
    assert 0.87 <= held <= 0.98


def test_bootstrap_bounds_narrow_with_units_and_with_a_lower_level():
    random = np.random.default_rng(0)
    few, many = bootstrap(random.standard_normal(10)), bootstrap(random.standard_normal(1000))
    assert few[1] - few[0] > 4 * (many[1] - many[0])
    values = random.standard_normal(40)
    assert np.ptp(bootstrap(values, level=0.5)) < np.ptp(bootstrap(values, level=0.95))


def test_bootstrap_bounds_depend_on_values_and_seed_alone():
    values = np.random.default_rng(1).standard_normal(12)
    assert bootstrap(values, 3) == bootstrap(values, 3) != bootstrap(values, 4)
    np.random.seed(7)
    assert bootstrap(values, 3) == bootstrap(values, 3)
    assert bootstrap(np.append(values, [np.nan, np.inf]), 3) == bootstrap(values, 3)


def test_bootstrap_of_what_has_no_spread_or_too_few_units():
    assert bootstrap(np.ones(5)) == (1.0, 1.0)
    assert bootstrap(np.array([0.1 + 0.2, 0.3])) == pytest.approx((0.3, 0.3))
    assert np.isnan(bootstrap(np.array([1.0]))).all()
    assert np.isnan(bootstrap(np.array([np.nan, np.nan]))).all()


def test_a_bounded_estimate_has_the_spread_of_its_units():
    values = np.array([1.0, 2.0, 3.0, 4.0, np.nan])
    found = bounded_estimate(values)
    assert (found.mean, found.n, found.excluded) == (2.5, 4, 1)
    assert found.spread == pytest.approx(np.std(values[:4], ddof=1))
    assert found.low <= found.mean <= found.high
    single = bounded_estimate(np.array([2.0]))
    assert np.isnan([single.spread, single.low, single.high, single.stderr]).all()
    assert json.loads(single.model_dump_json())["low"] is None
    assert Bounded.model_validate_json(found.model_dump_json()) == found
