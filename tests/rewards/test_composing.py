import math

import pytest

from solrl_tasks.rewards.asked import COLOURS, Asked, Item
from solrl_tasks.rewards.composing import Detection, direction, distinct, judge

HERE, RIGHT, BELOW, FAR = (0, 0, 10, 10), (50, 0, 60, 10), (0, 50, 10, 60), (80, 80, 90, 90)
HIGH, LOW = 0.5 + 0.5 / (1 + math.exp(-6)), 0.5 + 0.5 / (1 + math.exp(6))
UNKNOWN = 0.5 + 0.5 / (1 + math.exp(3))


def hues(**given):
    rest = (1 - sum(given.values())) / (len(COLOURS) - len(given))
    return {name: given.get(name, rest) for name in COLOURS}


def see(name, score=0.9, box=HERE, **colours):
    return Detection(name, score, box, hues(**colours) if colours else {})


def scores(include, found, exclude=()):
    partial, strict = judge(Asked(tuple(include), tuple(exclude)), found, 0.4)
    return pytest.approx(partial, abs=1e-5), strict


def test_an_object_counts_as_far_as_its_confidence_reaches():
    dog = [Item("dog")]
    assert scores(dog, [see("dog")]) == (1.0, 1.0)
    assert scores(dog, [see("dog", 0.4)]) == (1.0, 1.0)
    assert scores(dog, [see("dog", 0.3)]) == (0.75, 0.0)
    assert scores(dog, [see("cat")]) == (0.0, 0.0)
    assert scores(dog, []) == (0.0, 0.0)


def test_every_object_of_a_number_counts():
    three = [Item("clock", 3)]
    clocks = [see("clock", box=box) for box in (HERE, RIGHT, BELOW, FAR)]
    assert scores(three, clocks[:3]) == (1.0, 1.0)
    assert scores(three, clocks[:2]) == (2 / 3, 0.0)
    # More are no mistake by themselves, as in GenEval; where they are excluded each costs.
    assert scores(three, clocks) == (1.0, 1.0)
    assert scores(three, clocks[:3], [("clock", 4)]) == (1.0, 1.0)
    assert scores(three, clocks, [("clock", 4)]) == (0.7, 0.0)
    assert scores([Item("clock", 2)], clocks, [("clock", 3)]) == (0.4, 0.0)
    # One that is not sure is not too many.
    assert scores(three, [*clocks[:3], see("clock", 0.3, FAR)], [("clock", 4)]) == (1.0, 1.0)


def test_a_class_that_must_not_be_there():
    assert scores([Item("dog")], [see("dog"), see("cat", box=FAR)], [("cat", 1)]) == (0.7, 0.0)
    assert scores([Item("dog")], [see("dog")], [("cat", 1)]) == (1.0, 1.0)


def test_half_of_a_coloured_object_is_its_colour():
    red = [Item("car", colour="red")]
    assert scores(red, [see("car", red=0.9)]) == (1.0, 1.0)
    # Half for the car, half for 0.2 / 0.5.
    assert scores(red, [see("car", red=0.2, blue=0.5)]) == (0.7, 0.0)
    assert scores(red, [see("car", 0.2, red=0.2, blue=0.5)]) == (0.35, 0.0)


def test_colours_are_bound_to_their_objects():
    pair = [Item("car", colour="red"), Item("bench", colour="blue")]
    right = [see("car", red=0.99), see("bench", box=RIGHT, blue=0.99)]
    swapped = [see("car", blue=0.99), see("bench", box=RIGHT, red=0.99)]
    assert scores(pair, right) == (1.0, 1.0)
    partial, strict = scores(pair, swapped)
    assert strict == 0
    assert 0.5 < partial.expected < 0.51


def test_two_objects_of_one_class_may_have_two_colours():
    pair = [Item("car", colour="red"), Item("car", colour="blue")]
    found = [see("car", 0.9, HERE, blue=1.0), see("car", 0.8, RIGHT, red=1.0)]
    assert scores(pair, found) == (1.0, 1.0)
    assert scores(pair, found[:1])[1] == 0


