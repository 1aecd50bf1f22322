import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solrl_tasks.selection.scores import weighted_scores


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
