"""``solrl up`` with real servers and real deployments, as two shells use it."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest
import torch

from flows.lifecycle import running_servers
from flows.processes import port_taken
from flows.settings import PROJECT, Settings
from solrl_tasks.config.load import load_recipe
from solrl_tasks.stages.iteration import run_all
from solrl_tasks.stages.session import open_session
from solrl_tasks.store.root import Store
from solrl_tasks.store.runs import list_runs
from tests.support.contents import run_contents
from tests.support.killing import run_child

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
BIN = Path(sys.executable).parent


@dataclass
class Shells:
    """Two shells in one folder: one runs ``solrl up``, the other asks for runs."""

    folder: Path
    ports: tuple[int, int]
    up: "subprocess.Popen[bytes] | None" = None

    @property
    def log(self) -> str:
        return (self.folder / "up.log").read_text(errors="replace")

    def start(self, *before: str) -> None:
        """Run it, by a command that runs others if one is given."""
        prefect, mlflow = map(str, self.ports)
        command = [*before, BIN / "solrl", "up", "--prefect-port", prefect, "--mlflow-port", mlflow]
        with (self.folder / "up.log").open("wb") as log:
            self.up = subprocess.Popen(
                command, cwd=self.folder, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        self.wait(lambda: "stops what was started here." in self.log)

    def wait(self, holds: Callable[[], bool], seconds: float = 240.0) -> None:
        """Until something holds; an early end of ``solrl up`` is a failure."""
        until = time.monotonic() + seconds
        while not holds():
            assert self.up is not None
            assert self.up.poll() is None, self.log
            assert time.monotonic() < until, self.log
            time.sleep(0.2)

    def ask(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        env = os.environ | {"PREFECT_API_URL": f"http://127.0.0.1:{self.ports[0]}/api", "COLUMNS": "500"}
        command = [str(BIN / "prefect"), "deployment", "run", *arguments]
        return subprocess.run(
            command, cwd=self.folder, env=env, capture_output=True, text=True, timeout=400, check=False
        )

    def doctor(self) -> str:
        prefect, mlflow = map(str, self.ports)
        command = [str(BIN / "solrl"), "doctor", "--prefect-port", prefect, "--mlflow-port", mlflow]
        return subprocess.run(command, cwd=self.folder, capture_output=True, text=True, timeout=200, check=True).stdout

    def flow_processes(self) -> list[psutil.Process]:
        assert self.up is not None
        children = psutil.Process(self.up.pid).children()
        return [child for child in children if "prefect.engine" in child.cmdline()]


def kill(processes: list[psutil.Process]) -> None:
    assert processes
    for process in processes:
        process.kill()
    psutil.wait_procs(processes, timeout=20)


@pytest.fixture
def shells(tmp_path: Path, free_ports: tuple[int, int]) -> Iterator[Shells]:
    shells = Shells(tmp_path, free_ports)
    yield shells
    if shells.up is not None and shells.up.poll() is None:
        shells.up.send_signal(signal.SIGTERM)
        shells.up.wait(60)


def test_up_serves_refuses_resumes_and_stops_all_that_it_started(shells: Shells, micro_config: Path):
    # As the background of a script has it: Ctrl-C is not for it.
    shells.start("env", "--ignore-signal=INT")
    assert shells.up is not None
    assert f"`kill {shells.up.pid}` stops what was started here." in shells.log
    started = psutil.Process(shells.up.pid).children(recursive=True)
    assert len(started) >= 3, "Prefect, MLflow and its worker"

    refused = shells.ask("solrl/train", "-p", "keep=1")
    assert refused.returncode == 1
    assert "'keep'. Failure reason: 1 is less than the minimum of 2" in refused.stdout + refused.stderr
    refused = shells.ask("solrl/train", "-p", "keeep=24")
    assert refused.returncode == 1
    assert "not found on the deployment: 'keeep'" in refused.stdout + refused.stderr

    parameters = ["-p", f"config={micro_config}", "-p", "run_id=killed", "-p", "iterations=3"]
    shells.ask("solrl/train", *parameters)
    shells.wait(lambda: "step 1: select Completed" in shells.log)
    kill(shells.flow_processes())
    (killed,) = list_runs(Store(shells.folder / ".solrl" / "store"))
    assert killed.status == "interrupted"

    again = shells.ask("solrl/train", *parameters, "--watch")
    assert again.returncode == 0, again.stdout + shells.log
    (resumed,) = list_runs(Store(shells.folder / ".solrl" / "store"))
    assert (resumed.status, resumed.committed) == ("finished", 4)

    shells.up.send_signal(signal.SIGTERM)
    assert shells.up.wait(60) == 0
    psutil.wait_procs(started, timeout=5)
    assert not [process for process in started if process.is_running()]
    assert not any(map(port_taken, shells.ports))
    assert "Traceback" not in shells.log.split("Stopping")[-1]


def test_a_run_cancelled_in_the_ui_makes_room_for_the_next_and_goes_on(shells: Shells, micro_config: Path):
    shells.start()
    assert shells.up is not None
    parameters = ["-p", f"config={micro_config}", "-p", "run_id=cancelled", "-p", "iterations=2"]
    shells.ask("solrl/train", *parameters)
    shells.wait(lambda: "step 1: select Completed" in shells.log)
    api = f"http://127.0.0.1:{shells.ports[0]}/api/flow_runs"
    (shown,) = httpx.post(f"{api}/filter", json={"flow_runs": {"name": {"any_": ["cancelled"]}}}, timeout=60).json()
    # What the button sends.
    state = {"state": {"type": "CANCELLING", "name": "Cancelling"}}
    httpx.post(f"{api}/{shown['id']}/set_state", json=state, timeout=60).raise_for_status()
    shells.wait(lambda: httpx.get(f"{api}/{shown['id']}", timeout=60).json()["state"]["type"] == "CANCELLED")
    shells.wait(lambda: not shells.flow_processes())
    root = shells.folder / ".solrl" / "store"
    (info,) = list_runs(Store(root))
    assert info.status == "interrupted"

    other = ["-p", f"config={micro_config}", "-p", "run_id=other", "-p", "iterations=1"]
    assert shells.ask("solrl/train", *other, "--watch").returncode == 0, shells.log
    assert shells.ask("solrl/train", *parameters, "--watch").returncode == 0, shells.log
    run_child(shells.folder / "whole", "run", load_recipe(micro_config))
    assert run_contents(root, "cancelled") == run_contents(shells.folder / "whole", "run")


def test_after_a_power_cut_the_next_up_goes_on_and_stops_what_was_left(shells: Shells, micro_config: Path):
    shells.start()
    assert shells.up is not None
    parameters = ["-p", f"config={micro_config}", "-p", "run_id=cut", "-p", "iterations=2"]
    shells.ask("solrl/train", *parameters)
    shells.wait(lambda: "step 1: select Completed" in shells.log)
    flows = shells.flow_processes()
    shells.up.kill()
    shells.up.wait()
    kill(flows)

    said = shells.doctor()
    assert "run 'cut' is shown as Running but its process is gone; marked as Crashed" in said
    assert "cut: interrupted; the same run id goes on where it stopped" in said
    assert "\n  none" in shells.doctor()

    shells.start()
    assert shells.log.count("started by another solrl") == 2
    assert "Ctrl-C stops what was started here." in shells.log
    again = shells.ask("solrl/train", *parameters, "--watch")
    assert again.returncode == 0, again.stdout + shells.log
    os.killpg(shells.up.pid, signal.SIGINT)
    assert shells.up.wait(60) == 0
    assert not any(map(port_taken, shells.ports))


def test_up_whose_server_is_killed_ends_with_its_run_and_the_next_goes_on(shells: Shells, micro_config: Path):
    shells.start()
    assert shells.up is not None
    parameters = ["-p", f"config={micro_config}", "-p", "run_id=lost", "-p", "iterations=2"]
    shells.ask("solrl/train", *parameters)
    shells.wait(lambda: "step 1: select Completed" in shells.log)
    flows = shells.flow_processes()
    assert flows
    children = psutil.Process(shells.up.pid).children()
    (prefect,) = [child for child in children if {"prefect", "server"} <= set(child.cmdline())]
    os.killpg(prefect.pid, signal.SIGKILL)
    # Nothing is tried for a minute each: the server that ended is its own.
    assert shells.up.wait(40) == 1, shells.log
    assert shells.log.count("Prefect: the server ended by itself") == 2, "at once, and as the last word"
    assert "error: Prefect: the server ended by itself" in shells.log.splitlines()[-1]
    assert "Traceback" not in shells.log and "Error logging" not in shells.log, "of its threads and of the run's"
    assert "`solrl up` starts it again, and runs go on by their run ids" in shells.log
    assert not [flow for flow in flows if flow.is_running()]
    assert not any(map(port_taken, shells.ports))

    root = shells.folder / ".solrl" / "store"
    (info,) = list_runs(Store(root))
    assert info.status in ("interrupted", "finished")
    shells.start()
    again = shells.ask("solrl/train", *parameters, "--watch")
    assert again.returncode == 0, again.stdout + shells.log
    run_child(shells.folder / "whole", "run", load_recipe(micro_config))
    assert run_contents(root, "lost") == run_contents(shells.folder / "whole", "run")


def test_a_run_of_ray_actors_whose_flow_is_killed_goes_on_and_ends_as_one_of_a_single_device(
    shells: Shells, micro_config: Path, monkeypatch: pytest.MonkeyPatch
):
    pytest.importorskip("ray")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("RAY_DEFAULT_OBJECT_STORE_MEMORY_PROPORTION", "0.02")
    shells.start()
    parameters = ["-p", f"config={micro_config}", "-p", "run_id=spread", "-p", "iterations=2"]
    parameters += ["-p", "workers=ray", "-p", "actors=2"]
    shells.ask("solrl/train", *parameters)
    shells.wait(lambda: "step 1: select Completed" in shells.log)
    flows = shells.flow_processes()
    # Ray's agents, which compute nothing, take a minute or two to notice.
    crew = [one for flow in flows for one in flow.children(recursive=True) if "Agent" not in one.name()]
    assert sum("DeviceActor" in one.name() for one in crew) == 2, crew
    kill(flows)
    _, alive = psutil.wait_procs(crew, timeout=60)
    assert alive == []
    root = shells.folder / ".solrl" / "store"
    (info,) = list_runs(Store(root))
    assert info.status == "interrupted"

    assert shells.ask("solrl/train", *parameters, "--watch").returncode == 0, shells.log
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with open_session(shells.folder / "whole", "run", load_recipe(micro_config)) as session:
        list(run_all(session))
    torch.set_num_threads(threads)
    assert run_contents(root, "spread") == run_contents(shells.folder / "whole", "run")


def test_the_long_form_deploys_and_its_worker_runs(shells: Shells, micro_config: Path, monkeypatch: pytest.MonkeyPatch):
    """``prefect.yaml`` with a process work pool, where nothing else serves the same deployments; and a pool of its own
    for another kind of hardware, which the same flow is deployed to under another name."""
    settings = Settings.read(shells.folder / "servers", *shells.ports)
    monkeypatch.setenv("PREFECT_API_URL", settings.prefect.url)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", settings.mlflow.url)
    monkeypatch.setenv("SOLRL_HOME", str(shells.folder / "elsewhere"))
    monkeypatch.setenv("PWD", str(PROJECT))
    with running_servers(settings, print):
        call("work-pool", "create", "solrl-local", "--type", "process")
        call("--no-prompt", "deploy", "--all")
        call("work-pool", "create", "solrl-h200", "--type", "process")
        where = ["--pool", "solrl-h200", "--job-variable", f"working_dir={PROJECT}"]
        call("--no-prompt", "deploy", "flows.train.train", "--name", "h200", *where)
        found = httpx.post(f"{settings.prefect.url}/deployments/filter", json={}).json()
        pools = {(deployment["name"], deployment["work_pool_name"]) for deployment in found}
        assert pools == {("train", "solrl-local"), ("default", "solrl-local"), ("h200", "solrl-h200")}
        with worker(shells.folder / "worker.log"):
            asked = ["-p", f"config={micro_config}", "-p", "run_id=pool", "-p", "iterations=1"]
            done = shells.ask("solrl/train", *asked, "--watch")
        log = (shells.folder / "worker.log").read_text()
    assert done.returncode == 0, done.stdout + log
    (run,) = list_runs(Store(shells.folder / "elsewhere" / "store"))
    assert (run.run_id, run.status) == ("pool", "finished")


def call(*arguments: str) -> None:
    done = subprocess.run(
        [BIN / "prefect", *arguments], cwd=PROJECT, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@contextmanager
def worker(log: Path) -> Iterator[None]:
    command = [BIN / "prefect", "worker", "start", "--pool", "solrl-local", "--limit", "1"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=PROJECT, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(60)
