"""What runs in the process of a Ray actor: one device, for life."""

import os
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeVar

import torch

from solrl_tasks.config.recipe import ExtensionSpec, ModelSpec
from solrl_tasks.models.lora import LoraState
from solrl_tasks.workers.data_parallel import Group, Seat, open_store
from solrl_tasks.workers.device import Device
from solrl_tasks.workers.jobs import RolloutJob, Work
from solrl_tasks.workers.numerics import default_device, host_threads
from solrl_tasks.workers.pipeline import in_hand
from solrl_tasks.workers.ray_parcels import Parcel, opened
from solrl_tasks.workers.reduction import ALONE, Ranks
from solrl_tasks.workers.site import LocalSite
from solrl_tasks.workers.state import ROLES, PolicyState
from solrl_tasks.workers.tally import Tally
from solrl_tasks.workers.transport import (
    PackedJob,
    PackedResult,
    PackedState,
    pack_result,
    pack_state,
    unpack_job,
    unpack_lora,
    unpack_state,
    unpack_work,
)

T = TypeVar("T")
LULL_SECONDS: Final = 0.005
"""After which a rollout is told that its next block is not there yet."""


@dataclass(frozen=True)
class Trained:
    """An actor's part of an update.

    Attributes:
        state: this actor's share of the next policy: each gives as much of it, at the same time.
        digest: of the policy that this actor has come to, and holds.
        roles: digests of its adapters, which it holds as well.
    """

    state: PackedState
    digest: str
    roles: frozenset[str]
    tally: Tally
    seconds: float


@dataclass
class _Call:
    """Something to do on the device, between two blocks if it must."""

    work: Callable[[], Any]
    answer: Future[Any]

    def run(self) -> None:
        try:
            self.answer.set_result(self.work())
        except Exception as error:
            self.answer.set_exception(error)


@dataclass
class _Block:
    rollout: int
    job: RolloutJob
    work: Work
    answer: Future[Any]


@dataclass
class _End:
    rollout: int
    answer: Future[Any]


