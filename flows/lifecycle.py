"""Servers shared by commands: the first that needs one starts it, the last that used it stops it.

A server runs in a process group of its own: Ctrl-C reaches only the command in front, and stopping hits the group and
nothing else. Who uses a server is known from a lock that the kernel drops with the process, so that a command that was
killed leaves nothing for ever: the next one to end stops what it left. Servers that no command of ours started are
never stopped.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

from flows import servers
from flows.errors import UserError
from flows.processes import find_alive, free_port, runtime_folder, signal_group, signals_ignored
from flows.servers import ServerSpec, foreign_message, probe
from flows.settings import Settings
from solrl_tasks.store.errors import LockedError
from solrl_tasks.store.locks import FileLock

Report = Callable[[str], None]

START_LIMIT: Final = 180.0
"""Seconds allowed for a server to come up; 12 are usual on two idle cores."""
STOP_LIMIT: Final = 15.0


@dataclass
class Running:
    """A server of this machine that this command uses.

    Attributes:
        process: the leader of its process group; None where no command of ours started it.
        child: set where this very command started it.
        stopped: set when this command has stopped it.
    """

    spec: ServerSpec
    users: FileLock
    process: psutil.Process | None = None
    child: "subprocess.Popen[bytes] | None" = field(default=None, repr=False)
    stopped: bool = False

    @property
    def ended(self) -> bool:
        """Whether a server that we know has ended by itself."""
        if self.child is not None:
            return self.child.poll() is not None
        return self.process is not None and not self.process.is_running()

    def stop(self) -> None:
        """End the whole process group: asked first, forced after ``STOP_LIMIT`` seconds."""
        assert self.process is not None
        signal_group(self.process.pid, signal.SIGTERM)
        waiter = self.child or self.process
        with contextlib.suppress(subprocess.TimeoutExpired, psutil.TimeoutExpired):
            waiter.wait(STOP_LIMIT)
        signal_group(self.process.pid, signal.SIGKILL)
        if self.child is not None:
            self.child.wait()
        _note(self.spec).unlink(missing_ok=True)
        self.stopped = True


@contextlib.contextmanager
def running_servers(settings: Settings, report: Report, own: bool = False) -> Iterator[list[Running]]:
    """Both servers answering within the block; what nobody else uses after it is stopped.

    Args:
        report: is told what happens.
        own: refuse servers that were started for another home, unless their addresses were chosen.

    Raises:
        UserError: a server cannot be had; the message says why and what to do. Nothing is left behind.
    """
    used: list[Running] = []
    try:
        # Two commands that start at the same moment share the servers rather than fight for a port.
        with FileLock(runtime_folder() / "starting.lock", "starting the servers").hold(wait=True):
            for spec in (servers.prefect_server(settings), servers.mlflow_server(settings)):
                if own:
                    _require_own(spec, settings)
                _join(spec, settings, used, report)
            _await(used, report)
        yield used
    finally:
        with signals_ignored():
            _leave(used, report)


def _join(spec: ServerSpec, settings: Settings, used: list[Running], report: Report) -> None:
    address = spec.address
    if not address.is_http:
        report(f"{spec.name}: writing straight to {address.url} ({address.chosen_by}); no server is started")
        return
    server = Running(spec, FileLock(_file(spec, "users"), f"using {spec.name}", shared=True))
    if address.is_local:
        server.users.acquire(wait=True)
        used.append(server)
    answer = probe(spec)
    if answer == "foreign":
        raise UserError(foreign_message(spec))
    if answer == "answers":
        server.process, home = _read_note(spec)
        elsewhere = f", named by {address.chosen_by}" if address.origin == "environment" else ""
        report(f"{spec.name}: using {address.url}{elsewhere} ({_whose(server, home, settings)})")
    elif not address.is_local:
        raise UserError(
            f"{spec.name}: nothing answers at {address.url}, named by {address.chosen_by}. "
            f"Start that server, or unset {address.chosen_by} to have one started here"
        )
    else:
        _start(server, settings)


def _require_own(spec: ServerSpec, settings: Settings) -> None:
    process, home = _read_note(spec) if spec.address.is_local else (None, "")
    if process is None or home == str(settings.home) or spec.address.origin != "default":
        return
    prefect = free_port(settings.prefect.port) or "N"
    mlflow = free_port(settings.mlflow.port) or "M"
    raise UserError(
        f"{spec.name}: the server at {spec.address.url} was started for the home {home}, where what it shows is kept, "
        f"and not for {settings.home}. Choose ports for this one with --prefect-port {prefect} --mlflow-port {mlflow} "
        f"(or SOLRL_PREFECT_PORT={prefect} SOLRL_MLFLOW_PORT={mlflow}); to share that server all the same, name its "
        f"port with {spec.port_option} {spec.address.port}"
    )


def _whose(server: Running, home: str, settings: Settings) -> str:
    if server.process is None:
        return "already running; left as it is"
    other = "" if home == str(settings.home) else f" for the home {home}, which keeps what it shows"
    return f"started by another solrl{other}; stopped with the last that uses it"


def _start(server: Running, settings: Settings) -> None:
    spec = server.spec
    for folder in (spec.folder, spec.log.parent):
        folder.mkdir(parents=True, exist_ok=True)
    with spec.log.open("wb") as log:
        server.child = subprocess.Popen(
            [sys.executable, "-m", *spec.arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, **spec.environment},
            cwd=spec.folder,
            start_new_session=True,
        )
    server.process = psutil.Process(server.child.pid)
    note = {"pid": server.child.pid, "created": server.process.create_time(), "home": str(settings.home)}
    _note(spec).write_text(json.dumps(note), encoding="utf-8")


def _await(used: list[Running], report: Report) -> None:
    """Wait for the servers that were just started, telling how long each took."""
    began = time.monotonic()
    waiting = [server for server in used if server.child is not None]
    for server in waiting:
        report(f"{server.spec.name}: starting a server at {server.spec.address.url} …")
    while waiting:
        for server in list(waiting):
            seconds = time.monotonic() - began
            if server.ended:
                assert server.child is not None
                raise UserError(_did_not_start(server.spec, f"ended with exit code {server.child.returncode}"))
            if probe(server.spec) == "answers":
                report(f"{server.spec.name}: up after {seconds:.0f} s")
                waiting.remove(server)
            elif seconds > START_LIMIT:
                raise UserError(_did_not_start(server.spec, f"does not answer after {START_LIMIT:.0f} s"))
        time.sleep(0.2 if waiting else 0)


def _leave(used: list[Running], report: Report) -> None:
    alone = [(server, lock) for server in used if (lock := _alone(server, report)) is not None]
    for server, _ in alone:
        assert server.process is not None
        signal_group(server.process.pid, signal.SIGTERM)
    for server, lock in alone:
        server.stop()
        report(f"{server.spec.name}: stopped")
        lock.release()


def _alone(server: Running, report: Report) -> FileLock | None:
    """The lock that keeps others from joining a server while it is stopped; None where it is not to be stopped."""
    server.users.release()
    if server.process is None:
        return None
    lock = FileLock(server.users.path, f"stopping {server.spec.name}")
    try:
        return lock.acquire()
    except LockedError:
        report(f"{server.spec.name}: left running for another solrl that uses it, which stops it")
        return None


def _did_not_start(spec: ServerSpec, what: str) -> str:
    log = spec.log
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
    tail = "".join(f"\n  | {line}" for line in lines[-5:])
    return (
        f"{spec.name}: the server {what}. Its log is {log}{tail}\n"
        f"If it can be started by hand, do so and set {spec.url_variable} to its address"
    )


def _file(spec: ServerSpec, kind: str) -> Path:
    # By port, not by home: two homes that use one port share its server.
    return runtime_folder() / f"{spec.slug}-{spec.address.port}.{kind}"


def _note(spec: ServerSpec) -> Path:
    return _file(spec, "json")


def _read_note(spec: ServerSpec) -> tuple[psutil.Process | None, str]:
    """The server that a command of ours started at this address, and the home that it serves."""
    try:
        content = json.loads(_note(spec).read_text(encoding="utf-8"))
        return find_alive(content["pid"], content["created"]), content["home"]
    except (OSError, ValueError, KeyError, TypeError):
        return None, ""
