"""Chains of factors."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from solrl_tasks.analysis.cost_split import Milestone, make_chain

seconds = st.floats(0.01, 1e4)


def milestones(*values):
    return [Milestone(f"state {i}", f"cause {i}", value) for i, value in enumerate(values)]


@given(st.lists(seconds | st.none(), min_size=2, max_size=7))
def test_the_product_is_the_total_whatever_is_absent(values):
    measured = [value for value in values if value is not None]
    states = milestones(*values)
    if len(measured) < 2:
        with pytest.raises(ValueError, match="two states"):
            make_chain(states)
        return
    chain = make_chain(states)
    assert chain.total == pytest.approx(measured[0] / measured[-1], rel=1e-9)
    assert len(chain.links) == len(measured) - 1
    assert len(chain.absent) == values.count(None)
    # Every cause stands once: in a link, or among what is lost at the ends.
    named = [cause for link in chain.links for cause in link.causes] + list(chain.lost)
    assert sorted(named) == [f"cause {i}" for i in range(1, len(values))]


def test_a_chain_by_hand():
    chain = make_chain(milestones(60, 30, 20, None, 10))
    assert [(link.causes, link.factor) for link in chain.links] == [
        (("cause 1",), 2),
        (("cause 2",), 1.5),
        (("cause 3", "cause 4"), 2),
    ]
    assert (chain.total, chain.absent, chain.lost) == (6, ("state 3",), ())
    assert sum(chain.shares()) == pytest.approx(1)
    assert chain.shares()[0] == pytest.approx(math.log(2) / math.log(6))


def test_what_is_absent_at_the_ends_is_lost():
    chain = make_chain(milestones(None, 30, 20, None))
    assert [link.causes for link in chain.links] == [("cause 2",)]
    assert chain.lost == ("cause 1", "cause 3")
    assert chain.absent == ("state 0", "state 3")


def test_nothing_gained_has_no_shares():
    assert all(math.isnan(share) for share in make_chain(milestones(5, 5)).shares())


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_times_must_be_times(value):
    with pytest.raises(ValueError, match="must take some"):
        Milestone("a", "b", value)
