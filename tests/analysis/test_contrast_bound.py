"""The bound: its two halves, where it says nothing, and what enters it."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from solrl_tasks.analysis.contrast_bound import (
    Deviation,
    Shape,
    asymptotic_range,
    first_positive,
    pooled_sigma,
    sigma_of,
)
from solrl_tasks.analysis.order_statistics import gaussian_contrast
from solrl_tasks.analysis.ranks import ends

rewards = arrays(np.float64, (3, 9), elements=st.floats(-5, 5, width=32))


@given(proxy=rewards, true=rewards, keep=st.integers(2, 9))
def test_no_proxy_loses_more_than_four_delta(proxy, true, keep):
    """Of any distribution, at any N and K: pool by pool, with the constant taken off or not."""
    found = ends(proxy, true, keep)
    deviation = Deviation.of(proxy, true)
    for delta in (deviation.raw, deviation.centred):
        lost = found["contrast_ideal"] - found["contrast"] - 4 * delta
        assert (lost[np.isfinite(lost)] <= 1e-9).all()


@given(proxy=rewards, true=rewards, constant=st.floats(-100, 100))
def test_a_constant_changes_the_raw_deviation_alone(proxy, true, constant):
    before, after = Deviation.of(proxy, true), Deviation.of(proxy + constant, true)
    np.testing.assert_allclose(after.centred, before.centred, atol=1e-9)
    np.testing.assert_allclose(after.quantile, before.quantile, atol=1e-9)
    np.testing.assert_allclose(after.offset, before.offset + constant, atol=1e-9)
    assert (before.centred <= before.raw + 1e-12).all()


@given(proxy=rewards, true=rewards)
def test_no_constant_leaves_less_than_the_centred_deviation(proxy, true):
    found = Deviation.of(proxy, true)
    left = np.abs(proxy - true - found.offset[:, None]).max(axis=1)
    np.testing.assert_allclose(left, found.centred, atol=1e-12)
    assert (found.quantile <= found.centred + 1e-12).all()


def test_deviations_by_hand():
    true = np.array([[0.0, 1, 2, 3], [0, 0, 0, 0], [np.nan] * 4])
    proxy = true + np.array([[1.0, 1, 1, 5], [0, 0, np.nan, 2], [0] * 4])
    found = Deviation.of(proxy, true)
    np.testing.assert_allclose(found.raw, [5, 2, np.nan])
    np.testing.assert_allclose(found.centred, [2, 1, np.nan])
    np.testing.assert_allclose(found.offset, [3, 1, np.nan])
    assert found.pooled() == pytest.approx({"raw": 5, "centred": 2, "quantile": found.quantile[0]})
    assert math.isnan(Deviation.of(proxy[2:], true[2:]).pooled()["raw"])
    with pytest.raises(ValueError, match="both be"):
        Deviation.of(proxy, true[:, :3])


@pytest.mark.parametrize("count", [2, 3, 10, 24, 96, 1000, 100_000])
def test_the_asymptote_is_above_the_exact_range(count):
    assert asymptotic_range(count) > gaussian_contrast(count, 2)


def test_the_asymptote_is_reached_in_the_limit_alone():
    ratios = [gaussian_contrast(count, 2) / asymptotic_range(count) for count in (10, 96, 1000, 10**5)]
    assert ratios == sorted(ratios)
    assert ratios[1] == pytest.approx(4.98593 / 6.0426, abs=1e-4)
    assert ratios[-1] < 0.92


def test_the_bound_says_nothing_until_its_first_positive():
    edge = first_positive(0.5, 0.6)
    assert edge == pytest.approx(math.exp(2 * 1.44))
    assert 0.5 * asymptotic_range(math.floor(edge)) < 4 * 0.6 < 0.5 * asymptotic_range(math.ceil(edge))
    assert first_positive(1, 0) == 1
    assert first_positive(0, 1) == math.inf
    assert first_positive(1, 1000) == math.inf
    with pytest.raises(ValueError, match="at least 2"):
        asymptotic_range(1)


def test_sigma_of_a_gaussian_is_unbiased():
    draws = np.random.default_rng(0).normal(3, 2, (40_000, 5))
    found = sigma_of(draws)
    assert found.mean() == pytest.approx(2, abs=4 * found.std() / 200)
    assert draws.std(axis=1, ddof=1).mean() < 1.95  # what it corrects


def test_sigmas_leave_out_what_is_invalid():
    values = np.array([[1.0, 3, np.nan], [np.nan, 2, np.inf], [4, 4, 4]])
    found = sigma_of(values)
    assert found[0] == pytest.approx(math.sqrt(2) / math.sqrt(2 / math.pi))
    assert math.isnan(found[1])
    assert found[2] == 0
    assert pooled_sigma(values) == pytest.approx(math.sqrt(2 / 3))
    assert math.isnan(pooled_sigma(values[1:2]))


def test_the_pooled_sigma_is_above_the_mean_where_prompts_differ():
    draws = np.random.default_rng(1).normal(size=(2, 4000)) * np.array([[1], [3]])
    assert pooled_sigma(draws) == pytest.approx(math.sqrt(5), rel=0.03)
    assert sigma_of(draws).mean() == pytest.approx(2, rel=0.03)


def test_shapes_tell_gaussian_from_others():
    rng = np.random.default_rng(2)
    normal, coins = Shape.of(rng.normal(size=(50, 400))), Shape.of((rng.random((50, 400)) < 0.5) * 1.0)
    skewed = Shape.of(rng.exponential(size=(50, 4000)))
    assert abs(normal.skew.mean) < 0.06
    assert abs(normal.kurtosis.mean) < 0.15
    assert (normal.tied.mean, normal.distinct.mean, normal.binary) == (0, 400, False)
    assert (coins.tied.mean, coins.distinct.mean, coins.binary) == (1, 2, True)
    assert coins.kurtosis.mean == pytest.approx(-2, abs=0.05)
    assert skewed.skew.mean == pytest.approx(2, abs=0.15)


def test_flat_prompts_are_counted():
    found = Shape.of(np.array([[1.0, 1, 1, 1, 1], [0, 1, 2, 3, 4.5], [np.nan] * 5]))
    assert found.flat == 1
    assert (found.skew.n, found.skew.excluded) == (1, 2)
