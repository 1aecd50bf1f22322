"""The actors of a run: hired, watched, and replaced when they die."""

import itertools
import os
import signal
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch

from solrl_tasks.config.recipe import ModelSpec, WorkersSpec
from solrl_tasks.store.records import decisive_differences, differences
from solrl_tasks.workers.ray_cluster import TICK, Cluster, WorkersError, fetched
from solrl_tasks.workers.ray_limits import HungError, Limits, Stopwatch

Facts = dict[str, Any]
TELL_SECONDS: Final = 60.0
"""Between two words about actors that have not come."""
LOGS: Final = "/tmp/ray/session_latest/logs"
"""Of Ray's own processes and of actors, on the machine of each."""
_PASSED: Final = ("HF_HUB_OFFLINE", "HF_HOME", "HF_HUB_CACHE", "SOLRL_HOME", "TRITON_INTERPRET", "OMP_NUM_THREADS")
"""Variables that actors on other machines need as well. None of them is a secret: Ray may show them."""


@dataclass(eq=False)
class Actor:
    """An actor as the flow process sees it.

    Attributes:
        handle: Ray's.
        name: for people, the same for as long as it lives.
        facts: see ``DeviceActor.facts``; empty until it has answered once.
        done: kinds of work of which it has done any, so that it has loaded and compiled for them.
        holds: digests of the policy that it came to in the last update, and of that policy's adapters.
    """

    handle: Any
    name: str
    facts: Facts = field(default_factory=dict)
    done: set[Hashable] = field(default_factory=set)
    holds: frozenset[str] = frozenset()

    @property
    def where(self) -> str:
        """Name, machine and process."""
        return f"{self.name} (process {self.facts['pid']} on {self.facts['node']})" if self.facts else self.name


