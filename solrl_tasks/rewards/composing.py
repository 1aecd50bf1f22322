"""Objects found in a picture against those asked for, in the manner of GenEval (arXiv:2310.11513)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from solrl_tasks.rewards.asked import COLOURS, MOST, Asked, Item
from solrl_tasks.scenes.verdict import UNRELATED, Match, Relation, match, verdict

FLOOR: Final = 0.25
"""Objects are told from nothing down to this part of the threshold."""
OVERLAP: Final = 0.5
"""Boxes of one class that share more of their union are one object."""
NEAR: Final = 0.1
"""Centres that are nearer than this part of both extents are neither side of each other."""
DIRECTION: Final = 0.5
"""The least part of the distance that must lie in a relation's direction."""
_TIE: Final = 1e-6

Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Detection:
    """One object: class, confidence 0..1, box (left, top, right, bottom) in pixels, and how probable each colour is.

    ``colours`` is empty where nobody asked.
    """

    name: str
    score: float
    box: Box
    colours: Mapping[str, float] = field(default_factory=dict)

    def colour_likeness(self, colour: str) -> float:
        """How probable a colour is beside the most probable one: 1 where it is that one."""
        return self.colours[colour] / max(self.colours.values())


def distinct(detections: Sequence[Detection], least: float) -> list[Detection]:
    """The objects that boxes stand for, the surest first: at least so sure, one a place, at most 16 of a class.

    Args:
        detections: boxes as a detector gives them, many for one object.
        least: the least confidence.
    """
    kept: list[Detection] = []
    for found in sorted(detections, key=lambda d: -d.score):
        same = [other for other in kept if other.name == found.name]
        if found.score < least or len(same) == MOST:
            continue
        if all(_overlap(found.box, other.box) <= OVERLAP for other in same):
            kept.append(found)
    return kept


def judge(asked: Asked, found: Sequence[Detection], threshold: float) -> tuple[float, float]:
    """The partial and the strict score of a picture, both 0..1.

    Every object asked for is matched with one found. One that is found counts as far as its confidence reaches the
    threshold; where a colour is asked, half of that is for the object and half for the colour, by its probability
    beside the most probable colour. The partial score is the mean, times factors for objects that are too many and for
    relations (see ``solrl_tasks.scenes.verdict``). The strict score is 1 if each is found with the threshold's
    confidence and the colour asked for, no class has as many objects as it must not have, and every relation holds.

    Args:
        found: distinct objects of the classes asked for, with colours where a colour is asked.
        threshold: the confidence at which an object counts as found.
    """
    rows = [(index, item) for index, item in enumerate(asked.include) for _ in range(item.count)]
    fits = np.array([[_fit(item, thing, threshold) for thing in found] for _, item in rows])
    sure = np.array([[thing.score for thing in found] for _ in rows])
    # Between objects that would do as well, the surer one, as GenEval takes them.
    matched = match(fits, _TIE * sure)
    exact = all(_is_right(rows[row][1], found[column], threshold) for row, column in matched.chosen.items())
    surplus = sum(
        max(0, sum(thing.name == name and thing.score >= threshold for thing in found) - count + 1)
        for name, count in asked.exclude
    )
    relations = [
        _relation(item, _group(index, rows, matched, found), _group(item.target, rows, matched, found))
        for index, item in enumerate(asked.include)
        if item.relation is not None
    ]
    return verdict(matched, len(rows), exact, surplus, True, relations)


def _fit(item: Item, thing: Detection, threshold: float) -> float:
    if thing.name != item.name:
        return 0.0
    there = min(1.0, thing.score / threshold)
    return there if item.colour is None else there * (0.5 + 0.5 * thing.colour_likeness(item.colour))


def _is_right(item: Item, thing: Detection, threshold: float) -> bool:
    coloured = item.colour is None or max(COLOURS, key=lambda name: thing.colours[name]) == item.colour
    return thing.score >= threshold and coloured


def _group(
    index: int, rows: Sequence[tuple[int, Item]], matched: Match, found: Sequence[Detection]
) -> list[Detection] | None:
    """The objects that stand for one entry; None if one is missing."""
    own = [row for row, (entry, _) in enumerate(rows) if entry == index]
    if not all(row in matched.chosen for row in own):
        return None
    return [found[matched.chosen[row]] for row in own]


def _relation(item: Item, own: list[Detection] | None, others: list[Detection] | None) -> Relation:
    """How an entry's objects lie to another's: as the pair that lies worst."""
    if own is None or others is None:
        return UNRELATED
    assert item.relation is not None
    pairs = [direction(item.relation, thing.box, other.box) for thing in own for other in others]
    return min(pairs, key=lambda relation: (relation.holds, relation.factor))


def direction(relation: str, box: Box, other: Box) -> Relation:
    """How a box lies to another, both (left, top, right, bottom).

    The offset of the centres, less a tenth of both extents, in parts of the distance: it holds where more than half of
    the distance lies in the direction asked for.
    """
    first, second = _corners(box), _corners(other)
    offset = first.mean(axis=0) - second.mean(axis=0)
    extent = np.ptp(first, axis=0) + np.ptp(second, axis=0)
    clear = np.maximum(np.abs(offset) - NEAR * extent, 0.0) * np.sign(offset)
    distance = float(np.linalg.norm(offset))
    dx, dy = (float(part) / distance if distance > 0 else 0.0 for part in clear)
    ahead = {"left of": -dx, "right of": dx, "above": -dy, "below": dy}[relation]
    return Relation(ahead, abs(dy if relation in ("left of", "right of") else dx), ahead > DIRECTION)


def _corners(box: Box) -> NDArray[np.float64]:
    return np.array(box, dtype=np.float64).reshape(2, 2)


def _overlap(box: Box, other: Box) -> float:
    """Intersection over union."""
    width = min(box[2], other[2]) - max(box[0], other[0])
    height = min(box[3], other[3]) - max(box[1], other[1])
    both = max(0.0, width) * max(0.0, height)
    union = _area(box) + _area(other) - both
    return both / union if union > 0 else 0.0


def _area(box: Box) -> float:
    return max(0.0, box[2] - box[0]) * max(0.0, box[3] - box[1])
