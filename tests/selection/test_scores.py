import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solrl_tasks.selection.scores import measure_scale, weighted_scores


def test_rewards_add_up_by_weight_in_float64():
    rewards = {"a": np.array([[1.0, 2.0]], dtype=np.float32), "b": np.array([[10.0, 20.0]], dtype=np.float32)}
    scores = weighted_scores(rewards, {"a": 0.5, "b": -1.0})
    assert scores.dtype == np.float64
    assert scores.tolist() == [[-9.5, -19.0]]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_an_invalid_reward_makes_the_score_invalid_unless_its_weight_is_zero(bad):
    rewards = {"a": np.array([1.0, bad]), "b": np.array([3.0, 4.0])}
    assert np.array_equal(weighted_scores(rewards, {"a": 1.0, "b": 1.0}), [4.0, np.nan], equal_nan=True)
    assert weighted_scores(rewards, {"a": 0.0, "b": 1.0}).tolist() == [3.0, 4.0]


@settings(deadline=None)
@given(st.permutations(["a", "b", "c", "d"]), st.integers(0, 2**32 - 1))
def test_the_order_of_names_does_not_change_a_bit(order, seed):
    rng = np.random.default_rng(seed)
    rewards = {name: rng.standard_normal(5) for name in "abcd"}
    weights = {name: float(rng.standard_normal()) for name in "abcd"}
    shuffled = weighted_scores({n: rewards[n] for n in order}, {n: weights[n] for n in order})
    assert np.array_equal(weighted_scores(rewards, weights), shuffled)


def test_more_candidates_do_not_change_the_scores_of_the_first():
    rng = np.random.default_rng(0)
    rewards = {name: rng.standard_normal((3, 192)) for name in "abc"}
    weights = {"a": 0.3, "b": 0.7, "c": 0.1}
    half = weighted_scores({name: values[:, :96] for name, values in rewards.items()}, weights)
    assert np.array_equal(half, weighted_scores(rewards, weights)[:, :96])


@pytest.mark.parametrize(
    ("weights", "message"),
    [({"a": 1.0}, "same names"), ({"a": 0.0, "b": 0.0}, "at least one reward must count")],
)
def test_weights_that_make_no_score_are_refused(weights, message):
    with pytest.raises(ValueError, match=message):
        weighted_scores({"a": np.zeros(2), "b": np.zeros(2)}, weights)


def test_rewards_of_different_shapes_are_refused():
    with pytest.raises(ValueError, match="one shape"):
        weighted_scores({"a": np.zeros(2), "b": np.zeros(3)}, {"a": 1.0, "b": 1.0})


FINITE = st.floats(-1e3, 1e3, width=32)


@st.composite
def reward_arrays(draw):
    """Two or three prompts with four candidates, some of them invalid."""
    rows = draw(st.integers(2, 3))
    values = draw(st.lists(st.lists(FINITE, min_size=4, max_size=4), min_size=rows, max_size=rows))
    invalid = draw(st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=rows, max_size=rows))
    return np.where(invalid, np.nan, np.array(values, dtype=np.float32))


@pytest.mark.parametrize("over", ["group", "pool"])
@settings(deadline=None)
@given(reward_arrays())
def test_a_scale_gives_finite_rewards_mean_0_and_spread_1_or_nothing_to_say(over, rewards):
    scaled = measure_scale(rewards, over).apply(rewards)
    assert np.array_equal(np.isfinite(scaled), np.isfinite(rewards))
    for raw, after in zip(rewards, scaled, strict=True) if over == "group" else [(rewards, scaled)]:
        raw, after = raw[np.isfinite(raw)], after[np.isfinite(after)]
        if len(raw) and raw.min() == raw.max():
            assert (after == 0).all()
        elif len(raw):
            assert after.mean() == pytest.approx(0, abs=1e-6)
            assert after.std() == pytest.approx(1)


@pytest.mark.parametrize("over", ["group", "pool"])
def test_units_do_not_matter_on_a_common_scale(over):
    rng = np.random.default_rng(0)
    rewards = {"a": rng.standard_normal((3, 16)), "b": rng.standard_normal((3, 16))}
    other = {"a": rewards["a"], "b": 1000 * rewards["b"] - 7}
    weights = {"a": 1.0, "b": 0.5}

    def scored(values):
        return weighted_scores(values, weights, {name: measure_scale(array, over) for name, array in values.items()})

    assert scored(other) == pytest.approx(scored(rewards))
    assert not np.allclose(weighted_scores(other, weights), weighted_scores(rewards, weights))


def test_equal_rewards_say_nothing_whatever_rounding_makes_of_their_spread():
    rewards = np.full((1, 7), np.float32(0.1))
    assert measure_scale(rewards, "group").apply(rewards).tolist() == [[0.0] * 7]
    assert np.isnan(measure_scale(np.full((2, 2), np.nan), "group").apply(np.full((2, 2), np.nan))).all()


def test_a_group_is_measured_by_itself_and_a_pool_as_one():
    rewards = np.array([[0.0, 2.0], [10.0, 30.0]])
    assert measure_scale(rewards, "group").apply(rewards).tolist() == [[-1, 1], [-1, 1]]
    scale = measure_scale(rewards, "pool")
    assert scale.centre.tolist() == [10.5] * 2
    assert scale.spread == pytest.approx([rewards.std()] * 2)
    assert scale.take([1]).apply(rewards[1:]) == pytest.approx((rewards[1:] - 10.5) / rewards.std())


def test_the_kept_are_put_on_the_scale_of_the_explored():
    explored, kept = np.array([[0.0, 1.0, 2.0, 3.0]]), np.array([[30.0, 0.0]])
    scale = measure_scale(explored, "group")
    assert weighted_scores({"a": kept}, {"a": 2.0}, {"a": scale}) == pytest.approx(2 * (kept - 1.5) / explored.std())
