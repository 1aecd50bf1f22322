import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solrl_tasks.objectives.advantages import advantages


def all_kept(rewards):
    return np.ones(len(rewards), dtype=bool)


def normal(prompts, kept, seed=0):
    return np.random.default_rng(seed).standard_normal((prompts, kept))


def test_group_mean_and_global_population_std():
    rewards = normal(4, 6) + np.arange(4.0)[:, None]
    found = advantages(rewards, all_kept(rewards))
    assert found.mean == pytest.approx(rewards.mean(axis=1))
    assert found.std == pytest.approx(np.full(len(rewards), np.sqrt(((rewards - rewards.mean()) ** 2).mean())))
    assert found.values == pytest.approx((rewards - rewards.mean(axis=1, keepdims=True)) / (found.std[:, None] + 1e-4))
    assert found.values.dtype == np.float64
    assert (found.excluded, found.used.all()) == (0, True)


@settings(deadline=None)
@given(st.floats(-100, 100), st.floats(0.5, 50))
def test_shift_and_scale_of_rewards_change_nothing(shift, scale):
    # T22: exactly for a shift; up to the 1e-4 for a scale.
    rewards = normal(5, 8)
    found = advantages(rewards, all_kept(rewards)).values
    assert advantages(rewards + shift, all_kept(rewards)).values == pytest.approx(found, abs=1e-9)
    assert advantages(rewards * scale, all_kept(rewards)).values == pytest.approx(found, abs=1e-3)


@settings(deadline=None)
@given(st.permutations(range(5)))
def test_groups_can_come_in_any_order(order):
    rewards = normal(5, 8)
    kept = np.array([True, True, False, True, True])
    found = advantages(rewards, kept).values[order]
    assert advantages(rewards[order], kept[order]).values == pytest.approx(found, abs=1e-12, nan_ok=True)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_an_invalid_sample_is_left_out_before_statistics(bad):
    rewards = normal(3, 5)
    rewards[1, 2] = bad
    found = advantages(rewards, all_kept(rewards))
    valid = np.isfinite(rewards)
    assert found.excluded == 1
    assert np.array_equal(found.used, valid)
    assert found.std == pytest.approx(np.full(len(rewards), rewards[valid].std()))
    assert found.mean[1] == pytest.approx(rewards[1][valid[1]].mean())


def test_left_out_groups_are_not_looked_at():
    rewards = normal(3, 5)
    found = advantages(np.vstack([rewards, [[1e9, np.nan, 0, 0, 0]]]), np.array([True, True, True, False]))
    alone = advantages(rewards, all_kept(rewards))
    assert np.array_equal(found.values[:3], alone.values)
    assert np.isnan(found.values[3]).all()
    assert np.isnan(found.mean[3])
    assert (set(found.std), found.excluded) == (set(alone.std), 0)


@pytest.mark.parametrize("kept", [[False, False], [True, True]])
def test_nothing_left_is_visible_and_quiet(kept):
    found = advantages(np.full((2, 3), np.nan), np.array(kept))
    assert not found.used.any()
    assert np.isnan(found.std).all()
    assert found.excluded == 3 * sum(kept)


def test_equal_rewards_have_no_advantage():
    found = advantages(np.full((3, 4), 0.1), np.ones(3, dtype=bool))
    assert found.values == pytest.approx(0.0, abs=1e-9)


def test_pool_statistics_come_from_all_valid_candidates_of_the_kept_groups():
    pool = normal(3, 96, seed=1)
    pool[0, 5] = np.nan
    rewards = normal(3, 4)
    kept = np.array([True, False, True])
    found = advantages(rewards, kept, "pool", pool)
    assert found.std == pytest.approx(np.full(3, np.nanstd(pool[[0, 2]])))
    assert found.mean[[0, 2]] == pytest.approx(np.nanmean(pool[[0, 2]], axis=1))
    assert found.values[2] == pytest.approx((rewards[2] - pool[2].mean()) / (found.std[2] + 1e-4))


def test_pool_statistics_of_the_pool_itself_are_the_plain_ones():
    pool = normal(3, 96)
    kept = all_kept(pool)
    assert np.array_equal(advantages(pool, kept, "pool", pool).values, advantages(pool, kept).values)


def test_missing_or_misshapen_inputs_are_refused():
    rewards = normal(3, 4)
    with pytest.raises(ValueError, match='"pool" need the rewards of the whole pool'):
        advantages(rewards, all_kept(rewards), "pool")
    with pytest.raises(ValueError, match=r"\[P, N\] with the 3 prompts"):
        advantages(rewards, all_kept(rewards), "pool", normal(2, 96))
    with pytest.raises(ValueError, match=r"rewards must be \[P, K\]"):
        advantages(rewards, np.ones(2, dtype=bool))


def test_the_mean_that_includes_the_sample_shrinks_the_covariance():
    # T19: E[(R - mean) G] = (1 - 1/G) Cov(R, G); here Cov = 0.7 and groups have 24.
    rng = np.random.default_rng(0)
    g = rng.standard_normal((20_000, 24))
    rewards = 0.7 * g + 0.5 * rng.standard_normal(g.shape)
    found = advantages(rewards, all_kept(rewards))
    assert (found.values * (found.std[0] + 1e-4) * g).mean() == pytest.approx(0.7 * 23 / 24, abs=0.003)


def test_each_group_by_its_own_spread():
    rewards = normal(3, 8) * np.array([[1.0], [5.0], [0.0]])
    rewards[0, 3] = np.nan
    found = advantages(rewards, all_kept(rewards), std="group")
    for row in (0, 1):
        valid = np.isfinite(rewards[row])
        mean, std = rewards[row][valid].mean(), rewards[row][valid].std()
        assert found.values[row][valid] == pytest.approx((rewards[row][valid] - mean) / (std + 1e-4))
    assert not found.values[2].any()


def test_a_sample_against_the_others_of_its_group():
    # T19: without the sample itself in the mean nothing is lost of the covariance.
    rewards = normal(2, 6)
    rewards[1, 1:] = np.nan
    found = advantages(rewards, all_kept(rewards), mean="leave_one_out")
    for i in range(6):
        others = np.delete(rewards[0], i).mean()
        assert found.values[0, i] == pytest.approx((rewards[0, i] - others) / (found.std[0] + 1e-4))
    assert np.isnan(found.values[1]).all()
    with pytest.raises(ValueError, match="leave_one_out"):
        advantages(rewards, all_kept(rewards), "pool", rewards, mean="leave_one_out")
