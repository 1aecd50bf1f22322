"""What a speed-up is made of: a chain of factors whose product is the whole, and an honest word on what is absent."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True)
class Milestone:
    """A state of the system on the way from the slow one to the fast one.

    Attributes:
        name: the state.
        cause: what it changed against the state before; of no account in the first.
        seconds: what it takes; None where it was not measured.
    """

    name: str
    cause: str
    seconds: float | None

    def __post_init__(self) -> None:
        if self.seconds is not None and not (math.isfinite(self.seconds) and self.seconds > 0):
            raise ValueError(f"milestone {self.name!r} takes {self.seconds} seconds: it must take some")


@dataclass(frozen=True)
class Link:
    """One factor of the chain.

    Attributes:
        causes: what changed; several where a state between them was not measured, so that they cannot be told apart.
        before, after: names of the states.
        factor: how many times faster; below 1 is slower.
    """

    causes: tuple[str, ...]
    before: str
    after: str
    factor: float


@dataclass(frozen=True)
class Chain:
    """The factors from the first state that was measured to the last one.

    Attributes:
        absent: names of states that were not measured.
        lost: causes at the ends of the chain that nothing measured speaks of.
    """

    links: tuple[Link, ...]
    absent: tuple[str, ...]
    lost: tuple[str, ...]

    @property
    def total(self) -> float:
        """The product of all factors."""
        return math.prod(link.factor for link in self.links)

    def shares(self) -> tuple[float, ...]:
        """Each link's part of ln(total), in the order of links; they sum to 1. NaN where the total is 1."""
        whole = math.log(self.total)
        return tuple(math.log(link.factor) / whole if whole else math.nan for link in self.links)


def make_chain(milestones: Sequence[Milestone]) -> Chain:
    """The chain of the milestones that were measured.

    The product telescopes to first seconds over last, whatever is absent between. A factor is what its cause adds to
    all those before it: in another order the same causes have other factors.

    Raises:
        ValueError: fewer than two were measured.
    """
    measured = [position for position, state in enumerate(milestones) if state.seconds is not None]
    if len(measured) < 2:
        missing = ", ".join(state.name for state in milestones if state.seconds is None)
        raise ValueError(f"a chain needs two states that were measured; {missing} were not")
    links = []
    for start, end in pairwise(measured):
        first, second = milestones[start], milestones[end]
        assert first.seconds is not None and second.seconds is not None
        causes = tuple(state.cause for state in milestones[start + 1 : end + 1])
        links.append(Link(causes, first.name, second.name, first.seconds / second.seconds))
    outside = [*milestones[1 : measured[0] + 1], *milestones[measured[-1] + 1 :]]
    return Chain(
        links=tuple(links),
        absent=tuple(state.name for state in milestones if state.seconds is None),
        lost=tuple(state.cause for state in outside),
    )
