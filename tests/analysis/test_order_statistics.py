"""Expected order statistics: published values, closed forms, brute force over every subset."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from solrl_tasks.analysis.order_statistics import (
    bernoulli_contrast,
    ends_of,
    gaussian_contrast,
    gaussian_kept_spread,
    gaussian_top_mean,
    proxy_contrast,
    proxy_spread,
    subset_contrast,
    subset_square,
    subset_weights,
)
from solrl_tasks.analysis.ranks import ends

RANGES = {2: 1.12838, 3: 1.69257, 4: 2.05875, 5: 2.32593, 10: 3.07751, 24: 3.89535, 25: 3.93063, 96: 4.98593}
"""Factor d2 of control charts; up to 25 as tabulated."""


@pytest.mark.parametrize(("count", "expected"), RANGES.items())
def test_the_range_is_as_tabulated(count, expected):
    assert gaussian_contrast(count, 2) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(("count", "expected"), [(24, 1.54), (48, 2.50), (72, 2.95), (96, 3.25), (192, 3.90)])
def test_the_contrast_of_24_is_as_simulated_by_others(count, expected):
    assert gaussian_contrast(count, 24) == pytest.approx(expected, abs=0.007)


def test_two_and_three_have_closed_forms():
    assert gaussian_top_mean(2, 1) == pytest.approx(1 / np.sqrt(np.pi), abs=1e-13)
    assert gaussian_top_mean(3, 1) == pytest.approx(1.5 / np.sqrt(np.pi), abs=1e-13)
    assert gaussian_top_mean(3, 2) == pytest.approx(0.75 / np.sqrt(np.pi), abs=1e-13)  # the middle one is 0 on average


def test_a_whole_group_kept_has_mean_zero_and_spread_one():
    for count in (2, 3, 24, 25, 1000):
        assert gaussian_top_mean(count, count) == pytest.approx(0, abs=1e-13)
        assert gaussian_kept_spread(count, count) == pytest.approx(1, abs=1e-12)


def test_sums_of_tops_leave_the_bottom():
    """By symmetry the top k sum to what the bottom n - k lack."""
    for count, top in ((7, 2), (24, 5), (96, 40)):
        assert top * gaussian_top_mean(count, top) == pytest.approx(
            (count - top) * gaussian_top_mean(count, count - top), rel=1e-11
        )


def test_the_extreme_agrees_with_its_own_density():
    def density(z: float, count: int) -> float:
        return z * count * stats.norm.pdf(z) * stats.norm.cdf(z) ** (count - 1)

    for count in (10, 1000):
        expected, _ = integrate.quad(density, -10, 10, args=(count,), epsabs=1e-12, points=[1.0, 3.0, 5.0])
        assert gaussian_top_mean(count, 1) == pytest.approx(expected, abs=1e-10)


def test_twelve_and_twelve_of_96_spread_as_objectives_state():
    assert gaussian_kept_spread(96, 24) == pytest.approx(1.69, abs=0.005)


def test_gaussian_figures_agree_with_draws():
    draws = np.sort(np.random.default_rng(3).standard_normal((40_000, 30)), axis=1)
    contrast = draws[:, -4:].mean(axis=1) - draws[:, :3].mean(axis=1)
    kept = np.concatenate([draws[:, -4:], draws[:, :3]], axis=1)
    assert gaussian_contrast(30, 7) == pytest.approx(contrast.mean(), abs=4 * contrast.std() / 200)
    assert gaussian_kept_spread(30, 7) == pytest.approx(np.sqrt((kept**2).mean()), abs=0.01)


@given(keep=st.integers(2, 40), more=st.integers(0, 60))
def test_more_candidates_never_give_less(keep, more):
    count = keep + more
    assert gaussian_contrast(count + 1, keep) > gaussian_contrast(count, keep)
    assert gaussian_kept_spread(count + 1, keep) >= gaussian_kept_spread(count, keep) - 1e-12


# Proxies


def test_a_gaussian_proxy_leaves_its_correlation_of_the_contrast():
    rng, rho, count, keep = np.random.default_rng(5), 0.6, 48, 12
    true = rng.standard_normal((20_000, count))
    proxy = rho * true + np.sqrt(1 - rho**2) * rng.standard_normal(true.shape)
    order = np.argsort(proxy, axis=1)
    sorted_true = np.take_along_axis(true, order, axis=1)
    worst, best = sorted_true[:, :6], sorted_true[:, -6:]
    contrast = best.mean(axis=1) - worst.mean(axis=1)
    assert contrast.mean() == pytest.approx(
        proxy_contrast(rho, gaussian_contrast(count, keep)), abs=4 * contrast.std() / 141
    )
    kept = np.concatenate([best, worst], axis=1)
    assert np.sqrt((kept**2).mean()) == pytest.approx(proxy_spread(rho, gaussian_kept_spread(count, keep)), abs=0.01)


def test_proxies_at_the_ends_of_the_scale():
    assert proxy_contrast(1, 3.25) == 3.25
    assert proxy_contrast(0, 3.25) == 0
    assert proxy_spread(1, 1.69) == pytest.approx(1.69)
    assert proxy_spread(0, 1.69) == 1
    with pytest.raises(ValueError, match="a correlation lies"):
        proxy_contrast(1.2, 1)


# Subsets of a pool


@given(pool=st.integers(1, 30), data=st.data())
def test_weights_of_subsets_sum_to_one_and_fall(pool, data):
    drawn = data.draw(st.integers(1, pool))
    weights = subset_weights(pool, drawn, data.draw(st.integers(1, drawn)))
    assert weights.sum() == pytest.approx(1)
    assert (np.diff(weights) <= 1e-12).all()


def test_weights_of_the_whole_pool_take_its_top():
    assert subset_weights(5, 5, 2).tolist() == [0.5, 0.5, 0, 0, 0]
    assert subset_weights(4, 1, 1).tolist() == [0.25] * 4


def every_subset(proxy, true, drawn, keep):
    """Contrast and squares by going through all subsets, ties shared as ``ranks.ends`` shares them."""
    contrasts = []
    for chosen in combinations(range(len(proxy)), drawn):
        rows = list(chosen)
        found = ends(proxy[None, rows], true[None, rows], keep)["contrast"][0]
        contrasts.append(0.0 if np.isnan(found) else found)  # no spread on one side: no contrast
    return np.mean(contrasts)


@pytest.mark.parametrize("keep", [2, 3, 4])
@pytest.mark.parametrize("tied", [False, True])
def test_the_contrast_of_subsets_is_that_of_all_of_them(keep, tied):
    rng = np.random.default_rng(keep)
    true = rng.normal(size=9)
    proxy = rng.integers(0, 4, 9).astype(float) if tied else rng.normal(size=9)
    for drawn in (keep, 5, 8, 9):
        assert subset_contrast(proxy, true, drawn, keep) == pytest.approx(every_subset(proxy, true, drawn, keep))


def test_invalid_candidates_are_drawn_and_never_kept():
    rng = np.random.default_rng(8)
    true, proxy = rng.normal(size=8), rng.normal(size=8)
    proxy[2], true[5] = np.nan, np.inf
    assert subset_contrast(proxy, true, 6, 4) == pytest.approx(every_subset(proxy, true, 6, 4))
    assert np.isnan(subset_contrast(proxy, true, 5, 4))  # a subset may hold both, and three valid ones
    assert np.isnan(subset_square(np.full(8, np.nan), true, 6, 4))


def test_the_squares_of_subsets():
    rng = np.random.default_rng(1)
    true, proxy = rng.normal(size=8), rng.normal(size=8)
    squares = []
    for chosen in combinations(range(8), 6):
        order = sorted(chosen, key=lambda i: proxy[i])
        squares += [(true[[order[0], order[-2], order[-1]]] - true.mean()) ** 2]
    assert subset_square(proxy, true, 6, 3) == pytest.approx(np.mean(squares))
    assert subset_square(proxy, true, 8, 8) == pytest.approx(true.var())


def test_a_gaussian_pool_has_the_gaussian_curve():
    true = np.random.default_rng(2).standard_normal((3000, 40))
    for drawn in (10, 20, 40):
        found = [subset_contrast(row, row, drawn, 10) for row in true]
        expected = gaussian_contrast(drawn, 10)
        assert np.mean(found) == pytest.approx(expected, abs=4 * np.std(found) / np.sqrt(3000))


def test_counts_that_do_not_fit_are_refused():
    values = np.arange(6.0)
    with pytest.raises(ValueError, match="must not decrease"):
        subset_contrast(values, values, 7, 4)
    with pytest.raises(ValueError, match="must not decrease"):
        subset_contrast(values, values, 3, 4)
    with pytest.raises(ValueError, match="both be"):
        subset_contrast(values, values[:5], 4, 2)
    with pytest.raises(ValueError, match="at least 2"):
        ends_of(1)
    with pytest.raises(ValueError, match="more than"):
        gaussian_contrast(4, 6)
    with pytest.raises(ValueError, match="within 1"):
        gaussian_top_mean(4, 0)
    with pytest.raises(ValueError, match="must not decrease"):
        subset_weights(4, 2, 3)


# 0/1 rewards


@given(chance=st.floats(0, 1), keep=st.integers(2, 12), more=st.integers(0, 30))
def test_zero_one_rewards_cannot_contrast_by_more_than_one(chance, keep, more):
    found = bernoulli_contrast(chance, keep + more, keep)
    assert -1e-12 <= found <= 1 + 1e-12
    assert found == pytest.approx(bernoulli_contrast(1 - chance, keep + more, keep) if keep % 2 == 0 else found)


def test_zero_one_rewards_agree_with_pools_of_them():
    rows = (np.random.default_rng(4).random((4000, 20)) < 0.2).astype(float)
    found = [subset_contrast(row, row, 20, 7) for row in rows]
    assert bernoulli_contrast(0.2, 20, 7) == pytest.approx(np.mean(found), abs=4 * np.std(found) / np.sqrt(4000))


def test_two_coins():
    assert bernoulli_contrast(0.5, 2, 2) == pytest.approx(0.5)
    assert bernoulli_contrast(0.0, 9, 4) == 0
    with pytest.raises(ValueError, match="probability"):
        bernoulli_contrast(1.5, 4, 2)
