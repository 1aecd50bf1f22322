"""How long actors may be at something before they count as hung."""

import time
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from statistics import median
from typing import Final, Literal

from solrl_tasks.workers.jobs import RolloutJob, Work
from solrl_tasks.workers.ray_cluster import WorkersError

Stall = float | Literal["auto", "never"]

TIMES: Final = 20.0
"""How much longer than the median of its like something may take."""
FLOOR: Final = 1800.0
"""Seconds that anything may take: a policy to be taken over, prompts to be encoded, a reward that is slow for once."""
FIRST: Final = 7200.0
"""Seconds that an actor's first of a kind may take: it reads weights, perhaps from a network, and compiles."""
FIRST_UPDATE: Final = 21600.0
"""Seconds that an update may take where none was finished yet: it is the longest thing that is asked for at once."""
_REMEMBERED: Final = 101
_GLANCE: Final = 10.0


class HungError(WorkersError):
    """An actor was at something for longer than it may be."""


@dataclass
class Limits:
    """The limits of a crew, by ``workers.stall`` and by what took how long so far.

    Attributes:
        stall: a number of seconds holds for everything; ``auto`` learns; ``never`` waits without end.
    """

    stall: Stall = "auto"
    _taken: dict[Hashable, deque[float]] = field(default_factory=dict)

    def learn(self, kind: Hashable, seconds: float) -> None:
        """Something of a kind was finished in so many seconds."""
        self._taken.setdefault(kind, deque(maxlen=_REMEMBERED)).append(seconds)

    def of(self, kind: Hashable, fresh: bool, size: float = 1.0, unknown: float = FIRST) -> float | None:
        """Seconds that something may take; None for any number.

        Args:
            fresh: whether who does it may have to load and compile for it.
            size: of this one, in the unit in which seconds are learnt.
            unknown: the limit where nothing of its kind was finished yet.
        """
        if self.stall == "never":
            return None
        if self.stall != "auto":
            return self.stall
        taken = self._taken.get(kind)
        if not taken:
            return unknown
        return max(TIMES * median(taken) * size, FIRST if fresh else FLOOR)

    def explained(self, limit: float) -> str:
        """A limit, and how to have another."""
        origin = "is auto" if self.stall == "auto" else f"is {self.stall}"
        return (
            f"the limit is {limit:.0f} s (workers.stall {origin}: set it to more seconds for work that is slow and not "
            "hung, or to never)"
        )


class Stopwatch:
    """Seconds since the start, in which somebody looked.

    Time in which the process of the run was stopped, or busy with something else, counts for no more than a glance:
    whoever answered meanwhile was not heard.
    """

    def __init__(self) -> None:
        self.begun = self._seen = time.monotonic()
        self.seconds = 0.0

    def look(self) -> float:
        """Seconds until now."""
        now = time.monotonic()
        self.seconds += min(now - self._seen, _GLANCE)
        self._seen = now
        return self.seconds

    @property
    def elapsed(self) -> float:
        """All seconds since the start, seen or not."""
        return time.monotonic() - self.begun


def kind_of(job: RolloutJob, work: Work) -> Hashable:
    """What blocks have in common that take about as long."""
    rewards = tuple(reward.model_dump_json() for reward in work.rewards)
    brought = work.latents is not None, work.images is not None
    features = tuple(feature.model_dump_json() for feature in work.features)
    shape = job.engine.model_dump_json(), job.sampler, job.steps, job.resolution, job.scored_at, job.chunk
    return shape, repr((job.guidance, job.noise)), rewards, features, brought


def described(work: Work) -> str:
    """A block, for people."""
    candidates = work.candidates
    which = f"{candidates[0]} to {candidates[-1]}" if len(candidates) > 1 else ", ".join(map(str, candidates))
    return f"a block (prompt {work.row}, candidates {which})"
