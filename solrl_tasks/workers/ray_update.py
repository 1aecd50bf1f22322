"""An update by all actors of a crew together, from the beginning again where one of them dies over it."""

from typing import Any, Final

from solrl_tasks.workers.data_parallel import Seat
from solrl_tasks.workers.jobs import TrainResult
from solrl_tasks.workers.ray_actor import Trained
from solrl_tasks.workers.ray_cluster import WorkersError, fetched
from solrl_tasks.workers.ray_crew import Actor, Crew
from solrl_tasks.workers.ray_limits import FIRST_UPDATE, HungError, Stopwatch
from solrl_tasks.workers.ray_parcels import Parcels
from solrl_tasks.workers.state import PolicyState
from solrl_tasks.workers.tally import Tally
from solrl_tasks.workers.transport import pack_state, unpack_state

LEARN_SECONDS: Final = 2.0
ABANDON_SECONDS: Final = 30.0
"""After which an actor that waits for a dead one is ended."""


SIGN_SECONDS: Final = 15.0
"""For which the actors of an update that hangs are asked how far they are."""
HANGS: Final = 3
"""After which an update is not begun again."""
_KIND: Final = "update"


def train_together(crew: Crew, samples: int, job: Any, policy: PolicyState) -> tuple[PolicyState, TrainResult]:
    """One update.

    Args:
        samples: of the job.
        job: a reference to its packed form.

    Raises:
        TrainingError, DeviceMemoryError: as ``Device.train``.
        WorkersError: no actor is left, the update hung again and again, or they do not agree on the policy.
    """
    hangs: list[str] = []
    parcels = Parcels()
    while True:
        actors = crew.everyone()
        # Seconds of one actor for one sample: the next update may have more or fewer of both.
        share, watch = samples / len(actors), Stopwatch()
        try:
            parts = _attempt(crew, actors, share, job, policy, parcels)
        except HungError as error:
            hangs.append(str(error))
            if len(hangs) >= HANGS:
                raise _hopeless(hangs) from None
            continue
        if parts is not None:
            if all(_KIND in actor.done for actor in actors):
                crew.limits.learn(_KIND, watch.elapsed / share)
            for actor in actors:
                actor.done.add(_KIND)
            state, result = _joined(actors, parts)
            for actor, part in zip(actors, parts, strict=True):
                actor.holds = frozenset({part.digest, *part.roles})
            return state, result


def _attempt(
    crew: Crew, actors: list[Actor], share: float, job: Any, policy: PolicyState, parcels: Parcels
) -> list[Trained] | None:
    """What each actor made of it; None where one died.

    Raises:
        HungError: it took longer than it may; who was at fault, as far as it can be known, is replaced.
    """
    import ray

    try:
        seats = _seats(crew, actors)
    except (ray.exceptions.RayActorError, HungError) as error:
        crew.died(actors[0], error)
        return None
    flight: dict[Any, Actor] = {}
    for actor, seat in zip(actors, seats, strict=True):
        parcel = parcels.of(policy.digest, lambda: pack_state(policy), actor.holds)
        # Where it breaks off nobody knows which policy each has come to.
        actor.holds = frozenset()
        flight[actor.handle.train.remote(job, policy.digest, parcel, seat)] = actor
    parts: dict[str, Trained] = {}
    watch, fresh = Stopwatch(), any(_KIND not in actor.done for actor in actors)
    while flight:
        ready = crew.cluster.wait(list(flight))
        limit = crew.limits.of(_KIND, fresh, share, FIRST_UPDATE)
        if not ready and limit is not None and watch.look() > limit:
            raise _hung(crew, flight, watch, limit)
        for ref in ready:
            actor = flight.pop(ref)
            try:
                parts[actor.name] = fetched(ray.get, ref)
            except ray.exceptions.RayActorError as error:
                crew.died(actor, error)
                _abandon(crew, flight)
                return None
            except Exception as error:
                if _abandon(crew, flight):
                    # Those who waited for a dead one may be the first to say so.
                    return None
                raise error from None
    return [parts[actor.name] for actor in actors]


def _seats(crew: Crew, actors: list[Actor]) -> list[Seat | None]:
    if len(actors) == 1:
        return [None]
    local = len({actor.facts["node_id"] for actor in actors}) == 1
    if crew.seats is None or crew.seats[0] != crew.generation:
        first = actors[0].handle
        host, port = crew.answer(actors[0], first.begin_group.remote(len(actors), local), "the beginning of an update")
        crew.seats = crew.generation, host, port
        crew.group += 1
    _, host, port = crew.seats
    return [Seat(crew.group, rank, len(actors), host, port) for rank in range(len(actors))]


