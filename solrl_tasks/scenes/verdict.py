"""What was asked against what was found: the scoring rules that every checker of composed pictures shares.

A checker says how well each thing found would do for each thing wanted; here things are matched, and two scores come
out. The partial one is the mean fit of the wanted things, times a factor for each way in which the whole is wrong; the
strict one is 1 only where nothing is wrong.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

SURPLUS = (1.0, 0.7, 0.4, 0.1)
"""Factor for 0, 1, 2, and 3 or more things too many."""
WRONG_SETTING = 0.5


@dataclass(frozen=True)
class Match:
    """Which thing found stands for which thing wanted.

    Attributes:
        chosen: index found, by index wanted; a wanted thing that nothing fits is left out.
        gain: the sum of the fits.
    """

    chosen: dict[int, int]
    gain: float


@dataclass(frozen=True)
class Relation:
    """How one thing lies to another that it should lie ahead of in a stated direction.

    Attributes:
        ahead: how far it does.
        aside: how far it lies to the side.
        holds: whether that counts as the relation.
    """

    ahead: float
    aside: float
    holds: bool

    @property
    def factor(self) -> float:
        """1/2 where it lies the wrong way, rising smoothly to 1."""
        lean = (self.ahead - 0.5 * self.aside) / (abs(self.ahead) + self.aside + 1e-6)
        return 0.5 + 0.5 / (1.0 + float(np.exp(-6.0 * lean)))


UNRELATED = Relation(0.0, 1.0, False)
"""What a relation is where one of its things is missing."""


def match(fits: NDArray[np.floating], ties: NDArray[np.floating] | None = None) -> Match:
    """The pairing with the greatest sum of fits; each thing stands for one at most, and a fit of 0 for none.

    Args:
        fits: [wanted, found], 0..1.
        ties: of the same shape, far smaller than differences of fits: decides between pairings that are as good.
    """
    chosen: dict[int, int] = {}
    gain = 0.0
    if fits.size:
        for row, column in zip(
            *linear_sum_assignment(fits if ties is None else fits + ties, maximize=True), strict=True
        ):
            if fits[row, column] > 0:
                chosen[int(row)] = int(column)
                gain += float(fits[row, column])
    return Match(chosen, gain)


def verdict(
    found: Match, wanted: int, exact: bool, surplus: int, setting_right: bool, relations: Sequence[Relation] = ()
) -> tuple[float, float]:
    """The partial and the strict score, both 0..1.

    Args:
        found: the match.
        wanted: how many things were asked for.
        exact: whether each matched thing is just what was asked for.
        surplus: how many things there are too many.
        setting_right: whether all around the things is as asked.
        relations: those asked for, as they were found.
    """
    factor = SURPLUS[min(surplus, len(SURPLUS) - 1)]
    partial = found.gain / wanted * factor * (1.0 if setting_right else WRONG_SETTING)
    for relation in relations:
        partial *= relation.factor
    complete = len(found.chosen) == wanted and surplus == 0 and setting_right
    return partial, float(complete and exact and all(relation.holds for relation in relations))