class Crew:
    """One actor a device; all are alike, so that it does not matter who does what.

    Attributes:
        actors: those that can be given work.
        generation: counts changes among them.
        seats: of the last update's group: the generation that it was made of, and where its ranks find each other.
        group: number of that group.
        limits: how long they may be at something.
    """

    def __init__(
        self, cluster: Cluster, spec: WorkersSpec, model: ModelSpec, cache: Path | None, tell: Callable[[str], None]
    ) -> None:
        self.cluster = cluster
        self.actors: list[Actor] = []
        self.generation = 0
        self.seats: tuple[int, str, int] | None = None
        self.group = 0
        self.limits = Limits(spec.stall)
        self._spec = spec
        self.tell = tell
        self._numbers = itertools.count()
        self._coming: dict[Any, tuple[Actor, float]] = {}
        self._replaced = 0
        self._last_death = ""
        environment = {name: os.environ[name] for name in _PASSED if name in os.environ}
        self._arguments = (model, None if cache is None else str(cache), torch.get_num_threads(), environment)
        self._gpus = int(cluster.resources().get("GPU", 0))
        self.size = spec.actors if spec.actors != "auto" else max(1, self._gpus)

    @property
    def coming(self) -> list[Any]:
        """References that are there as soon as a hired actor can be given work."""
        return list(self._coming)

    @property
    def facts(self) -> Facts:
        """What all actors have in common, and the first's own."""
        return self.any().facts

    def hire(self) -> None:
        """Begin: all actors, or none.

        Raises:
            WorkersError: the cluster does not have what they need, or they are not alike.
        """
        for _ in range(self.size):
            self._hire()
        began = told = time.monotonic()
        while self._coming:
            self.cluster.wait(self.coming)
            self.settle()
            now = time.monotonic()
            if not self._coming and len(self.actors) < self.size:
                raise WorkersError(f"an actor ended while it started: {self._last_death or 'nobody knows why'}")
            if self._coming and now - began > self._spec.patience:
                limit = f"within {self._spec.patience:.0f} s (workers.patience)"
                raise WorkersError(f"{self._shortage(limit)}: ask for fewer actors, or free the cluster")
            if self._coming and now - told > TELL_SECONDS:
                told = now
                self.tell(f"{self._shortage(f'after {now - began:.0f} s')}; waiting on")

    def settle(self) -> None:
        """Take in those who have come, and give up on those who were waited for long enough.

        Raises:
            WorkersError: one is not like the others.
        """
        import ray

        if not self._coming:
            return
        ready, _ = ray.wait(self.coming, num_returns=len(self._coming), timeout=0)
        for ref in ready:
            actor, _ = self._coming.pop(ref)
            try:
                actor.facts = fetched(ray.get, ref)
            except ray.exceptions.RayActorError as error:
                self._mourn(actor, reason(error))
            else:
                self._admit(actor)
        now = time.monotonic()
        for ref, (actor, since) in list(self._coming.items()):
            if self.actors and now - since > self._spec.patience:
                del self._coming[ref]
                self._dismiss(actor)
                self.tell(f"no place was found for {actor.name} in {self._spec.patience:.0f} s; {self._going_on()}")

    def any(self) -> Actor:
        """Some actor that can be given work; waits for one that is coming.

        Raises:
            WorkersError: there is none any more.
            ClusterLostError: nor a cluster.
        """
        until = time.monotonic() + self._spec.patience
        while not self.actors:
            if not self._coming or time.monotonic() > until:
                self.cluster.check_node()
                raise WorkersError(self._exhausted())
            self.cluster.wait(self.coming, TICK)
            self.settle()
        return self.actors[0]

    def everyone(self) -> list[Actor]:
        """All that can be given work, after those that are coming have come or were given up."""
        self.any()
        while self._coming:
            self.cluster.wait(self.coming, TICK)
            self.settle()
        self.any()
        return list(self.actors)

    def ask(self, question: Callable[[Actor], Any]) -> Any:
        """The answer of some actor; of another one, where that one dies over it.

        Args:
            question: calls a method of the actor, and returns the reference.
        """
        import ray

        while True:
            actor = self.any()
            try:
                return self.answer(actor, question(actor))
            except (ray.exceptions.RayActorError, HungError) as error:
                self.died(actor, error)

    def ask_all(self, question: Callable[[Actor], Any]) -> dict[str, Any]:
        """The answers of all by their names; those that die over it are left out, and replaced.

        Raises:
            WorkersError: all died.
        """
        import ray

        while True:
            asked = [(actor, question(actor)) for actor in self.everyone()]
            answers: dict[str, Any] = {}
            for actor, ref in asked:
                try:
                    answers[actor.name] = self.answer(actor, ref)
                except (ray.exceptions.RayActorError, HungError) as error:
                    self.died(actor, error)
            if answers:
                return answers

    def answer(self, actor: Actor, ref: Any, what: str = "a call") -> Any:
        """What an actor's reference comes to.

        Raises:
            Whatever the call raised where it ran; ``RayActorError`` where its actor died.
            HungError: it took longer than it may.
        """
        import ray

        watch = Stopwatch()
        while not self.cluster.wait([ref]):
            limit = self.limits.of("call", True)
            if limit is not None and watch.look() > limit:
                raise self.hung(actor, what, watch, limit)
        return fetched(ray.get, ref)

    def hung(self, actor: Actor, what: str, watch: Stopwatch, limit: float) -> HungError:
        """The reason for which an actor that does not come to an end is given up; its process is ended at once."""
        self.end(actor)
        return HungError(
            f"it hung: {what} was not finished in {watch.seconds:.0f} s, and {self.limits.explained(limit)}"
        )

    def died(self, actor: Actor, error: Exception) -> None:
        """An actor is gone, or to be gone: another is hired in its place, if there may be.

        Raises:
            ClusterLostError: it is the cluster that is gone.
        """
        if actor not in self.actors:
            return
        self.actors.remove(actor)
        self.generation += 1
        self.cluster.check_node()
        if self.cluster.reachable:
            # It may be alive all the same, and only out of reach.
            self._dismiss(actor)
        self._mourn(actor, reason(error))

    def leave(self) -> None:
        """Send everyone away; a cluster of the run's own ends with all that is on it."""
        if not self.cluster.local and self.cluster.reachable:
            for actor in [*self.actors, *(actor for actor, _ in self._coming.values())]:
                self._dismiss(actor)
        self.actors, self._coming = [], {}

    def _hire(self) -> None:
        import ray

        from solrl_tasks.workers.ray_actor import DeviceActor

        options = {"num_cpus": self._spec.cpus, "num_gpus": 1 if self._gpus else 0, "max_concurrency": 16}
        handle = ray.remote(DeviceActor).options(**options).remote(*self._arguments)
        actor = Actor(handle, f"actor-{next(self._numbers)}")
        self._coming[handle.facts.remote()] = actor, time.monotonic()

    def _admit(self, actor: Actor) -> None:
        if self.actors:
            first = self.actors[0]
            unlike = differences(_common(first.facts), _common(actor.facts))
            unlike += decisive_differences(first.facts["environment"], actor.facts["environment"])
            if unlike:
                raise WorkersError(
                    f"{actor.where} is not like {first.where}: {'; '.join(unlike)}. Results would depend on who did "
                    "what: let a run have devices of one kind, by a cluster or a work pool for each kind"
                )
        self.actors.append(actor)
        self.generation += 1

    def _mourn(self, actor: Actor, why: str) -> None:
        self.cluster.check_node()
        why = why.rstrip(".")
        self._last_death = f"{actor.where}: {why}"
        if self._replaced >= self._spec.replacements:
            self.tell(f"{actor.where} died: {why}. It is not replaced: workers.replacements is used up")
            return
        self._replaced += 1
        self.tell(f"{actor.where} died: {why}. It is replaced, and what it was at is done again")
        self._hire()

    @staticmethod
    def end(actor: Actor) -> None:
        """End a process that may not listen: Ray asks an actor to end itself."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        pid, node = actor.facts["pid"], actor.facts["node_id"]
        if node == ray.get_runtime_context().get_node_id():
            end_process(pid)
            return
        there = NodeAffinitySchedulingStrategy(node, soft=False)
        ray.remote(end_process).options(num_cpus=0, max_retries=0, scheduling_strategy=there).remote(pid)

    @staticmethod
    def _dismiss(actor: Actor) -> None:
        import ray

        ray.kill(actor.handle)

    def _going_on(self) -> str:
        return f"the run goes on with {len(self.actors)} of {self.size}"

    def _shortage(self, when: str) -> str:
        asked = f"{self._spec.cpus:g} CPUs" + (" and 1 GPU" if self._gpus else "")
        have = ", ".join(
            f"{value:g} {name}" for name, value in sorted(self.cluster.resources().items()) if _plain(name)
        )
        return (
            f"{len(self.actors)} of {self.size} actors (workers.actors), of {asked} each, came {when}. What Ray's "
            f"processes say is in {LOGS}. The cluster has {have or 'nothing'}, some of it perhaps in use"
        )

    def _exhausted(self) -> str:
        return (
            f"no actor is left: {self._replaced} were replaced (workers.replacements allows {self._spec.replacements}) "
            f"and the last died: {self._last_death}. What was finished is in the store: see to the cause, and start "
            "the run again with the same run id"
        )


def end_process(pid: int) -> None:
    """As the kernel does when memory is short: a process that is stopped, or hangs, ends by nothing less."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def reason(error: Exception) -> str:
    """Why an actor died, in Ray's words without its advice."""
    said = " ".join(str(error).split())
    if isinstance(error, WorkersError):
        return said
    for mark in ("Worker exit detail: ", "The actor is dead because "):
        if mark in said:
            said = said.split(mark)[1]
    return said.split(" Some common causes")[0].split(" There are some potential root causes")[0][:300]


def _common(facts: Facts) -> Facts:
    return {name: facts[name] for name in ("device", "hardware", "total_memory")}


def _plain(name: str) -> bool:
    return name in ("CPU", "GPU") or name.startswith("accelerator_type:")
