"""The worker of many devices: resident actors on a Ray cluster, one a device."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from solrl_tasks.config.recipe import ExtensionSpec, ModelSpec, WorkersSpec
from solrl_tasks.engines.base import EngineRecord, SyncReport
from solrl_tasks.models.lora import LoraState
from solrl_tasks.workers.counters import Counters
from solrl_tasks.workers.jobs import RolloutJob, TrainJob, TrainResult, Work
from solrl_tasks.workers.pipeline import Results
from solrl_tasks.workers.ray_cluster import connected
from solrl_tasks.workers.ray_crew import Crew
from solrl_tasks.workers.ray_parcels import Parcels
from solrl_tasks.workers.ray_rollout import Spread, Waiting
from solrl_tasks.workers.ray_update import train_together
from solrl_tasks.workers.site import Site
from solrl_tasks.workers.state import PolicyState
from solrl_tasks.workers.transport import pack_job, unpack_state


@contextmanager
def hired(
    spec: WorkersSpec, model: ModelSpec, cache: Path | None, tell: Callable[[str], None]
) -> "Iterator[RayWorker]":
    """Actors by a recipe's ``workers``, for as long as the context lasts.

    Args:
        cache: folder in which encoded prompts are kept, used on machines that have it.
        tell: is told of actors that die.

    Raises:
        WorkersError: they cannot be had.
    """
    with connected(spec) as cluster:
        crew = Crew(cluster, spec, model, cache, tell)
        try:
            crew.hire()
            yield RayWorker(crew)
        finally:
            crew.leave()


@dataclass
class RaySite:
    """The devices of a crew, as one of its actors knows them. Nothing here touches a device of this process."""

    crew: Crew
    _known: dict[tuple[str, str], dict[str, str]] = field(default_factory=dict)

    @property
    def device(self) -> torch.device:
        """See ``Site``."""
        return torch.device(self.crew.facts["device"])

    @property
    def hardware(self) -> str:
        """See ``Site``."""
        return str(self.crew.facts["hardware"])

    @property
    def total_memory(self) -> int:
        """See ``Site``."""
        return int(self.crew.facts["total_memory"])

    def environment(self) -> dict[str, Any]:
        """See ``Site``."""
        return dict(self.crew.facts["environment"])

    def numerics(self, model: ModelSpec, engine: ExtensionSpec | None) -> dict[str, str]:
        """See ``Site``; asked once."""
        key = model.model_dump_json(), "" if engine is None else engine.model_dump_json()
        if key not in self._known:
            self._known[key] = self.crew.ask(lambda actor: actor.handle.numerics.remote(model, engine))
        return dict(self._known[key])

    def require_engine(self, name: str) -> None:
        """See ``Site``."""
        self.crew.ask(lambda actor: actor.handle.require_engine.remote(name))


class RayWorker:
    """A crew of actors as one worker; see ``base.Worker``.

    Ray carries jobs and results between processes as pickles in memory, which never touch a file that is read back.
    """

    def __init__(self, crew: Crew) -> None:
        self.crew = crew
        self.site: Site = RaySite(crew)
        self._numbers = itertools.count()
        self._parcels = Parcels()
        self._open: int | None = None

    @property
    def counters(self) -> Counters:
        """What all actors did so far; what dead ones did is forgotten."""
        found = self.crew.ask_all(lambda actor: actor.handle.counters.remote())
        total = Counters()
        for counts in found.values():
            for name, count in counts.items():
                setattr(total, name, getattr(total, name) + count)
        return total

    def sync(self, engine: ExtensionSpec, lora: LoraState | None) -> SyncReport:
        """See ``Worker.sync``; seconds are those of all devices together."""
        found = self.crew.ask_all(
            lambda actor: actor.handle.sync.remote(engine, *self._parcels.of_lora(lora, actor.holds))
        )
        reports: list[SyncReport] = list(found.values())
        return reports[0].model_copy(update={"seconds": sum(report.seconds for report in reports)})

    def record(self, engine: ExtensionSpec) -> EngineRecord:
        """See ``Worker.record``."""
        found: EngineRecord = self.crew.ask(lambda actor: actor.handle.record.remote(engine))
        return found

    def rollout(self, job: RolloutJob, blocks: Iterable[Work]) -> Results:
        """See ``Worker.rollout``. Results come as they are ready.

        Raises:
            RuntimeError: another rollout of this worker is not closed yet.
        """
        import ray

        if self._open is not None:
            raise RuntimeError("a rollout of these workers is still open: close it before another is begun")
        number = self._open = next(self._numbers)
        bare = ray.put(replace(job, lora=None))
        spread = Spread(self.crew, number, job, bare, self._parcels, Waiting(blocks))
        try:
            yield from spread.results()
        finally:
            self._open = None

    def fitting_chunk(self, job: RolloutJob, beside: Iterable[ExtensionSpec] = ()) -> int:
        """See ``Worker.fitting_chunk``."""
        engines = tuple(beside)
        found = self.crew.ask_all(lambda actor: actor.handle.fitting_chunk.remote(job, engines))
        return int(min(found.values()))

    def memory(self) -> dict[str, int]:
        """See ``Worker.memory``."""
        found = self.crew.ask_all(lambda actor: actor.handle.memory.remote())
        return max(found.values(), key=lambda report: report.get("allocated", sum(report.values())))

    def decode(self, latents: torch.Tensor) -> np.ndarray:
        """See ``Worker.decode``."""
        values = latents.numpy()
        return np.array(self.crew.ask(lambda actor: actor.handle.decode.remote(values)))

    def initial_policy(self, rank: int, alpha: float, targets: str, seed: int) -> PolicyState:
        """See ``Worker.initial_policy``."""
        return unpack_state(self.crew.ask(lambda actor: actor.handle.initial_policy.remote(rank, alpha, targets, seed)))

    def train(self, job: TrainJob, policy: PolicyState) -> tuple[PolicyState, TrainResult]:
        """See ``Worker.train``: by all actors together; from the beginning where one of them dies over it."""
        import ray

        return train_together(self.crew, len(job.candidates), ray.put(pack_job(job)), policy)
