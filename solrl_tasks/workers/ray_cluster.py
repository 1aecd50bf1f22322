"""A Ray cluster: found or started, watched, and kept quiet."""

import logging
import os
import secrets
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from solrl_tasks.config.recipe import WorkersSpec

TICK: Final = 1.0
"""Seconds between two looks at the cluster while something is waited for."""
GRACE: Final = 20.0
"""Seconds for which a cluster's control service may be out of reach before the cluster counts as lost."""
_PROBE: Final = 2.0
_SPREADS: Final = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Whether a cluster may have other machines; where it may not, Ray's processes listen on the loopback alone."""
_NONE_AHEAD: Final = {"RAY_prestart_worker_first_driver": "0", "RAY_enable_worker_prestart": "0"}
"""Ray would start a process for each processor at once, of which a run needs one for each actor."""
_INLINE: Final = "set workers.kind to inline"
_TOKEN: Final = secrets.token_hex(32)
"""Of every cluster that this process starts: Ray reads a token once."""


class WorkersError(RuntimeError):
    """Workers that cannot be had, or are there no more; the message says what to do. The store is intact."""


class ClusterLostError(WorkersError):
    """The cluster itself is gone."""


@dataclass
class Cluster:
    """A cluster that this process is connected to.

    Attributes:
        address: of its control service, host:port.
        local: whether it was started by this process and ends with it.
    """

    address: str
    local: bool
    _unreachable: float | None = field(default=None, repr=False)
    _looked: float = field(default=float("-inf"), repr=False)

    def wait(self, refs: Sequence[Any], seconds: float = TICK) -> list[Any]:
        """Those of some references that are there, after a look at the cluster.

        Raises:
            ClusterLostError: the cluster is gone.
        """
        import ray

        self.check()
        ready, _ = ray.wait(list(refs), num_returns=1, timeout=seconds)
        if ready and len(refs) > 1:
            ready, _ = ray.wait(list(refs), num_returns=len(refs), timeout=0)
        return list(ready)

    def check(self) -> None:
        """See whether the cluster still answers.

        Raises:
            ClusterLostError: its control service did not for ``GRACE`` seconds.
        """
        now = time.monotonic()
        if now - self._looked < TICK:
            return
        self._looked = now
        if answers(self.address):
            self._unreachable = None
            return
        self._unreachable = self._unreachable or now
        if now - self._unreachable > GRACE:
            raise self.lost(f"its control service has not answered for {GRACE:.0f} s")

    @property
    def reachable(self) -> bool:
        """Whether it answered when it was last asked."""
        return self._unreachable is None

    def check_node(self) -> None:
        """See, after a failure, whether this machine is still a node of the cluster.

        Raises:
            ClusterLostError: it is not.
        """
        import ray

        self.check()
        if not self.reachable:
            return
        mine = ray.get_runtime_context().get_node_id()
        if not any(node["NodeID"] == mine and node["Alive"] for node in ray.nodes()):
            raise self.lost("the Ray process of this machine (raylet) has ended")

    def lost(self, why: str) -> ClusterLostError:
        """The error for a cluster that is gone."""
        which = "that this run started" if self.local else "workers.address names"
        return ClusterLostError(
            f"the Ray cluster at {self.address} ({which}) is lost: {why}. What was finished is in the store: start the "
            "run again with the same run id and it goes on there, on a new cluster or with workers.kind inline"
        )

    def resources(self) -> dict[str, float]:
        """What all nodes have together."""
        import ray

        return dict(ray.cluster_resources())


def cluster_address(spec: WorkersSpec) -> str | None:
    """Of a cluster that is there already, perhaps on other machines; None where one is started on this machine."""
    return spec.address or os.environ.get("RAY_ADDRESS")


@contextmanager
def connected(spec: WorkersSpec) -> Iterator[Cluster]:
    """A cluster for as long as the context lasts: the one at ``workers.address``, else one of this machine's own.

    ``RAY_ADDRESS`` names one as well, as it does for all that uses Ray.

    Raises:
        WorkersError: Ray is not installed, or no cluster can be had.
    """
    address = cluster_address(spec)
    if address and "://" in address:
        raise WorkersError(
            f"workers.address is {address!r}: runs do not go through Ray Client. Give host:port, or auto, "
            "and start the run on a node of the cluster, its head for one"
        )
    with _environment(_settings(address is None)), _own_handlers():
        ray = _ray()
        with _outside(ray), _on_loopback(ray, address is None):
            context = _join(ray, address, spec)
        try:
            yield Cluster(str(context.address_info["gcs_address"]), address is None)
        finally:
            ray.shutdown()


def installed() -> str | None:
    """The version of Ray that is installed, without importing it."""
    import importlib.metadata

    try:
        return importlib.metadata.version("ray")
    except importlib.metadata.PackageNotFoundError:
        return None


