import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from solrl_tasks.analysis.ranks import (
    ends,
    fidelity,
    kendall,
    kept_contrast,
    kept_inflated,
    matches,
    regret,
    spearman,
    whole_groups,
)


def correlated(prompts, candidates, rho, seed=0):
    """Gaussian rewards and a proxy of Pearson correlation rho."""
    random = np.random.default_rng(seed)
    true, noise = random.standard_normal((2, prompts, candidates))
    return rho * true + (1 - rho**2) ** 0.5 * noise, true


def groups(*rows):
    return np.array(rows, dtype=np.float64)


tied = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=3, max_size=30)


@settings(deadline=None)
@given(tied)
def test_correlations_are_those_of_scipy_with_ties(pairs):
    proxy, true = np.array(pairs, dtype=np.float64).T
    ours = [measure(proxy[None], true[None])[0] for measure in (spearman, kendall)]
    if np.ptp(proxy) == 0 or np.ptp(true) == 0:
        assert np.isnan(ours).all()
        return
    theirs = [stats.spearmanr(proxy, true).statistic, stats.kendalltau(proxy, true).statistic]
    assert ours == pytest.approx(theirs, abs=1e-12)


@settings(deadline=None)
@given(tied, st.randoms(use_true_random=False), st.integers(2, 6))
def test_nothing_depends_on_the_order_of_candidates(pairs, order, keep):
    shuffled = list(pairs)
    order.shuffle(shuffled)
    ours, theirs = (
        whole_groups(*(side[None] for side in np.array(p, dtype=np.float64).T), keep) for p in (pairs, shuffled)
    )
    for name, estimate in ours.items():
        assert estimate.mean == pytest.approx(theirs[name].mean, abs=1e-9, nan_ok=True)


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1))
def test_increasing_transforms_of_the_proxy_change_nothing(seed):
    proxy, true = correlated(2, 20, 0.5, seed)
    plain, transformed = whole_groups(proxy, true, 6), whole_groups(np.exp(3 * proxy) - 7, true, 6)
    for name, estimate in transformed.items():
        assert estimate.mean == pytest.approx(plain[name].mean, abs=1e-12)


def test_a_perfect_proxy():
    _, true = correlated(5, 96, 0.0)
    found = whole_groups(true**3, true, 24)
    for name in ("spearman", "kendall", "overlap_best", "overlap_worst", "contrast_share"):
        assert found[name].mean == pytest.approx(1.0), name
    assert (found["rank_best"].mean, found["rank_worst"].mean) == (6.5, 90.5)


def test_a_reversed_proxy():
    _, true = correlated(5, 96, 0.0)
    found = whole_groups(-true, true, 24)
    for name in ("spearman", "kendall", "contrast_share"):
        assert found[name].mean == pytest.approx(-1.0), name
    assert found["overlap_best"].mean == found["overlap_worst"].mean == 0.0
    assert (found["rank_best"].mean, found["rank_worst"].mean) == (90.5, 6.5)


def test_a_proxy_that_knows_nothing_is_at_chance():
    found = whole_groups(*correlated(500, 96, 0.0), 24)
    chance = {"spearman": 0, "overlap_best": 12 / 96, "overlap_worst": 12 / 96, "contrast_share": 0, "rank_best": 48.5}
    for name, value in chance.items():
        assert found[name].mean == pytest.approx(value, abs=4 * found[name].stderr), name


def test_gaussian_rewards_give_the_known_figures():
    rho = 0.6
    found = whole_groups(*correlated(500, 96, rho), 24)
    assert found["spearman"].mean == pytest.approx(6 / np.pi * np.arcsin(rho / 2), abs=0.015)
    assert found["kendall"].mean == pytest.approx(2 / np.pi * np.arcsin(rho), abs=0.015)
    assert found["contrast_ideal"].mean == pytest.approx(3.25, abs=0.05)
    assert found["contrast_share"].mean == pytest.approx(rho, abs=0.015)


def test_overlap_is_that_of_sets_where_nothing_ties():
    proxy, true = correlated(20, 30, 0.7)
    found = ends(proxy, true, 9)
    for row in range(20):
        best = [set(np.argsort(-side[row])[:5]) for side in (proxy, true)]
        worst = [set(np.argsort(side[row])[:4]) for side in (proxy, true)]
        assert found["overlap_best"][row] == pytest.approx(len(best[0] & best[1]) / 5)
        assert found["overlap_worst"][row] == pytest.approx(len(worst[0] & worst[1]) / 4)


