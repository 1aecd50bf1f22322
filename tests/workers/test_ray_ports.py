"""Who can reach a cluster that a run starts."""

import ipaddress
import os
import socket
import time

import psutil
import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.events import ConnectionTerminated, ResponseReceived, StreamEnded, StreamReset, TrailersReceived
from h2.exceptions import ProtocolError

from solrl_tasks.config.recipe import WorkersSpec
from solrl_tasks.workers.ray_cluster import connected

pytestmark = [pytest.mark.slow]
ray = pytest.importorskip("ray")

CALLS = (
    "NodeInfoGcsService/CheckAlive",
    "NodeManagerService/GetNodeStats",
    "CoreWorkerService/GetCoreWorkerStats",
    "ObjectManagerService/Pull",
    "ObjectManagerService/Push",
)
"""One of each of Ray's services."""
UNKNOWN, REFUSED = 12, 16
"""Of the states of a call by gRPC."""
SECONDS = 20.0


def listening(process: psutil.Process) -> set[tuple[str, int]]:
    """Addresses at which it and its children listen."""
    found = set()
    for one in [process, *process.children(recursive=True)]:
        try:
            found |= {(c.laddr.ip, c.laddr.port) for c in one.net_connections("inet") if c.status == "LISTEN"}
        except psutil.NoSuchProcess:
            continue
    return found


def on_loopback(host: str) -> bool:
    address = ipaddress.ip_address(host)
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def call(port: int, method: str, token: str) -> int | None:
    """The state of an empty call of a service of Ray, by HTTP/2 as gRPC speaks it; None where no such thing is spoken.

    The state stands in the trailer of an answer, which clients of plain HTTP leave unread.
    """
    spoken = H2Connection(H2Configuration(header_encoding=None))
    spoken.initiate_connection()
    stream = spoken.get_next_available_stream_id()
    head = [(":method", "POST"), (":scheme", "http"), (":path", f"/ray.rpc.{method}")]
    head += [(":authority", f"127.0.0.1:{port}"), ("content-type", "application/grpc"), ("te", "trailers")]
    spoken.send_headers(stream, head + [("authorization", f"Bearer {token}")] * bool(token))
    # Not packed, and of no length.
    spoken.send_data(stream, bytes(5), end_stream=True)
    with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as line:
        line.sendall(spoken.data_to_send())
        try:
            return answered(spoken, line)
        except (ProtocolError, OSError):
            return None


def answered(spoken: H2Connection, line: socket.socket) -> int | None:
    """The state in what comes, within ``SECONDS``; None where the answer, or the connection, ends without one."""
    until = time.monotonic() + SECONDS
    while time.monotonic() < until and (received := line.recv(65_536)):
        for event in spoken.receive_data(received):
            if isinstance(event, ResponseReceived | TrailersReceived):
                found = dict(event.headers).get(b"grpc-status")
                if found is not None:
                    return int(found)
            if isinstance(event, StreamEnded | StreamReset | ConnectionTerminated):
                return None
        line.sendall(spoken.data_to_send())
    return None


def test_a_cluster_of_a_run_is_heard_by_this_machine_alone(cluster):
    found, where = cluster
    assert len(where) >= 4 and all(on_loopback(host) for host, _ in where), where
    assert found.address.startswith("127.0.0.1:")


def test_services_of_a_cluster_of_a_run_ask_for_its_token(cluster):
    _, where = cluster
    right = os.environ["RAY_AUTH_TOKEN"]
    asking = 0
    for _, port in sorted(where):
        for method in CALLS:
            state = call(port, method, right)
            if state in (None, UNKNOWN):
                continue
            asking += 1
            for wrong in ("", "0" * 64):
                assert call(port, method, wrong) == REFUSED, (port, method, wrong, state)
            assert state != REFUSED
    # The control service, the node, this process and at least one more.
    assert asking >= 4


@pytest.fixture
def cluster(monkeypatch):
    """A cluster, and where its processes and this one listen because of it."""
    monkeypatch.setenv("RAY_DEFAULT_OBJECT_STORE_MEMORY_PROPORTION", "0.02")
    before = listening(psutil.Process())
    with connected(WorkersSpec(kind="ray", actors=1, cpus=0.5)) as found:
        yield found, listening(psutil.Process()) - before
