"""Properties that every selection rule has, and what sets the rules apart."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solrl_tasks.config.extensions import build, list_extensions
from solrl_tasks.selection.best_worst import BestWorst
from solrl_tasks.selection.extremes_random import ExtremesRandom
from solrl_tasks.selection.mean_deviation import MeanDeviation
from solrl_tasks.selection.random_keep import RandomKeep

BY_RANK = [BestWorst(), RandomKeep(), ExtremesRandom()]
RULES = [*BY_RANK, MeanDeviation()]
by_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
invalid = st.sampled_from([np.nan, np.inf, -np.inf])
score = st.one_of(st.integers(0, 2).map(float), st.floats(-1e6, 1e6), invalid)


@st.composite
def groups(draw):
    scores = np.array(draw(st.lists(score, min_size=2, max_size=40)))
    seeds = draw(st.lists(st.integers(0, 2**64 - 1), min_size=len(scores), max_size=len(scores), unique=True))
    finite = int(np.isfinite(scores).sum())
    keep = draw(st.integers(1, max(1, finite)))
    return scores, np.array(seeds, dtype=np.uint64), keep


@by_rule
@settings(deadline=None)
@given(group=groups())
def test_kept_are_distinct_valid_and_best_first(rule, group):
    scores, seeds, keep = group
    if np.isfinite(scores).sum() < keep:
        with pytest.raises(ValueError, match="candidates with a finite score"):
            rule.select(scores, keep, seeds)
        return
    chosen = rule.select(scores, keep, seeds)
    assert chosen.dtype == np.int64
    assert len(set(chosen.tolist())) == keep
    assert np.isfinite(scores[chosen]).all()
    assert (np.diff(scores[chosen]) <= 0).all()


@by_rule
@settings(deadline=None)
@given(group=groups(), order=st.randoms(use_true_random=False))
def test_the_kept_seeds_do_not_depend_on_the_order_of_candidates(rule, group, order):
    scores, seeds, keep = group
    if np.isfinite(scores).sum() < keep:
        return
    shuffled = list(range(len(scores)))
    order.shuffle(shuffled)
    kept = seeds[rule.select(scores, keep, seeds)]
    assert np.array_equal(kept, seeds[shuffled][rule.select(scores[shuffled], keep, seeds[shuffled])])


@pytest.mark.parametrize("rule", BY_RANK, ids=lambda rule: rule.name)
@settings(deadline=None)
@given(group=groups(), scale=st.sampled_from([0.125, 2.0, 1024.0]))
def test_increasing_transforms_change_nothing(rule, group, scale):
    scores, seeds, keep = group
    finite = np.isfinite(scores)
    if finite.sum() < keep:
        return
    transformed = scores.copy()
    transformed[finite] = scale * np.exp(np.unique(scores[finite], return_inverse=True)[1] / 8)
    assert np.array_equal(rule.select(scores, keep, seeds), rule.select(transformed, keep, seeds))


@settings(deadline=None)
@given(group=groups())
def test_best_worst_takes_exactly_the_two_ends(group):
    scores, seeds, keep = group
    finite = np.sort(scores[np.isfinite(scores)])[::-1]
    if len(finite) < keep:
        return
    chosen = scores[BestWorst().select(scores, keep, seeds)]
    worst = keep // 2
    assert chosen[: keep - worst].tolist() == finite[: keep - worst].tolist()
    assert chosen[keep - worst :].tolist() == finite[len(finite) - worst :].tolist()


@pytest.mark.parametrize(
    ("scores", "keep"),
    [(np.zeros(24), 24), (np.eye(1, 24)[0], 24), (np.arange(96) % 24 == 0, 24), (np.arange(24) < 4, 24)],
    ids=["constant", "one success", "4 of 96", "4 of 24"],
)
def test_tied_rewards_still_give_24_seeds(scores, keep):
    seeds = np.arange(len(scores), dtype=np.uint64) * np.uint64(7919)
    assert len(set(BestWorst().select(scores.astype(np.float64), keep, seeds).tolist())) == 24


def test_an_odd_one_goes_to_the_best():
    scores = np.arange(10.0)
    assert BestWorst().select(scores, 3, np.arange(10, dtype=np.uint64)).tolist() == [9, 8, 0]


def test_best_worst_spreads_the_kept_as_order_statistics_say():
    # T15 of the objectives research: pooled std of best 12 + worst 12 of 96 Gaussian rewards.
    rng = np.random.default_rng(1)
    seeds = np.arange(96, dtype=np.uint64)
    rewards = rng.standard_normal((4000, 96))
    kept = np.stack([row[BestWorst().select(row, 24, seeds)] for row in rewards])
    assert kept.std() == pytest.approx(1.687, abs=0.01)
    assert kept[:, :12].mean() - kept[:, 12:].mean() == pytest.approx(3.25, abs=0.02)


def test_random_keep_does_not_look_at_scores():
    rng = np.random.default_rng(2)
    seeds = rng.integers(0, 2**63, 96).astype(np.uint64)
    picks = {frozenset(RandomKeep().select(rng.standard_normal(96), 24, seeds).tolist()) for _ in range(20)}
    assert len(picks) == 1


@settings(deadline=None)
@given(group=groups(), scale=st.sampled_from([-4.0, 0.25, 8.0]), shift=st.sampled_from([0.0, 64.0]))
def test_mean_deviation_keeps_the_farthest_whatever_side_and_unit(group, scale, shift):
    scores, seeds, keep = group
    finite = np.isfinite(scores)
    scores = np.where(finite, np.round(scores), scores)  # so that changing the unit loses no digit
    if finite.sum() < keep:
        return
    chosen = MeanDeviation().select(scores, keep, seeds)
    far = np.abs(scores - scores[finite].mean())
    left = np.setdiff1d(np.flatnonzero(finite), chosen)
    slack = 1e-9 * max(1.0, np.abs(scores[finite]).max())
    assert len(left) == 0 or far[chosen].min() >= far[left].max() - slack
    if np.ptp(scores[finite]) == 0 or len(np.unique(np.round(far[finite], 6))) == finite.sum():
        changed = MeanDeviation().select(np.where(finite, scores * scale + shift, scores), keep, seeds)
        assert set(changed.tolist()) == set(chosen.tolist())


def test_mean_deviation_follows_the_long_end_of_a_group():
    scores, seeds = np.array([0.0, 0, 0, 0, 1, 1, 1, 8, 9]), np.arange(9, dtype=np.uint64)
    # The mean is 2.2: zeros are 2.2 away, ones 1.2.
    assert MeanDeviation().select(scores, 2, seeds).tolist() == [8, 7]
    assert set(scores[MeanDeviation().select(scores, 6, seeds)].tolist()) == {9, 8, 0}
    assert scores[BestWorst().select(scores, 2, seeds)].tolist() == [9, 0]


@settings(deadline=None)
@given(group=groups())
def test_extremes_random_keeps_half_from_the_ends_and_half_by_lot(group):
    scores, seeds, keep = group
    if np.isfinite(scores).sum() < keep:
        return
    chosen = set(ExtremesRandom().select(scores, keep, seeds).tolist())
    ends = set(BestWorst().select(scores, keep - keep // 2, seeds).tolist())
    assert ends <= chosen
    # What is left is drawn as by random_keep among the others: scores have no say in it.
    others = np.array(sorted(set(np.flatnonzero(np.isfinite(scores))) - ends), dtype=np.int64)
    if keep // 2:
        drawn = RandomKeep().select(np.zeros(len(others)), keep // 2, seeds[others])
        assert chosen - ends == set(others[drawn].tolist())


def test_rules_are_found_by_name():
    assert list(list_extensions("selection rule")) == ["best_worst", "extremes_random", "mean_deviation", "random_keep"]
    assert isinstance(build("selection rule", "best_worst", {}), BestWorst)
