"""Ranks of an update in several processes, through torch.distributed: NCCL between GPUs, gloo between CPUs."""

import importlib
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import torch
from torch import Tensor

PATIENCE: Final = timedelta(hours=2)
"""For which a rank waits for the others: who dies is noticed elsewhere, much sooner."""
MEETING: Final = timedelta(minutes=1)
"""For which a rank tries to reach rank 0."""
LOOPBACK: Final = "127.0.0.1"
_CHOSEN: Final[set[str]] = set()


@dataclass(frozen=True)
class Seat:
    """A rank's place in a group.

    Attributes:
        group: number of the group; a new one is made whenever its members change.
        host, port: where rank 0 keeps the store by which they find each other.
    """

    group: int
    rank: int
    world: int
    host: str
    port: int


class Group:
    """This process's membership in a group of ranks; see ``reduction.Ranks``.

    Attributes:
        met: how often it came to where all ranks meet; one that is behind the others is who they wait for.
    """

    def __init__(self, seat: Seat, device: torch.device, given_up: Callable[[], bool], store: Any = None) -> None:
        """
        Args:
            given_up: asked while others are waited for, who may be dead already.
            store: what ``open_store`` gave to rank 0; the others connect to it.

        Raises:
            RuntimeError or OSError: the ranks do not find each other.
        """
        distributed: Any = importlib.import_module("torch.distributed")
        self.seat = seat
        self.met = 0
        self._distributed = distributed
        # Multicast is not to be had in every container, and wins nothing here. Who is dead is noticed elsewhere: torch
        # is not to end the process over it.
        os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
        _choose_interface(seat.host == LOOPBACK)
        if store is None:
            # It was there before anyone was told of it: where nobody listens, rank 0 is dead.
            socket.create_connection((seat.host, seat.port), timeout=MEETING.total_seconds()).close()
            store = distributed.TCPStore(seat.host, seat.port, seat.world, False, timeout=MEETING)
        _meet(store, seat, given_up)
        distributed.init_process_group(
            backend="nccl" if device.type == "cuda" else "gloo",
            store=distributed.PrefixStore(f"solrl-{seat.group}", store),
            rank=seat.rank,
            world_size=seat.world,
            timeout=PATIENCE,
        )

    @property
    def rank(self) -> int:
        """See ``reduction.Ranks``."""
        return self.seat.rank

    @property
    def world(self) -> int:
        """See ``reduction.Ranks``."""
        return self.seat.world

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """See ``reduction.Ranks``."""
        self.met += 1
        found = [torch.empty_like(tensor) for _ in range(self.world)]
        self._distributed.all_gather(found, tensor.contiguous())
        return found

    def abandon(self) -> None:
        """Give up what waits for the others, in whatever thread it waits; the group is good for nothing afterwards."""
        if not self._distributed.is_initialized():
            return
        if self._distributed.get_backend() == "nccl":
            # Destroying alone would wait for the others.
            self._distributed.distributed_c10d._abort_process_group()
        if self._distributed.is_initialized():
            self._distributed.destroy_process_group()


def _meet(store: Any, seat: Seat, given_up: Callable[[], bool]) -> None:
    """Wait until all ranks have come: what follows waits for them without asking anybody."""
    store.set(f"here-{seat.group}-{seat.rank}", "1")
    everyone = [f"here-{seat.group}-{rank}" for rank in range(seat.world)]
    while not store.check(everyone):
        if given_up():
            raise RuntimeError("a rank that was waited for is dead")
        time.sleep(0.02)


def _choose_interface(local: bool) -> None:
    """Ranks of one machine meet on its loopback, unless the user has named an interface."""
    for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        if local and name not in os.environ:
            os.environ[name] = "lo"
            _CHOSEN.add(name)
        elif not local and name in _CHOSEN:
            del os.environ[name]
            _CHOSEN.remove(name)


def open_store(world: int, local: bool, host: str) -> tuple[Any, str, int]:
    """Begin a group as its rank 0: the store, and where the others find it.

    Args:
        local: whether all ranks are on this machine.
        host: of this machine, as the others know it.
    """
    distributed: Any = importlib.import_module("torch.distributed")
    if not local:
        store = distributed.TCPStore(host, 0, world, True, timeout=PATIENCE, wait_for_workers=False)
        return store, host, int(store.port)
    # Whatever address it is given, torch would listen on all of them, and asks nobody for a token.
    with socket.create_server((LOOPBACK, 0), backlog=world) as server:
        port = server.getsockname()[1]
        options = {"timeout": PATIENCE, "wait_for_workers": False, "master_listen_fd": server.detach()}
    return distributed.TCPStore(LOOPBACK, port, world, True, **options), LOOPBACK, port
