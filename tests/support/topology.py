"""The services of docker/compose.yaml as processes of this machine, without an engine.

Commands, variables, health checks and conditions are those of the compose file and the Dockerfile. Only what a
container gives is put in its place: names of services become the loopback address, their ports free ones, and ``/data``
and ``/tmp`` folders of the test. The image of PostgreSQL is a cluster made here, by the same script.
"""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from flows.processes import free_port
from flows.settings import PROJECT
from tests.support.compose import SECRETS, read_compose
from tests.support.dockerfile import Dockerfile, service_target
from tests.support.ports import first_port
from tests.support.postgres import cluster, postgres_programs

PORTS = {"database": 5432, "prefect": 4200, "mlflow": 5000, "worker": 8080}
BIN = Path(sys.executable).parent
HEALTHY_WITHIN = 240.0


@dataclass
class Topology:
    """All services, started in the order that the file asks for and stopped in the reverse."""

    folder: Path
    env: Mapping[str, str] = field(default_factory=lambda: SECRETS)
    services: dict[str, Any] = field(default_factory=dict)
    ports: dict[str, int] = field(default_factory=dict)
    processes: "dict[str, subprocess.Popen[bytes]]" = field(default_factory=dict)
    started: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Self:
        self.programs = postgres_programs()
        self.services = read_compose(self.env)["services"]
        self.dockerfile = Dockerfile()
        above = first_port()
        for service in PORTS:
            above = self.ports[service] = free_port(above) or 0
            assert above
        with ExitStack() as self.started:
            self.up()
            self.started = self.started.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.started.close()

    def up(self) -> None:
        """Start every service once what it depends on is as it must be."""
        waiting = list(self.services)
        while waiting:
            ready = next(name for name in waiting if not set(self.depends(name)) & set(waiting))
            for other, condition in self.depends(ready).items():
                self.wait(other, condition)
            self.start(ready)
            waiting.remove(ready)
        self.wait("worker", "service_healthy")

    def depends(self, name: str) -> dict[str, str]:
        return {other: how["condition"] for other, how in self.services[name].get("depends_on", {}).items()}

    def start(self, name: str) -> None:
        if name == "database":
            password = self.env["SOLRL_POSTGRES_PASSWORD"]
            self.started.enter_context(cluster(self.programs, self.ports[name], password, self.log(name)))
            self.wait(name, "service_healthy")
            self.make_databases()
            return
        command = self.services[name].get("command") or self.dockerfile.command(service_target(self.services[name]))
        with self.log(name).open("wb") as log:
            self.processes[name] = subprocess.Popen(
                [self.here(name, part) for part in command],
                cwd=self.workplace(name),
                env=self.environment(name),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.started.callback(self.stop, name)

    def wait(self, name: str, condition: str) -> None:
        """Until a condition of the compose file holds."""
        until = time.monotonic() + HEALTHY_WITHIN
        while not self.holds(name, condition):
            assert time.monotonic() < until, f"{name} is not {condition}\n{self.said(name)}"
            time.sleep(0.5)

    def holds(self, name: str, condition: str) -> bool:
        process = self.processes.get(name)
        if condition == "service_completed_successfully":
            assert process is not None
            assert process.wait(HEALTHY_WITHIN) == 0, self.said(name)
            return True
        assert condition == "service_healthy"
        assert process is None or process.poll() is None, self.said(name)
        service = self.services[name]
        test = service["healthcheck"]["test"][1:] if "healthcheck" in service else None
        check = test or self.dockerfile.health(service_target(service))
        command = [self.here(name, part) for part in check]
        done = subprocess.run(command, env=self.environment(name), capture_output=True, timeout=60, check=False)
        return done.returncode == 0

    def make_databases(self) -> None:
        """What the image does with a script in its folder of scripts."""
        (script,) = [v["source"] for v in self.services["database"]["volumes"] if v["type"] == "bind"]
        env = self.environment("database") | {"PGHOST": "127.0.0.1", "PGPORT": str(self.ports["database"])}
        env |= {"POSTGRES_USER": "postgres", "PGPASSWORD": env["POSTGRES_PASSWORD"]}
        done = subprocess.run([script], env=env, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr

    def stop(self, name: str) -> None:
        """Ask a service to end, as ``docker compose stop`` would; one that does not in its time is a failure."""
        process = self.processes[name]
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    def environment(self, name: str) -> dict[str, str]:
        """What a container would have: its image's variables, the service's, and nothing of this process's."""
        service = self.services[name]
        image = self.dockerfile.environment(service_target(service)) if "build" in service else {}
        given = {key: value for key, value in service["environment"].items() if value is not None}
        env = {key: self.here(name, value) for key, value in {**image, **given}.items()}
        env = {key: "127.0.0.1" if key.endswith("_HOST") else value for key, value in env.items()}
        kept = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"), "HF_HUB_OFFLINE": "1"}
        path = f"{BIN}:{self.programs}:{os.environ['PATH']}"
        return {**env, **kept, "PATH": path, "TMPDIR": str(self.place(name, "tmp")), "LANG": "C.UTF-8"}

    def here(self, name: str, text: str) -> str:
        """A part of a command or a value of a variable, with what is of this machine in the place of a container's."""
        text = text.replace("0.0.0.0", "127.0.0.1")
        for service, port in PORTS.items():
            text = re.sub(rf"\b{service}:{port}\b", f"127.0.0.1:{port}", text)
            text = re.sub(rf"\b{port}\b", str(self.ports[service]), text)
        text = re.sub(r"(?<![\w./])/app\b", str(PROJECT), text)
        return re.sub(r"(?<![\w./])/(data|tmp)\b", lambda found: str(self.place(name, found[1])), text)

    def place(self, name: str, kind: str) -> Path:
        """What a volume or a tmpfs of a service is here. Services that share a volume share no folder here."""
        folder = self.folder / name / kind
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def workplace(self, name: str) -> Path:
        """The working directory: the project where the image has it, else a folder that must stay empty."""
        return PROJECT if service_target(self.services[name]).startswith("worker") else self.place(name, "app")

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def said(self, name: str) -> str:
        return self.log(name).read_text(errors="replace")[-6000:]

    def execute(self, name: str, *command: str) -> "subprocess.CompletedProcess[str]":
        """``docker compose exec``: another command beside a service's, as it is given."""
        return subprocess.run(
            command,
            cwd=self.workplace(name),
            env=self.environment(name) | {"COLUMNS": "500"},
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self.ports[name]}"
