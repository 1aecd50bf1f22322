"""The Prefect and MLflow servers: what they are started with and how they are recognised."""

import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from flows.processes import free_port, port_taken
from flows.settings import LOOPBACK, Address, Settings

Answer = Literal["answers", "silent", "foreign"]
PROBE_LIMIT: Final = 3.0
LOGS_SHOWN: Final = {
    "PREFECT_SERVER_LOGS_STREAM_PUBLISHING_ENABLED": "true",
    "PREFECT_SERVER_LOGS_STREAM_OUT_ENABLED": "true",
}
"""Without these ``--watch`` shows no line of a run's log, and of one that fails not the reason."""


@dataclass(frozen=True)
class ServerSpec:
    """What a server is started with and how it is recognised.

    ``recognise`` decides from the path's answer whether it is the expected program. ``port_option`` and
    ``port_variable`` choose another port; ``url_variable`` names a server elsewhere.
    """

    name: str
    address: Address
    health: str
    recognise: Callable[[bytes], bool]
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    folder: Path
    log: Path
    port_option: str
    port_variable: str
    url_variable: str

    @property
    def slug(self) -> str:
        """The name in file names."""
        return self.name.lower()


def prefect_server(settings: Settings) -> ServerSpec:
    """The Prefect server, with SQLite in the home unless ``PREFECT_API_DATABASE_*`` says otherwise."""
    address = settings.prefect
    return ServerSpec(
        name="Prefect",
        address=address,
        health=address.url + "/health",
        recognise=lambda body: body.strip() == b"true",
        arguments=("prefect", "server", "start", "--host", LOOPBACK, "--port", str(address.port)),
        environment=settings.environment() | LOGS_SHOWN,
        folder=settings.prefect_home,
        log=settings.logs / "prefect.log",
        port_option="--prefect-port",
        port_variable="SOLRL_PREFECT_PORT",
        url_variable="PREFECT_API_URL",
    )


def mlflow_server(settings: Settings) -> ServerSpec:
    """The MLflow server with its SQLite database and its artifacts in the home."""
    address = settings.mlflow
    folder = settings.home / "mlflow"
    arguments = ("mlflow", "server", "--host", LOOPBACK, "--port", str(address.port), "--workers", "1")
    storage = (
        "--backend-store-uri",
        f"sqlite:///{folder}/mlflow.db",
        "--artifacts-destination",
        f"{folder}/artifacts",
    )
    environment = settings.environment() | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    del environment["MLFLOW_TRACKING_URI"]
    return ServerSpec(
        name="MLflow",
        address=address,
        health=address.url + "/version",
        recognise=lambda body: body[:1].isdigit() and b"." in body,
        arguments=arguments + storage,
        environment=environment,
        folder=folder,
        log=settings.logs / "mlflow.log",
        port_option="--mlflow-port",
        port_variable="SOLRL_MLFLOW_PORT",
        url_variable="MLFLOW_TRACKING_URI",
    )


def opener(address: Address) -> urllib.request.OpenerDirector:
    """What asks a server whether it is there. Proxies are left out of it for addresses on this machine."""
    handlers = [urllib.request.ProxyHandler({})] if address.is_local else []
    return urllib.request.build_opener(*handlers)


def probe(spec: ServerSpec, limit: float = PROBE_LIMIT) -> Answer:
    """Whether the expected server answers, nothing does, or something else does."""
    try:
        with opener(spec.address).open(spec.health, timeout=limit) as response:
            return "answers" if spec.recognise(response.read(1000)) else "foreign"
    except urllib.error.HTTPError:
        return "foreign"
    except (OSError, ValueError):
        return "foreign" if spec.address.is_local and port_taken(spec.address.port) else "silent"
    except Exception:  # http.client raises its own kinds when the other end does not speak HTTP
        return "foreign"


def foreign_message(spec: ServerSpec) -> str:
    """What to tell where something else answers, with the way out."""
    address = spec.address
    if not address.is_local:
        where = f"{address.url}, named by {address.chosen_by}"
        return f"{spec.name}: what answers at {where}, is no {spec.name} server"
    free = free_port(address.port) or "N"
    return (
        f"{spec.name}: port {address.port} on this machine is in use by something that is no "
        f"{spec.name} server. Choose another with {spec.port_option} {free} or "
        f"{spec.port_variable}={free}, or stop what uses it"
    )
