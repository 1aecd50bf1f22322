import math

import pytest

from solrl_tasks.analysis.progress import crossing, first_reach, mean_curve, paired_curves, value_at

X, Y = [0, 8, 16, 24], [0.1, 0.3, 0.2, 0.5]


def test_first_reach_is_a_measured_place():
    assert [first_reach(X, Y, level) for level in (0.05, 0.3, 0.31, 0.5, 0.6)] == [0, 8, 24, 24, None]
    assert first_reach([], [], 0.0) is None
    assert first_reach(X, [math.nan, math.nan, 0.2, 0.1], 0.2) == 16


def test_a_crossing_lies_between_measurements():
    assert crossing(X, Y, 0.05) == 0 and crossing(X, Y, 0.3) == 8
    assert crossing(X, Y, 0.2) == pytest.approx(4)
    assert crossing(X, Y, 0.35) == pytest.approx(20)
    assert crossing(X, Y, 0.6) is None and crossing([], [], 0.1) is None


def test_a_value_between_measurements_and_none_outside():
    assert value_at(X, Y, 4) == pytest.approx(0.2) and value_at(X, Y, 24) == 0.5
    assert math.isnan(value_at(X, Y, 25)) and math.isnan(value_at(X, Y, -1)) and math.isnan(value_at([], [], 0))


def test_curves_are_averaged_and_paired_place_by_place():
    first, second = mean_curve([[1.0, 2.0], [3.0, 6.0]])
    assert (first.mean, second.mean, second.n) == (2, 4, 2) and second.stderr == pytest.approx(2)
    assert [one.mean for one in paired_curves([[1.0, 2.0], [3.0, 6.0]], [[0.0, 2.0], [1.0, 2.0]])] == [1.5, 2]
    with pytest.raises(ValueError):
        mean_curve([[1.0], [1.0, 2.0]])
