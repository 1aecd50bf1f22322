import math

import pytest

from solrl_tasks.analysis.estimates import Estimate
from solrl_tasks.studies.results.verdicts import at_least, direction, faster, parity


def estimate(mean, stderr=0.01, n=8):
    """Its 95 % interval reaches 2.36 standard errors."""
    return Estimate(mean=mean, stderr=stderr, n=n)


@pytest.mark.parametrize(
    ("published", "ours", "says"),
    [
        (0.01, 0.05, "agrees in direction"),
        (0.01, -0.05, "disagrees"),
        (0.01, 0.02, "not resolved"),
        (-0.01, -0.05, "agrees in direction"),
        (-0.01, 0.05, "disagrees"),
    ],
)
def test_directions_are_told_by_the_sign_of_the_whole_interval(published, ours, says):
    assert direction("a less b", published, estimate(ours), "reward").agreement == says


def test_a_single_pair_resolves_nothing():
    one = direction("a less b", 0.1, estimate(0.5, math.nan, 1), "reward")
    assert one.agreement == "not resolved"
    assert one.line == "a less b: published +0.1000; here 0.5 (n = 1), reward: **not resolved**."


def test_equality_takes_an_interval_within_the_margin():
    def said(mean, margin):
        return parity("a less b", "equal", estimate(mean), margin, "reward").agreement

    assert said(0.0, 0.03) == "agrees"
    assert said(0.0, 0.02) == "not resolved"
    assert said(0.05, 0.03) == "disagrees"
    # Resolved from 0, but smaller than what is taken for equal.
    assert said(0.03, 0.06) == "agrees"
    assert said(0.0, 0.0) == "not resolved"


def test_a_level_is_met_by_an_interval_that_begins_there():
    def said(mean):
        return at_least("rank correlation", 0.9, estimate(mean), "over prompts").agreement

    assert [said(mean) for mean in (0.95, 0.91, 0.8)] == ["agrees", "not resolved", "disagrees"]


def test_speed_ups_are_told_by_their_interval_and_only_where_noise_lets_them_be_known():
    def said(low, high, resolved=True):
        return faster("a over b", "2.4", (low + high) / 2, low, high, 8, resolved).agreement

    assert [said(1.1, 3), said(0.5, 0.9), said(0.9, 1.5)] == ["agrees in direction", "disagrees", "not resolved"]
    assert said(1.1, 3, False) == said(math.nan, math.nan) == said(0.0, 3) == "not resolved"


def test_lines_have_both_sides():
    line = direction("6 steps less 2", 0.0099, estimate(0.05), "reward at the end", "0.3686 against 0.3587").line
    assert line.startswith("6 steps less 2: published 0.3686 against 0.3587; here 0.05 (0.0264 to 0.0736, n = 8), ")