def _hung(crew: Crew, flight: dict[Any, Actor], watch: Stopwatch, limit: float) -> HungError:
    """Break an update off that hangs: all wait for one another, so whoever is at fault has to be found first."""
    met, missing = _progress(list(flight.values()))
    faulty = silent_or_behind(met, missing) if len(flight) > 1 else list(flight.values())
    rest = {ref: actor for ref, actor in flight.items() if actor not in faulty}
    why = f"an update was not finished in {watch.seconds:.0f} s, and {crew.limits.explained(limit)}"
    if not faulty:
        names = ", ".join(actor.name for actor in flight.values())
        crew.tell(
            f"{why}. All of {names} wait at the same place, so nobody knows which of them hangs; it is begun again"
        )
    for actor in faulty:
        how = "it gives no sign of life" if actor in missing else "the others wait for it"
        # The error of the actor's own says less than what is known here.
        crew.end(actor)
        crew.died(actor, HungError(f"{why}; {how if len(flight) > 1 else 'it hung'}"))
    _abandon(crew, rest)
    return HungError(f"{why}; at fault: {', '.join(actor.where for actor in faulty) or 'unknown'}")


def _progress(actors: list[Actor]) -> tuple[list[tuple[Actor, int]], list[Actor]]:
    """How far each is that answers, and those that do not."""
    import ray

    asked = {actor.handle.met.remote(): actor for actor in actors}
    ready, late = ray.wait(list(asked), num_returns=len(asked), timeout=SIGN_SECONDS)
    met: list[tuple[Actor, int]] = []
    missing = [asked[ref] for ref in late]
    for ref in ready:
        try:
            met.append((asked[ref], ray.get(ref)))
        except ray.exceptions.RayError:
            missing.append(asked[ref])
    return met, missing


def silent_or_behind(met: list[tuple[Actor, int]], missing: list[Actor]) -> list[Actor]:
    """Who makes the others wait: those that do not answer, else those that came to fewer meetings; nobody if none.

    Args:
        met: of those that answered, how often they came to where all meet.
        missing: those that did not.
    """
    if missing:
        return missing
    furthest = max(count for _, count in met)
    return [actor for actor, count in met if count < furthest]


def _hopeless(hangs: list[str]) -> WorkersError:
    return WorkersError(
        f"an update hung {len(hangs)} times and is not begun again; the last time {hangs[-1]}. The previous policy and "
        "what was finished are in the store: see to the devices and their connection, and start the run again with "
        "the same run id"
    )


def _abandon(crew: Crew, flight: dict[Any, Actor]) -> bool:
    """End what the others of a broken update wait for; whether one of them is gone."""
    import ray

    crew.seats = None
    gone = False
    if flight:
        # Between CPUs a rank learns of a dead one by itself, and is best left to it.
        ray.wait(list(flight), num_returns=len(flight), timeout=LEARN_SECONDS)
    asked = {actor.handle.abandon.remote(crew.group): actor for actor in crew.actors}
    refs = [*flight, *asked]
    ready, late = ray.wait(refs, num_returns=len(refs), timeout=ABANDON_SECONDS)
    for ref in ready:
        actor = flight.get(ref) or asked[ref]
        try:
            ray.get(ref)
        except ray.exceptions.RayActorError as error:
            gone = True
            crew.died(actor, error)
        except ray.exceptions.RayTaskError:
            # What broke off because of the death is no news.
            continue
    for ref in late:
        actor = flight.get(ref) or asked[ref]
        crew.end(actor)
        crew.died(actor, WorkersError(f"it did not answer for {ABANDON_SECONDS:.0f} s after an update broke off"))
    return gone or bool(late)


def _joined(actors: list[Actor], parts: list[Trained]) -> tuple[PolicyState, TrainResult]:
    if len({part.digest for part in parts}) > 1:
        raise WorkersError(
            "the actors of an update ended with different policies, though each summed the same gradients: "
            "a device or its memory may be faulty. Nothing was stored: start the run again with the same run id"
        )
    metrics = Tally.merged([part.tally for part in parts]).metrics()
    seconds = {actor.name: part.seconds for actor, part in zip(actors, parts, strict=True)}
    result = TrainResult(metrics, sum(seconds.values()), seconds if len(actors) > 1 else {})
    return unpack_state(*(part.state for part in parts)), result