def test_a_tie_at_the_edge_counts_in_equal_part():
    found = ends(groups([3, 2, 2, 1, 0]), groups([5, 4, 1, 0, 0]), 4)
    # Best: candidate 0 and half each of 1 and 2, of which 0 and 1 are the true best. Worst: 4 and 3, both truly worst.
    assert found["overlap_best"].tolist() == [0.75]
    assert found["overlap_worst"].tolist() == [1.0]
    assert found["contrast"].tolist() == [(5 + (4 + 1) / 2) / 2 - 0]
    assert found["contrast_ideal"].tolist() == [4.5]
    assert found["rank_best"].tolist() == [(1 + (2 + 3) / 2) / 2]
    assert found["rank_worst"].tolist() == [4.5]


def test_among_equal_successes_any_is_as_good():
    true = (np.arange(96) < 40).astype(float)[None]
    assert ends(true, true, 24)["overlap_best"].tolist() == [pytest.approx(1.0)]


def test_groups_that_say_nothing_are_excluded_and_counted():
    nan = np.nan
    proxy = groups([1, 2, 3, 4], [1, 1, 1, 1], [1, 2, 3, 4], [1, 2, 3, nan], [nan] * 4)
    true = groups([1, 2, 3, 4], [1, 2, 3, 4], [5, 5, 5, 5], [1, 2, np.inf, 4], [1, 2, 3, 4])
    found = whole_groups(proxy, true, 4)
    assert (found["spearman"].n, found["spearman"].excluded) == (2, 3)
    for name in ends(proxy, true, 4):
        assert (found[name].n, found[name].excluded) == (1, 4), name


def test_invalid_candidates_are_left_out_in_pairs():
    proxy, true = correlated(3, 20, 0.5)
    proxy_holes, true_holes = proxy.copy(), true.copy()
    proxy_holes[:, 3], true_holes[:, 7] = np.nan, -np.inf
    kept = np.delete(np.arange(20), [3, 7])
    assert np.array_equal(spearman(proxy_holes, true_holes), spearman(proxy[:, kept], true[:, kept]))
    for name, values in ends(proxy_holes, true_holes, 6).items():
        assert np.array_equal(values, ends(proxy[:, kept], true[:, kept], 6)[name])


def test_correlation_on_the_kept_is_inflated_and_contrast_is_not():
    proxy, true = correlated(400, 96, 0.6)
    order = np.argsort(-proxy, axis=1)[:, [*range(12), *range(84, 96)]]
    proxy_kept, true_kept = (np.take_along_axis(side, order, axis=1) for side in (proxy, true))
    whole, kept = whole_groups(proxy, true, 24), kept_inflated(proxy_kept, true_kept)
    assert set(kept) == {"spearman", "kendall"}
    assert kept["spearman"].mean > whole["spearman"].mean + 0.1
    assert kept_contrast(true_kept) == pytest.approx(ends(proxy, true, 24)["contrast"])


def test_contrast_of_kept_needs_whole_groups():
    found = kept_contrast(groups([5, 3, 1], [1, np.nan, 0], [np.nan] * 3))
    assert found[0] == 3.0
    assert np.isnan(found[1:]).all()


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(ValueError, match="must both be"):
        spearman(np.zeros((2, 3)), np.zeros((2, 4)))
    with pytest.raises(ValueError, match="two ends need at least 2"):
        ends(np.zeros((2, 3)), np.zeros((2, 3)), 1)


def test_a_proxy_that_is_the_reference_gives_nothing_away():
    _, true = correlated(5, 96, 0.0)
    found = {name: values.mean() for name, values in fidelity(true, true, 24, (4, 8, 12)).items()}
    assert found["spearman"] == pytest.approx(1.0)
    assert found["contrast_share"] == pytest.approx(1.0)
    assert (found["regret"], found["regret_std"]) == pytest.approx((0.0, 0.0), abs=1e-12)
    for k in (4, 8, 12):
        assert (found[f"top_overlap_{k}"], found[f"bottom_overlap_{k}"]) == (1.0, 1.0)
        best = 1 - (k - 1) / (2 * 95)
        assert (found[f"top_match_{k}"], found[f"bottom_match_{k}"]) == pytest.approx((best, best))


