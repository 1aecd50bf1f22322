"""The Prefect and MLflow servers: found, started, watched and stopped.

A server that is started runs in a process group of its own: Ctrl-C reaches only the command in
front, which then stops the whole group and nothing else. A note of what was started lies in
``home/servers``, so that a server whose starter was killed is taken over by the next command.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

import psutil

from flows.errors import UserError
from flows.processes import find_alive, free_port, port_taken, signal_group, signals_ignored
from flows.settings import LOOPBACK, Address, Settings
from solrl_tasks.store.locks import FileLock

Answer = Literal["answers", "silent", "foreign"]
Report = Callable[[str], None]

START_LIMIT: Final = 180.0
"""Seconds allowed for a server to come up; 12 are usual on two idle cores."""
STOP_LIMIT: Final = 15.0
PROBE_LIMIT: Final = 3.0


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
    port_option: str
    port_variable: str
    url_variable: str

    @property
    def slug(self) -> str:
        """The name in file names."""
        return self.name.lower()


@dataclass
class Running:
    """A server that this command is responsible for stopping."""

    spec: ServerSpec
    process: psutil.Process
    note: Path
    taken_over: bool = False
    child: "subprocess.Popen[bytes] | None" = field(default=None, repr=False)

    def exit_code(self) -> int | None:
        """The exit code of a child that ended, else None."""
        return self.child.poll() if self.child is not None else None

    def stop(self) -> None:
        """End the whole process group: asked first, forced after ``STOP_LIMIT`` seconds."""
        signal_group(self.process.pid, signal.SIGTERM)
        waiter = self.child or self.process
        with contextlib.suppress(subprocess.TimeoutExpired, psutil.TimeoutExpired):
            waiter.wait(STOP_LIMIT)
        signal_group(self.process.pid, signal.SIGKILL)
        if self.child is not None:
            self.child.wait()
        self.note.unlink(missing_ok=True)


def prefect_server(settings: Settings) -> ServerSpec:
    """The Prefect server, with SQLite in the home unless ``PREFECT_API_DATABASE_*`` says otherwise."""
    address = settings.prefect
    return ServerSpec(
        name="Prefect",
        address=address,
        health=address.url + "/health",
        recognise=lambda body: body.strip() == b"true",
        arguments=("prefect", "server", "start", "--host", LOOPBACK, "--port", str(address.port)),
        environment=settings.environment(),
        folder=settings.prefect_home,
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
        port_option="--mlflow-port",
        port_variable="SOLRL_MLFLOW_PORT",
        url_variable="MLFLOW_TRACKING_URI",
    )


def probe(spec: ServerSpec, limit: float = PROBE_LIMIT) -> Answer:
    """Whether the expected server answers, nothing does, or something else does.

    Proxies are left out of it for addresses on this machine.
    """
    handlers = [urllib.request.ProxyHandler({})] if spec.address.is_local else []
    opener = urllib.request.build_opener(*handlers)
    try:
        with opener.open(spec.health, timeout=limit) as response:
            return "answers" if spec.recognise(response.read(1000)) else "foreign"
    except urllib.error.HTTPError:
        return "foreign"
    except (OSError, ValueError):
        return "foreign" if spec.address.is_local and port_taken(spec.address.port) else "silent"
    except Exception:  # http.client raises its own kinds when the other end does not speak HTTP
        return "foreign"


@contextlib.contextmanager
def running_servers(settings: Settings, report: Report) -> Iterator[list[Running]]:
    """Both servers answering within the block; those that had to be started are stopped after it.

    Raises:
        UserError: a server cannot be had; the message says why and what to do. Nothing is left behind.
    """
    started: list[Running] = []
    try:
        # Two commands that start at the same moment share the servers rather than fight for a port.
        with FileLock(settings.home / "servers.lock", "starting the servers").hold(wait=True):
            for spec in (prefect_server(settings), mlflow_server(settings)):
                server = _ensure(spec, settings, report)
                if server is not None:
                    started.append(server)
            _await(started, report)
        yield started
    finally:
        with signals_ignored():
            _stop(started, report)


def _ensure(spec: ServerSpec, settings: Settings, report: Report) -> Running | None:
    """The server to start or to take over; None where one answers that is not ours to stop."""
    if not spec.address.is_http:
        report(f"{spec.name}: writing straight to {spec.address.url} ({spec.address.chosen_by}); no server is started")
        return None
    answer = probe(spec)
    if answer == "foreign":
        raise UserError(_foreign(spec))
    note = _note(settings, spec)
    if answer == "answers":
        left = _left_behind(note, spec)
        whose = "left by a command that was killed; stopped with this one" if left else "already running; left as it is"
        elsewhere = f", named by {spec.address.chosen_by}" if spec.address.origin == "environment" else ""
        report(f"{spec.name}: using {spec.address.url}{elsewhere} ({whose})")
        return Running(spec, left, note, taken_over=True) if left else None
    if not spec.address.is_local:
        raise UserError(
            f"{spec.name}: nothing answers at {spec.address.url}, named by {spec.address.chosen_by}. "
            f"Start that server, or unset {spec.address.chosen_by} to have one started here"
        )
    return _start(spec, note, settings.logs)


def _start(spec: ServerSpec, note: Path, logs: Path) -> Running:
    for folder in (spec.folder, logs, note.parent):
        folder.mkdir(parents=True, exist_ok=True)
    with (logs / f"{spec.slug}.log").open("wb") as log:
        child = subprocess.Popen(
            [sys.executable, "-m", *spec.arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **spec.environment},
            cwd=spec.folder,
            start_new_session=True,
        )
    process = psutil.Process(child.pid)
    _write_note(note, process, spec)
    return Running(spec, process, note, child=child)


def _await(started: list[Running], report: Report) -> None:
    """Wait for the servers that were just started, telling how long each took."""
    began = time.monotonic()
    waiting = [server for server in started if server.child is not None]
    for server in waiting:
        report(f"{server.spec.name}: starting a server at {server.spec.address.url} …")
    while waiting:
        for server in list(waiting):
            seconds = time.monotonic() - began
            if server.exit_code() is not None:
                raise UserError(_did_not_start(server, f"ended with exit code {server.exit_code()}"))
            if probe(server.spec) == "answers":
                report(f"{server.spec.name}: up after {seconds:.0f} s")
                waiting.remove(server)
            elif seconds > START_LIMIT:
                raise UserError(_did_not_start(server, f"does not answer after {START_LIMIT:.0f} s"))
        time.sleep(0.2 if waiting else 0)


def _stop(started: list[Running], report: Report) -> None:
    for server in started:
        signal_group(server.process.pid, signal.SIGTERM)
    for server in started:
        server.stop()
        report(f"{server.spec.name}: stopped")


def _foreign(spec: ServerSpec) -> str:
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


def _did_not_start(server: Running, what: str) -> str:
    log = server.note.parent.parent / "logs" / f"{server.spec.slug}.log"
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
    tail = "".join(f"\n  | {line}" for line in lines[-5:])
    return (
        f"{server.spec.name}: the server {what}. Its log is {log}{tail}\n"
        f"If it can be started by hand, do so and set {server.spec.url_variable} to its address"
    )


def _note(settings: Settings, spec: ServerSpec) -> Path:
    return settings.home / "servers" / f"{spec.slug}.json"


def _write_note(note: Path, process: psutil.Process, spec: ServerSpec) -> None:
    me = psutil.Process()
    text = json.dumps(
        {
            "pid": process.pid,
            "created": process.create_time(),
            "url": spec.address.url,
            "starter": me.pid,
            "starter_created": me.create_time(),
        }
    )
    note.write_text(text, encoding="utf-8")


def _left_behind(note: Path, spec: ServerSpec) -> psutil.Process | None:
    """The server of a starter that is gone, if this note is about the server at this address."""
    try:
        content = json.loads(note.read_text(encoding="utf-8"))
        if content["url"] != spec.address.url or find_alive(content["starter"], content["starter_created"]):
            return None
        return find_alive(content["pid"], content["created"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
