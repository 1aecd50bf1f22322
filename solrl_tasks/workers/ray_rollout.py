"""Blocks spread over actors: whoever is idle takes the next one."""

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from solrl_tasks.workers.jobs import RolloutJob, Work
from solrl_tasks.workers.pipeline import Results
from solrl_tasks.workers.ray_cluster import TICK, fetched
from solrl_tasks.workers.ray_crew import Actor, Crew
from solrl_tasks.workers.ray_limits import Stopwatch, described, kind_of
from solrl_tasks.workers.ray_parcels import Parcels
from solrl_tasks.workers.transport import pack_work, unpack_result

CLOSING_SECONDS: Final = 5.0
"""For which actors are waited for when a rollout ends before its blocks do."""


class Waiting:
    """Blocks that nobody has yet, in order; those that come back go first.

    An error of the source is kept until all blocks before it are done.
    """

    def __init__(self, source: Iterable[Work]) -> None:
        self._source: Iterator[Work] | None = iter(source)
        self._queue: deque[int] = deque()
        self._count = 0
        self.works: dict[int, Work] = {}
        self.error: Exception | None = None

    def fill(self, wanted: int) -> int:
        """Ask for blocks until so many wait; how many do."""
        while self._source is not None and len(self._queue) < wanted:
            try:
                work = next(self._source, None)
            except Exception as error:
                self.error, work = error, None
            if work is None:
                self._source = None
                break
            self.works[self._count] = work
            self._queue.append(self._count)
            self._count += 1
        return len(self._queue)

    def take(self) -> int:
        """The number of the next."""
        return self._queue.popleft()

    def give_back(self, numbers: Iterable[int]) -> None:
        """Blocks that are to be done again."""
        self._queue.extendleft(sorted(numbers, reverse=True))

    def drop(self) -> None:
        """Nothing more is asked for."""
        self._queue.clear()
        self._source = None


@dataclass
class Spread:
    """One rollout of a crew.

    Attributes:
        number: of the rollout, new for each.
        asked: the job.
        job: a reference to it, its policy left out.
        parcels: in which its policy goes to actors.
        flight: who is at which block, by the reference to its result.
        opened: who was given any.
        watches: since when each that has any is at the first of its blocks, by its name.
    """

    crew: Crew
    number: int
    asked: RolloutJob
    job: Any
    parcels: Parcels
    waiting: Waiting
    flight: dict[Any, tuple[Actor, int]] = field(default_factory=dict)
    opened: dict[str, Actor] = field(default_factory=dict)
    watches: dict[str, Stopwatch] = field(default_factory=dict)

    def results(self) -> Results:
        """See ``Worker.rollout``."""
        import ray

        try:
            self._deal()
            while self.flight or (self.crew.coming and self._left()):
                ready = self.crew.cluster.wait([*self.flight, *self.crew.coming], TICK)
                self.crew.settle()
                for ref in ready:
                    if ref not in self.flight:
                        continue
                    actor, number = self.flight.pop(ref)
                    try:
                        packed = fetched(ray.get, ref)
                    except ray.exceptions.RayActorError as error:
                        self._lost(actor, number, error)
                        continue
                    except Exception as error:
                        self._stop(error)
                        self._turn(actor)
                        continue
                    self._learn(actor, number)
                    # Before the result is looked at: its actor is idle.
                    self._deal()
                    yield unpack_result(packed, self.waiting.works.pop(number), actor.name)
                self._watch()
                self._deal()
        finally:
            self._close()
        if self.waiting.error is not None:
            raise self.waiting.error

    def _left(self) -> bool:
        return self.waiting.fill(1) > 0

    def _deal(self) -> None:
        """Give every idle actor a block, and each as many as keep it busy while there are enough for all."""
        if not self._left():
            return
        most = self.crew.any().facts["in_hand"]
        for depth in range(1, most + 1):
            for actor in self.crew.actors:
                busy = sum(holder is actor for holder, _ in self.flight.values())
                # Towards the end a block that waits behind another could be begun elsewhere.
                enough = 1 if depth == 1 else len(self.crew.actors)
                if busy < depth and self.waiting.fill(enough) >= enough:
                    self._give(actor)

    def _give(self, actor: Actor) -> None:
        number = self.waiting.take()
        work, latents = pack_work(self.waiting.works[number], number)
        self.opened[actor.name] = actor
        self.watches.setdefault(actor.name, Stopwatch())
        digest, lora = self.parcels.of_lora(self.asked.lora, actor.holds)
        ref = actor.handle.block.remote(self.number, self.job, digest, lora, work, latents)
        self.flight[ref] = actor, number

    def _lost(self, actor: Actor, number: int, error: Exception) -> None:
        theirs = [ref for ref, (holder, _) in self.flight.items() if holder is actor]
        self.waiting.give_back([number, *(self.flight.pop(ref)[1] for ref in theirs)])
        self.opened.pop(actor.name, None)
        self.watches.pop(actor.name, None)
        self.crew.died(actor, error)

    def _learn(self, actor: Actor, number: int) -> None:
        kind = kind_of(self.asked, self.waiting.works[number])
        # The first of an actor is no measure of the next.
        if kind in actor.done:
            self.crew.limits.learn(kind, self.watches[actor.name].elapsed)
        actor.done.add(kind)
        self._turn(actor)

    def _turn(self, actor: Actor) -> None:
        """An actor has done one of its blocks, and is at the next if it has one."""
        del self.watches[actor.name]
        if any(holder is actor for holder, _ in self.flight.values()):
            self.watches[actor.name] = Stopwatch()

    def _watch(self) -> None:
        """Give up actors that are at a block for longer than they may be. What has arrived is seen to before."""
        first: dict[str, tuple[Any, Actor, int]] = {}
        for ref, (actor, number) in self.flight.items():
            first.setdefault(actor.name, (ref, actor, number))
        for name, (ref, actor, number) in first.items():
            work, watch = self.waiting.works[number], self.watches[name]
            kind = kind_of(self.asked, work)
            limit = self.crew.limits.of(kind, kind not in actor.done)
            if limit is not None and watch.look() > limit:
                del self.flight[ref]
                self._lost(actor, number, self.crew.hung(actor, described(work), watch, limit))

    def _stop(self, error: Exception) -> None:
        """Blocks that are begun are finished; the first error is raised after them."""
        self.waiting.error = self.waiting.error or error
        self.waiting.drop()

    def _close(self) -> None:
        import ray

        refs = [actor.handle.close.remote(self.number) for actor in self.opened.values() if actor in self.crew.actors]
        if refs:
            ray.wait(refs, num_returns=len(refs), timeout=CLOSING_SECONDS)