def test_an_independent_proxy_finds_what_chance_finds():
    proxy, true = correlated(600, 48, 0.0)
    found = {name: values.mean() for name, values in fidelity(proxy, true, 12, (4, 12)).items()}
    assert found["spearman"] == pytest.approx(0.0, abs=0.02)
    assert (found["rank_best"], found["rank_worst"]) == pytest.approx((24.5, 24.5), abs=0.6)
    assert found["contrast_share"] == pytest.approx(0.0, abs=0.03)
    for k in (4, 12):
        assert found[f"top_overlap_{k}"] == pytest.approx(k / 48, abs=0.02)
        assert found[f"bottom_overlap_{k}"] == pytest.approx(k / 48, abs=0.02)
        assert found[f"top_match_{k}"] == pytest.approx(0.5, abs=0.02)
        assert found[f"bottom_match_{k}"] == pytest.approx(0.5, abs=0.02)
    ideal = np.mean([np.sort(group)[-6:].mean() - group.mean() for group in true])
    assert found["regret"] == pytest.approx(ideal, abs=0.05)


def test_a_reversed_proxy_is_as_wrong_as_can_be():
    _, true = correlated(3, 20, 0.0)
    found = matches(-true, true, (4,))
    assert np.all(found["top_overlap_4"] == 0.0)
    assert found["top_match_4"] == pytest.approx(3 / 2 / 19)
    assert np.all(regret(-true, true, 8)["regret"] > 0)


def test_matches_and_regret_by_hand():
    proxy, true = groups([5, 4, 3, 2, 1, 0]), groups([10, 7, 8, 1, 0, 2])
    found = matches(proxy, true, (1, 2, 3))
    assert [found[f"top_overlap_{k}"][0] for k in (1, 2, 3)] == pytest.approx([1.0, 0.5, 1.0])
    assert [found[f"bottom_overlap_{k}"][0] for k in (1, 2, 3)] == pytest.approx([0.0, 0.5, 1.0])
    assert found["top_match_2"][0] == pytest.approx((5 / 5 + 3 / 5) / 2)
    assert found["bottom_match_2"][0] == pytest.approx((5 / 5 + 3 / 5) / 2)
    given_away = regret(proxy, true, 4)
    assert given_away["regret"][0] == pytest.approx((10 + 8) / 2 - (10 + 7) / 2)
    assert given_away["regret_std"][0] == pytest.approx(0.5 / true.std())


@settings(deadline=None)
@given(tied, st.randoms(use_true_random=False), st.integers(2, 6))
def test_no_new_measure_depends_on_the_order_of_candidates(pairs, order, keep):
    shuffled = list(pairs)
    order.shuffle(shuffled)
    ours, theirs = (
        fidelity(*(side[None] for side in np.array(p, dtype=np.float64).T), keep, (1, 3)) for p in (pairs, shuffled)
    )
    for name, values in ours.items():
        assert values == pytest.approx(theirs[name], abs=1e-9, nan_ok=True), name


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(-1, 1), st.integers(2, 12))
def test_regret_is_never_negative_and_is_the_best_part_of_the_lost_contrast(seed, rho, keep):
    proxy, true = correlated(3, 15, rho, seed)
    best, both = regret(proxy, true, keep)["regret"], ends(proxy, true, keep)
    assert np.all(best >= -1e-9)
    assert np.all(best <= both["contrast_ideal"] - both["contrast"] + 1e-9)


def test_regret_scales_with_the_reward_and_its_share_does_not():
    proxy, true = correlated(4, 30, 0.5)
    plain, scaled = regret(proxy, true, 8), regret(proxy, 7 * true + 3, 8)
    assert scaled["regret"] == pytest.approx(7 * plain["regret"])
    assert scaled["regret_std"] == pytest.approx(plain["regret_std"])


def test_what_cannot_be_picked_is_refused():
    _, true = correlated(2, 8, 0.0)
    with pytest.raises(ValueError, match="at least 1"):
        matches(true, true, (0,))
    with pytest.raises(ValueError, match="two ends"):
        regret(true, true, 1)
    assert np.isnan(matches(true, true, (9,))["top_match_9"]).all()
