"""An update by all actors of a crew together, from the beginning again where one of them dies over it."""

from typing import Any, Final

from solrl_tasks.workers.data_parallel import Seat
from solrl_tasks.workers.jobs import TrainResult
from solrl_tasks.workers.ray_actor import Trained
from solrl_tasks.workers.ray_cluster import WorkersError, answered, fetched
from solrl_tasks.workers.ray_crew import Actor, Crew
from solrl_tasks.workers.state import PolicyState
from solrl_tasks.workers.tally import Tally
from solrl_tasks.workers.transport import unpack_state

LEARN_SECONDS: Final = 2.0
ABANDON_SECONDS: Final = 30.0
"""After which an actor that waits for a dead one is ended."""


def train_together(crew: Crew, job: Any, policy: Any) -> tuple[PolicyState, TrainResult]:
    """One update.

    Args:
        job, policy: references to their packed forms.

    Raises:
        TrainingError, DeviceMemoryError: as ``Device.train``.
        WorkersError: no actor is left, or they do not agree on the policy.
    """
    while True:
        actors = crew.everyone()
        parts = _attempt(crew, actors, job, policy)
        if parts is not None:
            return _joined(actors, parts)


def _attempt(crew: Crew, actors: list[Actor], job: Any, policy: Any) -> list[Trained] | None:
    """What each actor made of it; None where one died."""
    import ray

    try:
        seats = _seats(crew, actors)
    except ray.exceptions.RayActorError as error:
        crew.died(actors[0], error)
        return None
    pairs = zip(actors, seats, strict=True)
    flight = {actor.handle.train.remote(job, policy, seat): actor for actor, seat in pairs}
    parts: dict[str, Trained] = {}
    while flight:
        for ref in crew.cluster.wait(list(flight)):
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
        host, port = answered(crew.cluster, first.begin_group.remote(len(actors), local))
        crew.seats = crew.generation, host, port
        crew.group += 1
    _, host, port = crew.seats
    return [Seat(crew.group, rank, len(actors), host, port) for rank in range(len(actors))]


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
        silent = WorkersError(f"it did not answer for {ABANDON_SECONDS:.0f} s after an update broke off")
        crew.died(flight.get(ref) or asked[ref], silent)
    return gone or bool(late)


def _joined(actors: list[Actor], parts: list[Trained]) -> tuple[PolicyState, TrainResult]:
    if len({part.digest for part in parts}) > 1:
        raise WorkersError(
            "the actors of an update ended with different policies, though each summed the same gradients: "
            "a device or its memory may be faulty. Nothing was stored: start the run again with the same run id"
        )
    state = parts[0].state
    assert state is not None
    metrics = Tally.merged([part.tally for part in parts]).metrics()
    seconds = {actor.name: part.seconds for actor, part in zip(actors, parts, strict=True)}
    return unpack_state(state), TrainResult(metrics, sum(seconds.values()), seconds if len(actors) > 1 else {})
