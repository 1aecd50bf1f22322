import numpy as np
import pytest

from solrl_tasks.selection.best_worst import BestWorst
from solrl_tasks.selection.groups import NoValidCandidateError, select_groups


def seeds_like(scores):
    return np.arange(scores.size, dtype=np.uint64).reshape(scores.shape)


def select(scores, keep=4):
    return select_groups(scores, seeds_like(scores), keep, BestWorst())


def scores_of(*rows):
    return np.array(rows, dtype=np.float64)


def test_each_group_stands_on_its_own():
    scores = np.random.default_rng(0).standard_normal((5, 12))
    whole = select(scores)
    assert whole.kept.all()
    assert not whole.reasons
    for row in range(5):
        alone = select_groups(scores[row : row + 1], seeds_like(scores)[row : row + 1], 4, BestWorst())
        assert np.array_equal(alone.indices[0], whole.indices[row])


def test_groups_that_teach_nothing_are_left_out_with_their_reason():
    nan = np.nan
    chosen = select(scores_of([1, 2, 3, 4, 5], [7, 7, 7, 7, nan], [1, 2, 3, nan, np.inf], [nan] * 5))
    assert chosen.kept.tolist() == [True, False, False, False]
    assert chosen.reasons == {1: "no_spread", 2: "few_finite", 3: "few_finite"}
    assert chosen.indices[0].tolist() == [4, 3, 1, 0]
    assert (chosen.indices[1:] == -1).all()
    assert chosen.counts == {"kept": 1, "few_finite": 2, "no_spread": 1, "invalid": 8}
    assert chosen.invalid.tolist() == [0, 1, 2, 5]


def test_exactly_enough_finite_candidates_are_all_kept():
    chosen = select(scores_of([3, np.nan, 1, 2, 0]))
    assert chosen.indices.tolist() == [[0, 3, 2, 4]]


def test_no_valid_candidate_is_an_error_that_counts():
    with pytest.raises(NoValidCandidateError, match=r"none of 10 candidates \(2 prompts x 5\)"):
        select(np.full((2, 5), np.nan))


def test_every_group_without_spread_is_not_an_error():
    assert select(np.ones((3, 6))).counts["no_spread"] == 3


@pytest.mark.parametrize("keep", [0, 6])
def test_a_keep_that_cannot_fit_is_refused(keep):
    with pytest.raises(ValueError, match=f"keep is {keep}, but must be 1 to 5"):
        select(np.zeros((1, 5)), keep)


def test_mismatched_shapes_are_refused():
    with pytest.raises(ValueError, match="must both be"):
        select_groups(np.zeros((2, 5)), np.zeros((2, 4), dtype=np.uint64), 2, BestWorst())