def test_the_object_of_the_right_colour_is_taken_among_others():
    found = [see("car", 0.95, HERE, blue=1.0), see("car", 0.5, RIGHT, red=1.0)]
    assert scores([Item("car", colour="red")], found) == (1.0, 1.0)


def test_a_position_holds_or_costs():
    asked = [Item("dog"), Item("cat", relation="right of", target=0)]
    assert scores(asked, [see("dog"), see("cat", box=RIGHT)]) == (HIGH, 1.0)
    assert scores(asked, [see("dog", box=RIGHT), see("cat")]) == (LOW, 0.0)
    partial, strict = scores(asked, [see("dog"), see("cat", box=BELOW)])
    assert (partial.expected, strict) == (pytest.approx(UNKNOWN, abs=1e-3), 0.0)
    assert scores(asked, [see("dog")]) == (0.5 * UNKNOWN, 0.0)


def test_every_object_of_an_entry_must_lie_so():
    asked = [Item("dog"), Item("cat", 2, relation="right of", target=0)]
    cats = [see("cat", box=RIGHT), see("cat", box=(60, 5, 70, 15))]
    assert scores(asked, [see("dog"), *cats])[1] == 1
    assert scores(asked, [see("dog"), cats[0], see("cat", box=BELOW)])[1] == 0


def test_between_equals_the_surer_object_is_taken():
    asked = [Item("dog"), Item("cat", relation="right of", target=0)]
    sure, unsure = see("cat", 0.9, RIGHT), see("cat", 0.5, BELOW)
    assert scores(asked, [see("dog"), sure, unsure])[1] == 1
    assert scores(asked, [see("dog"), see("cat", 0.5, RIGHT), see("cat", 0.9, BELOW)])[1] == 0


@pytest.mark.parametrize(
    ("box", "holding"),
    [
        (RIGHT, {"right of"}),
        ((-50, 0, -40, 10), {"left of"}),
        (BELOW, {"below"}),
        ((0, -50, 10, -40), {"above"}),
        # Centres 50 apart both ways, less a tenth of both extents: 48 of 70.7.
        ((50, 50, 60, 60), {"right of", "below"}),
        # 19 apart to the right, 2 of them within the margin: 17 of 26.9; 17 of 26.9 below.
        ((19, 19, 29, 29), {"right of", "below"}),
        # 40 to the right but only 20 down: 18 of 44.7 is less than half.
        ((40, 20, 50, 30), {"right of"}),
        # Nearer than the margin of 2.
        ((1, 1, 11, 11), set()),
        (HERE, set()),
    ],
)
def test_directions_are_those_of_geneval(box, holding):
    relations = {name: direction(name, box, HERE) for name in ("left of", "right of", "above", "below")}
    assert {name for name, relation in relations.items() if relation.holds} == holding
    opposite = {"left of": "right of", "right of": "left of", "above": "below", "below": "above"}
    assert all(direction(opposite[name], HERE, box).holds == relation.holds for name, relation in relations.items())


def test_a_direction_by_hand():
    relation = direction("right of", (40, 20, 50, 30), HERE)
    distance = math.hypot(40, 20)
    assert relation.ahead == pytest.approx((40 - 2) / distance)
    assert relation.aside == pytest.approx((20 - 2) / distance)


def test_boxes_of_one_object_are_one():
    boxes = [
        Detection("dog", 0.5, (0, 0, 10, 10)),
        Detection("dog", 0.9, (1, 0, 11, 10)),
        Detection("dog", 0.6, (5, 0, 15, 10)),
        Detection("cat", 0.4, (0, 0, 10, 10)),
        Detection("dog", 0.05, FAR),
    ]
    # 0.9 swallows 0.5 (9 of 11 shared); 6 of 14 shared with 0.6 are two dogs; a cat is no dog.
    assert [(d.name, d.score) for d in distinct(boxes, 0.1)] == [("dog", 0.9), ("dog", 0.6), ("cat", 0.4)]
    many = [Detection("bird", 0.5, (20 * i, 0, 20 * i + 10, 10)) for i in range(30)]
    assert len(distinct(many, 0.1)) == 16