def answers(address: str) -> bool:
    """Whether something listens at the address of a cluster, host:port."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=_PROBE):
            return True
    except (OSError, ValueError):
        return False


def _ray() -> Any:
    try:
        import ray
    except ImportError as error:
        raise WorkersError(
            f"workers.kind is ray, but Ray is not installed: pip install -c constraints.txt -e '.[ray]', or {_INLINE}"
        ) from error
    return ray


def _settings(local: bool) -> dict[str, str]:
    settings = {
        "RAY_USAGE_STATS_ENABLED": "0",
        # Longer than GRACE: Ray itself would end this process, without a word to the run.
        "RAY_gcs_rpc_server_reconnect_timeout_s": "600",
    }
    if local:
        # A cluster of one's own asks everyone for a token: who else is on this machine or its network is kept out.
        # Its processes are what the machine is there for, which Ray would give the lowest priority.
        settings |= {"RAY_AUTH_TOKEN": _TOKEN, "RAY_worker_niceness": "0", _SPREADS: "0", **_NONE_AHEAD}
    return settings


@contextmanager
def _environment(settings: Mapping[str, str]) -> Iterator[None]:
    # Ray sets the last one by itself.
    before = {name: os.environ.get(name) for name in (*settings, "RAY_AUTH_MODE")}
    os.environ.update(settings)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _own_handlers() -> Iterator[None]:
    """Leave the process's handler of uncaught errors as it was: importing Ray replaces it."""
    hook = sys.excepthook
    try:
        yield
    finally:
        sys.excepthook = hook


@contextmanager
def _outside(ray: Any) -> Iterator[None]:
    """While Ray starts: it takes SIGTERM for itself, which belongs to whoever runs the flow, and would print a lot."""
    logging.getLogger("ray").setLevel(logging.ERROR)
    inner = ray._private.worker
    if hasattr(inner, "listen_error_messages"):
        inner.listen_error_messages = _hear_nothing
    main = threading.current_thread() is threading.main_thread()
    handler: Any = signal.getsignal(signal.SIGTERM) if main else None
    try:
        yield
    finally:
        if main:
            signal.signal(signal.SIGTERM, signal.SIG_DFL if handler is None else handler)


@contextmanager
def _on_loopback(ray: Any, local: bool) -> Iterator[None]:
    """While Ray starts: it reads ``_SPREADS`` once, when it is imported, and this process may want either."""
    constants = ray._private.ray_constants
    before = constants.ENABLE_RAY_CLUSTER
    constants.ENABLE_RAY_CLUSTER = not local
    try:
        yield
    finally:
        constants.ENABLE_RAY_CLUSTER = before


def _hear_nothing(*_: Any) -> None:
    """Ray prints the deaths of actors, and what might have caused them in general; a run says which and goes on."""


def _located(ray: Any, address: str) -> str:
    """The host:port of a cluster that answers; "auto" is the one of this machine."""
    where = address
    if address == "auto":
        try:
            where = ray._private.services.canonicalize_bootstrap_address(address)
        except (ConnectionError, ValueError) as error:
            raise WorkersError(
                f"workers.address is auto, and no Ray cluster runs on this machine: start one (ray start --head), "
                f"give the host:port of one, or {_INLINE}"
            ) from error
    if not answers(where):
        # Ray would ask for minutes.
        raise WorkersError(f"no Ray cluster answers at {where}: look at workers.address and RAY_ADDRESS, or {_INLINE}")
    return where


def _join(ray: Any, address: str | None, spec: WorkersSpec) -> Any:
    if address is not None:
        address = _located(ray, address)
    quiet: dict[str, Any] = {"configure_logging": False, "log_to_driver": False, "logging_level": logging.ERROR}
    try:
        if address is not None:
            return ray.init(address=address, **quiet)
        return ray.init(address="local", include_dashboard=False, num_cpus=_cpus(spec), **quiet)
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        said = " ".join(str(error).split())
        raise WorkersError(f"{_refusal(address)}: {said.rstrip('.')}. Look at workers.address, or {_INLINE}") from error


def _refusal(address: str | None) -> str:
    if address is None:
        return "no Ray cluster could be started here"
    if not answers(address):
        return f"no Ray cluster answers at {address}"
    return (
        f"the Ray cluster at {address} answers, and did not let this process in (RAY_AUTH_MODE and RAY_AUTH_TOKEN must "
        "be those that it was started with)"
    )


def _cpus(spec: WorkersSpec) -> int | None:
    # More actors than processors are for whoever asks for them: Ray only counts.
    if spec.actors == "auto":
        return None
    return max(os.cpu_count() or 1, int(spec.actors * spec.cpus + 0.999))


def fetched(get: Callable[[Any], Any], ref: Any) -> Any:
    """The value of a reference that is there, or its error as it was raised."""
    import ray

    try:
        return get(ref)
    except ray.exceptions.RayTaskError as error:
        cause = error.cause
        raise (cause if isinstance(cause, Exception) else error) from None
