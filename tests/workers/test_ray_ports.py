"""Who can reach a cluster that a run starts."""

import ipaddress
import os
import re
import shutil
import subprocess
from pathlib import Path

import psutil
import pytest

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
DONE, UNKNOWN, REFUSED = 0, 12, 16
"""Of the states of a call by gRPC."""


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


def call(port: int, method: str, token: str, folder: Path) -> int | None:
    """The state of an empty call of a service of Ray; None where no such service is spoken."""
    message = folder / "message"
    message.write_bytes(bytes(5))
    words = ["curl", "-s", "-m", "20", "--http2-prior-knowledge", "-D", "-", "-o", os.devnull, "--data-binary"]
    words += [f"@{message}", "-H", "content-type: application/grpc", "-H", "te: trailers"]
    words += ["-H", f"authorization: Bearer {token}"] if token else []
    words += [f"http://127.0.0.1:{port}/ray.rpc.{method}"]
    said = subprocess.run(words, check=False, capture_output=True, text=True, timeout=60).stdout
    found = re.search(r"grpc-status: (\d+)", said)
    return int(found[1]) if found else None


def test_a_cluster_of_a_run_is_heard_by_this_machine_alone(cluster):
    found, where = cluster
    assert len(where) >= 4 and all(on_loopback(host) for host, _ in where), where
    assert found.address.startswith("127.0.0.1:")


@pytest.mark.skipif(shutil.which("curl") is None, reason="asks by curl")
def test_services_of_a_cluster_of_a_run_ask_for_its_token(cluster, tmp_path):
    _, where = cluster
    right = os.environ["RAY_AUTH_TOKEN"]
    asking = 0
    for _, port in sorted(where):
        for method in CALLS:
            state = call(port, method, right, tmp_path)
            if state in (None, UNKNOWN):
                continue
            asking += 1
            for wrong in ("", "0" * 64):
                assert call(port, method, wrong, tmp_path) == REFUSED, (port, method, wrong, state)
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