class DeviceActor:
    """A device behind calls that may come in any number at a time.

    One thread touches the device, from the first call to the last: what is compiled belongs to it. Calls wait for
    their turn there; those that come while a rollout is open are done between two of its blocks.
    """

    def __init__(self, model: ModelSpec, cache: str | None, threads: int, environment: Mapping[str, str]) -> None:
        """
        Args:
            cache: folder of encoded prompts, used where it exists on this machine.
            threads: of torch on the CPU.
            environment: variables of the process of the run; Ray sets some of the same names here by itself.
        """
        os.environ.update(environment)
        self._site = LocalSite(default_device())
        threads = host_threads(self._site.device, threads, environment)
        torch.set_num_threads(threads)
        folder = Path(cache) if cache is not None and Path(cache).parent.is_dir() else None
        self._device: Device | None = None
        self._model, self._cache = model, folder
        self._loras: deque[LoraState] = deque(maxlen=2)
        self._policy: PolicyState | None = None
        self._group: Group | None = None
        self._store: Any = None
        self._given_up = -1
        self._todo: queue.SimpleQueue[_Call | _Block | _End] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="solrl-device", daemon=True, args=(threads,)).start()

    def facts(self) -> dict[str, Any]:
        """Who this is, and what its device is; loads nothing."""
        return {
            "pid": os.getpid(),
            "node": os.uname().nodename,
            "node_id": _node_id(),
            "device": str(self._site.device),
            "hardware": self._site.hardware,
            "total_memory": self._site.total_memory,
            "in_hand": in_hand(self._site.device),
            "environment": self._site.environment(),
        }

    def numerics(self, model: ModelSpec, engine: ExtensionSpec | None) -> dict[str, str]:
        """See ``Site.numerics``."""
        return self._site.numerics(model, engine)

    def require_engine(self, name: str) -> None:
        """See ``Site.require_engine``."""
        self._site.require_engine(name)

    def counters(self) -> dict[str, int]:
        """What the device did so far."""
        return self._call(lambda device: asdict(device.counters))

    def memory(self) -> dict[str, int]:
        """See ``Worker.memory``."""
        return self._call(lambda device: device.memory())

    def sync(self, engine: ExtensionSpec, digest: str, lora: Parcel | None) -> Any:
        """See ``Worker.sync``."""
        return self._call(lambda device: device.sync(engine, self._lora(digest, lora)))

    def record(self, engine: ExtensionSpec) -> Any:
        """See ``Worker.record``."""
        return self._call(lambda device: device.record(engine))

    def fitting_chunk(self, job: RolloutJob, beside: tuple[ExtensionSpec, ...]) -> int:
        """See ``Worker.fitting_chunk``."""
        return self._call(lambda device: device.fitting_chunk(job, beside))

    def decode(self, latents: Any) -> Any:
        """See ``Worker.decode``."""
        return self._call(lambda device: device.decode(torch.from_numpy(latents.copy()))[0])

    def initial_policy(self, rank: int, alpha: float, targets: str, seed: int) -> PackedState:
        """See ``Worker.initial_policy``."""
        return self._call(lambda device: pack_state(device.initial_policy(rank, alpha, targets, seed)))

    def block(
        self, rollout: int, job: RolloutJob, digest: str, lora: Parcel | None, work: Work, latents: Any
    ) -> PackedResult:
        """A block of a rollout; the first one opens it."""
        job = replace(job, lora=self._lora(digest, lora))
        answer: Future[Any] = Future()
        self._todo.put(_Block(rollout, job, unpack_work(work, latents), answer))
        return pack_result(answer.result())

    def close(self, rollout: int) -> None:
        """End a rollout, after the blocks that it has been given."""
        answer: Future[Any] = Future()
        self._todo.put(_End(rollout, answer))
        answer.result()

    def begin_group(self, world: int, local: bool) -> tuple[str, int]:
        """Be rank 0 of a group: where the others find it.

        Args:
            local: whether all of it is on this machine.
        """
        from ray import util

        self._leave()
        self._store, where, port = open_store(world, local, str(util.get_node_ip_address()))
        return where, port

    def train(self, job: PackedJob, digest: str, policy: Parcel, seat: Seat | None) -> Trained:
        """This actor's part of an update; without a seat it is the whole.

        Args:
            digest: of the policy that is trained.
        """
        return self._call(lambda device: self._train(device, job, self._held_policy(digest, policy), seat))

    def met(self) -> int:
        """How often this rank came to where the group meets; answered while the device is busy or hangs."""
        group = self._group
        return -1 if group is None else group.met

    def abandon(self, group: int) -> None:
        """Stop waiting for the other ranks of a group, one of which is dead."""
        self._given_up = max(self._given_up, group)
        self._leave()

    def _train(self, device: Device, job: PackedJob, policy: PolicyState, seat: Seat | None) -> Trained:
        ranks = self._ranks(seat)
        state, tally, seconds = device.train_part(unpack_job(job), policy, ranks)
        self._policy = state
        packed = pack_state(state, ranks.rank, ranks.world)
        return Trained(packed, state.digest, frozenset(state.role_digests().values()), tally, seconds)

    def _held_policy(self, digest: str, parcel: Parcel) -> PolicyState:
        if self._policy is None or self._policy.digest != digest:
            # Two policies at a time would be gigabytes for nothing.
            self._policy = None
            self._policy = unpack_state(opened(parcel))
        return self._policy

    def _ranks(self, seat: Seat | None) -> Ranks:
        if seat is None:
            return ALONE
        if self._group is None or self._group.seat != seat:
            store = self._store
            if self._group is not None:
                self._group.abandon()
            self._group = None
            self._group = Group(
                seat, self._site.device, lambda: self._given_up >= seat.group, store if seat.rank == 0 else None
            )
        return self._group

    def _leave(self) -> None:
        group, self._group, self._store = self._group, None, None
        if group is not None:
            group.abandon()

    def _lora(self, digest: str, parcel: Parcel | None) -> LoraState | None:
        if parcel is None:
            return None
        policy = self._policy
        trained = [] if policy is None else [policy.role(role) for role in ROLES]
        for known in (*trained, *self._loras):
            if known.digest == digest:
                return known
        lora = unpack_lora(opened(parcel))
        self._loras.append(lora)
        return lora

    def _call(self, work: Callable[[Device], T]) -> T:
        answer: Future[T] = Future()
        self._todo.put(_Call(lambda: work(self._held()), answer))
        return answer.result()

    def _held(self) -> Device:
        if self._device is None:
            self._device = Device(self._model, self._site.device, self._cache)
        return self._device

    def _work(self, threads: int) -> None:
        torch.set_num_threads(threads)
        while True:
            asked = self._todo.get()
            if isinstance(asked, _Block):
                self._rollout(asked)
            elif isinstance(asked, _End):
                asked.answer.set_result(None)
            else:
                asked.run()

    def _rollout(self, first: _Block) -> None:
        """Blocks of one rollout until it is closed, or fails: then every block that it still has fails with it."""
        open_blocks: deque[_Block] = deque([first])
        ends: list[_End] = []
        try:
            for result in self._held().rollout(first.job, self._incoming(first, open_blocks, ends)):
                open_blocks.popleft().answer.set_result(result)
        except Exception as error:
            for block in open_blocks:
                block.answer.set_exception(error)
        for end in ends:
            end.answer.set_result(None)

    def _incoming(self, first: _Block, open_blocks: deque[_Block], ends: list[_End]) -> Iterator[Work | None]:
        yield first.work
        while True:
            try:
                # The flow process gives the next block when it has a result, which must not wait for that block.
                asked = self._todo.get(timeout=LULL_SECONDS if open_blocks else None)
            except queue.Empty:
                yield None
                continue
            if isinstance(asked, _Call):
                asked.run()
            elif isinstance(asked, _End):
                ends.append(asked)
                if asked.rollout == first.rollout:
                    return
            elif asked.rollout == first.rollout:
                open_blocks.append(asked)
                yield asked.work
            else:
                other = RuntimeError("a rollout was begun while another is open on this actor")
                asked.answer.set_exception(other)


def _node_id() -> str:
    from ray import get_runtime_context

    return str(get_runtime_context().get_node_id())
