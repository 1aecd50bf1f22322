import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from solrl_tasks.scenes.verdict import SURPLUS, UNRELATED, Match, Relation, match, verdict


def best_sum(fits):
    rows, columns = fits.shape
    if rows > columns:
        return best_sum(fits.T)
    return max(sum(fits[r, c] for r, c in enumerate(order)) for order in itertools.permutations(range(columns), rows))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 4), st.integers(1, 4), st.randoms(use_true_random=False))
def test_the_match_is_the_best_of_all_pairings(rows, columns, random):
    fits = np.array([[random.choice([0.0, 0.25, 0.5, 1.0]) for _ in range(columns)] for _ in range(rows)])
    found = match(fits)
    assert found.gain == best_sum(fits)
    assert len(set(found.chosen.values())) == len(found.chosen)
    assert all(fits[row, column] > 0 for row, column in found.chosen.items())


def test_what_fits_nothing_is_matched_with_nothing():
    assert match(np.array([[0.0, 0.0], [0.0, 0.5]])) == Match({1: 1}, 0.5)
    assert match(np.zeros((2, 0))) == Match({}, 0.0)


def test_ties_go_to_the_preferred_without_changing_the_gain():
    fits = np.array([[1.0, 1.0, 0.5]])
    assert match(fits, np.array([[0.0, 1e-6, 2e-6]])) == Match({0: 1}, 1.0)
    assert match(fits, np.array([[1e-6, 0.0, 2e-6]])) == Match({0: 0}, 1.0)


def test_the_partial_score_by_hand():
    one_of_two = Match({0: 0}, 0.8)
    assert verdict(one_of_two, 2, True, 0, True) == (0.4, 0.0)
    assert verdict(one_of_two, 2, True, 1, True)[0] == pytest.approx(0.4 * 0.7)
    assert verdict(one_of_two, 2, True, 2, False)[0] == pytest.approx(0.4 * 0.4 * 0.5)
    assert verdict(one_of_two, 2, True, 9, True)[0] == pytest.approx(0.4 * SURPLUS[-1])
    assert verdict(Match({}, 0.0), 1, True, 0, True) == (0.0, 0.0)
    # A relation straight ahead: lean is 1; to the side alone: -1/2.
    ahead, aside = 0.5 + 0.5 / (1 + math.exp(-6)), 0.5 + 0.5 / (1 + math.exp(3))
    both = Match({0: 1, 1: 0}, 2.0)
    assert verdict(both, 2, True, 0, True, [Relation(1.0, 0.0, True)])[0] == pytest.approx(ahead, abs=1e-6)
    assert verdict(both, 2, True, 0, True, [UNRELATED] * 2)[0] == pytest.approx(aside**2, abs=1e-5)


def test_a_relation_counts_more_the_better_it_holds():
    factors = [Relation(ahead, 0.3, True).factor for ahead in (-1.0, -0.2, 0.0, 0.2, 1.0)]
    assert factors == sorted(factors)
    assert 0.5 < factors[0] < 0.51
    assert 0.9 < factors[-1] < 1


def test_the_strict_score_needs_everything():
    both, holds = Match({0: 0, 1: 1}, 2.0), Relation(1.0, 0.0, True)
    assert verdict(both, 2, True, 0, True, [holds])[1] == 1
    assert verdict(Match({0: 0}, 1.0), 2, True, 0, True, [holds])[1] == 0
    assert verdict(both, 2, False, 0, True, [holds])[1] == 0
    assert verdict(both, 2, True, 1, True, [holds])[1] == 0
    assert verdict(both, 2, True, 0, False, [holds])[1] == 0
    assert verdict(both, 2, True, 0, True, [holds, Relation(1.0, 0.0, False)])[1] == 0
