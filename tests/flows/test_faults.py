"""Servers that die while a run goes on: what is seen, and that nothing is lost or counted twice. Faults are real."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, temporary_settings

from flows import servers
from flows.processes import free_port
from flows.publishing import read_summaries, rebuild_run
from flows.recovery import close_dead_mlflow_runs
from flows.reporting import use_reporter
from flows.servers import ServerSpec, probe
from flows.settings import Settings
from flows.train import train
from solrl_tasks.config.load import load_recipe
from solrl_tasks.stages.reporter import SilentReporter
from solrl_tasks.store.root import Store
from solrl_tasks.store.runs import view_run
from tests.support.contents import run_contents
from tests.support.killing import run_child
from tests.support.postgres import Cluster, cluster, postgres_programs

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
BIN = Path(sys.executable).parent
UP_WITHIN = 240.0
GRACE = 10.0
PASSWORD = "of-a-test"
HANGS = "does not answer (TimeoutError: timed out). What is being computed goes on."


@pytest.fixture(scope="module")
def expected(micro_config: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """Contents of a run of two iterations that nothing disturbs."""
    root = tmp_path_factory.mktemp("whole") / "store"
    run_child(root, "run", load_recipe(micro_config))
    return run_contents(root, "run")


class Server:
    """A real server that can be killed and started again, or stopped so that it takes requests and answers none."""

    def __init__(self, spec: ServerSpec) -> None:
        self.spec = spec
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        for folder in (self.spec.folder, self.spec.log.parent):
            folder.mkdir(parents=True, exist_ok=True)
        with self.spec.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", *self.spec.arguments],
                stdout=log,
                stderr=log,
                env={**os.environ, **self.spec.environment},
                cwd=self.spec.folder,
                start_new_session=True,
            )
        until = time.monotonic() + UP_WITHIN
        while probe(self.spec) != "answers":
            assert self._process.poll() is None, self.spec.log.read_text()
            assert time.monotonic() < until
            time.sleep(0.3)

    def hang(self) -> None:
        self._signal(signal.SIGSTOP)

    def wake(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        os.killpg(self._process.pid, number)

    def kill(self) -> None:
        if self._process is not None:
            self._signal(signal.SIGKILL)
            self._process.wait()
            self._process = None


@contextmanager
def server(spec: ServerSpec, started: bool = True) -> Iterator[Server]:
    made = Server(spec)
    try:
        if started:
            made.start()
        yield made
    finally:
        made.kill()


class Acting(SilentReporter):
    """Does something as a stage begins."""

    def __init__(self, **actions: Callable[[], None]) -> None:
        self._actions = actions
        self.notes: list[str] = []

    def stage_started(self, step: int, stage: str, what: str) -> None:
        if action := self._actions.pop(f"{stage}_{step}", None):
            action()

    def note(self, message: str) -> None:
        self.notes.append(message)


@pytest.mark.usefixtures("prefect_server")
def test_mlflow_is_down_at_the_start_in_the_middle_and_at_the_end(
    micro_config: Path,
    tmp_path: Path,
    free_ports: tuple[int, int],
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    expected: dict[str, object],
):
    monkeypatch.setenv("SOLRL_HOME", str(tmp_path))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{free_ports[1]}")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    settings = Settings.read()
    store = Store.open(settings.store_root, create=True)
    with server(servers.mlflow_server(settings), started=False) as mlflow:
        # Down when the baseline is shown, up for iteration 1, down from iteration 2 on to the end.
        reporter = Acting(explore_1=mlflow.start, explore_2=mlflow.kill)
        with use_reporter(reporter):
            state = train(run_id="run", config=str(micro_config), return_state=True)
        assert state.is_completed(), state.message  # type: ignore[attr-defined]
        down = [note for note in reporter.notes if "MLflow does not show the latest of run" in note]
        assert len(down) == 3, reporter.notes
        assert all("Nothing is lost" in note for note in down)
        assert run_contents(settings.store_root, "run") == expected
        mlflow.start()
        said: list[str] = []
        assert close_dead_mlflow_runs(settings, said.append) == 1
        assert "no process has it open; ended as FINISHED" in said[0]
        rebuilt = rebuild_run(settings, store, "run", "FINISHED")
    assert (rebuilt.replaced, rebuilt.differences) == (None, ())
    assert rebuilt.points == sum(len(s.metrics) + len(s.stderr) for s in read_summaries(view_run(store, "run")))


@pytest.fixture
def settings(tmp_path: Path, free_ports: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Of a Prefect server that the test starts itself; MLflow's runs go to a file."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{free_ports[0]}/api")
    return Settings.read(tmp_path)


@contextmanager
def postgres(folder: Path, after: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Cluster, int]]:
    """A database for Prefect's server at a free port behind another, and that port."""
    port = free_port(after + 1)
    assert port is not None
    with cluster(postgres_programs(), port, PASSWORD, folder / "postgres.log") as database:
        url = f"postgresql+asyncpg://postgres:{PASSWORD}@127.0.0.1:{port}/postgres"
        monkeypatch.setenv("PREFECT_API_DATABASE_CONNECTION_URL", url)
        time.sleep(2)
        yield database, port


@pytest.mark.parametrize("killed", ["prefect", "postgres", "postgres cleanly"])
def test_prefect_or_its_database_is_killed_and_started_again(
    killed: str,
    micro_config: Path,
    tmp_path: Path,
    free_ports: tuple[int, int],
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    expected: dict[str, object],
):
    with ExitStack() as stack:
        if killed.startswith("postgres"):
            database, port = stack.enter_context(postgres(tmp_path, free_ports[1], monkeypatch))
        prefect = stack.enter_context(server(servers.prefect_server(settings)))
        with training(tmp_path, micro_config) as (process, log):
            wait(lambda: "explore-0001" in log() or " explore " in log(), process, log)
            if killed == "postgres":
                crash_database(port)
            elif killed == "postgres cleanly":
                database.stop()
                time.sleep(3)
                database.start()
            else:
                prefect.kill()
                time.sleep(3)
                prefect.start()
            process.wait(UP_WITHIN)
        first = (process.returncode, log())
        with training(tmp_path, micro_config) as (process, log):
            process.wait(UP_WITHIN)
        assert process.returncode == 0, first[1] + log()
    assert run_contents(tmp_path / "store", "run") == expected
    assert first[0] == 0, first[1]


@pytest.mark.parametrize("then", ["another server", "no server"])
def test_prefects_server_is_killed_for_good(
    then: str,
    micro_config: Path,
    tmp_path: Path,
    free_ports: tuple[int, int],
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    expected: dict[str, object],
):
    # 2, 4 and 8 seconds, where 62 are usual.
    monkeypatch.setenv("PREFECT_CLIENT_MAX_RETRIES", "3")
    with (
        server(servers.prefect_server(settings)) as prefect,
        training(tmp_path, micro_config) as (process, log),
    ):
        wait(lambda: "  explore  " in log(), process, log)
        prefect.kill()
        killed = time.monotonic()
        process.wait(UP_WITHIN)
        took = time.monotonic() - killed
    assert process.returncode == 1, log()
    told, ended = "does not answer ([Errno 111] Connection refused). What is being", "error: Prefect's server at "
    assert log().index(told) < log().index(ended), log()
    assert "for about 14 s (PREFECT_CLIENT_MAX_RETRIES)" in log()
    assert "the same command goes on from there" in log().split(ended)[1]
    assert "Traceback" not in log()
    # A bar that is shown just then, and what is told at the end of the iteration: each is tried for 14 seconds.
    assert took < 45, log()
    assert len(view_run(Store(tmp_path / "store"), "run").summaries()) == 2, "the iteration ended, and is not lost"

    monkeypatch.delenv("PREFECT_CLIENT_MAX_RETRIES")
    with ExitStack() as stack:
        if then == "another server":
            monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "other"))
            monkeypatch.setenv("PREFECT_API_URL", f"http://127.0.0.1:{free_ports[1]}/api")
            stack.enter_context(server(servers.prefect_server(Settings.read(tmp_path))))
        process, log = stack.enter_context(training(tmp_path, micro_config))
        process.wait(UP_WITHIN)
    assert process.returncode == 0, log()
    assert ("Prefect: starting a server" in log()) == (then == "no server")
    assert run_contents(tmp_path / "store", "run") == expected


def test_prefects_server_hangs_and_goes_on(
    micro_config: Path, tmp_path: Path, settings: Settings, expected: dict[str, object]
):
    with (
        server(servers.prefect_server(settings)) as prefect,
        training(tmp_path, micro_config) as (process, log),
    ):
        wait(lambda: "  explore  " in log(), process, log)
        hung = time.monotonic()
        prefect.hang()
        wait(lambda: HANGS in log(), process, log)
        assert time.monotonic() - hung < 20, log()
        prefect.wake()
        process.wait(UP_WITHIN)
        assert process.returncode == 0, log()
        assert "Prefect's server answers again, after " in log()
        with temporary_settings({PREFECT_API_URL: settings.prefect.url}), get_client(sync_client=True) as client:
            shown = [run.name for run in client.read_flow_runs()]
    assert sorted(shown) == ["baseline", "iteration-0001", "iteration-0002", "run"], "each once"
    assert run_contents(tmp_path / "store", "run") == expected


def test_prefects_server_hangs_for_good(
    micro_config: Path,
    tmp_path: Path,
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    expected: dict[str, object],
):
    # 2, 4 and 8 seconds between tries, where 62 in all are usual, and 5 to wait for each answer, where 60 are.
    monkeypatch.setenv("PREFECT_CLIENT_MAX_RETRIES", "3")
    monkeypatch.setenv("PREFECT_API_REQUEST_TIMEOUT", "5")
    with server(servers.prefect_server(settings)) as prefect:
        with training(tmp_path, micro_config) as (process, log):
            wait(lambda: "  explore  " in log(), process, log)
            prefect.hang()
            hung = time.monotonic()
            process.wait(UP_WITHIN)
            took = time.monotonic() - hung
        assert process.returncode == 1, log()
        ended = "error: Prefect's server at "
        assert log().index(HANGS) < log().index(ended), log()
        assert "each time may wait 5 s for its answer (PREFECT_API_REQUEST_TIMEOUT)" in log()
        assert "the same command goes on from there" in log().split(ended)[1]
        assert "Traceback" not in log() and "Error logging" not in log()
        # A request under way: 14 s, and four answers waited for. Then 14 s once more, and a farewell to each flow.
        assert took < 70, log()
        monkeypatch.delenv("PREFECT_CLIENT_MAX_RETRIES")
        monkeypatch.delenv("PREFECT_API_REQUEST_TIMEOUT")
        prefect.wake()
        with training(tmp_path, micro_config) as (process, log):
            process.wait(UP_WITHIN)
    assert process.returncode == 0, log()
    assert run_contents(tmp_path / "store", "run") == expected


@pytest.mark.parametrize("fault", ["hangs", "is killed"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_who_stops_a_run_does_not_wait_for_a_silent_server(
    fault: str, number: signal.Signals, micro_config: Path, tmp_path: Path, settings: Settings
):
    with (
        server(servers.prefect_server(settings)) as prefect,
        training(tmp_path, micro_config) as (process, log),
    ):
        wait(lambda: "  explore  " in log(), process, log)
        if fault == "hangs":
            prefect.hang()
        else:
            prefect.kill()
        wait(lambda: "does not answer (" in log(), process, log)
        process.send_signal(number)
        stopped = time.monotonic()
        process.wait(UP_WITHIN)
        took = time.monotonic() - stopped
    assert process.returncode == 130, log()
    assert "goes on where it stopped." in log().splitlines()[-1]
    assert "Traceback" not in log() and "Error logging" not in log()
    assert took < 20, log()


def test_a_server_that_always_answers_500_ends_a_run_that_says_so(
    micro_config: Path,
    tmp_path: Path,
    free_ports: tuple[int, int],
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("PREFECT_CLIENT_MAX_RETRIES", "3")
    with ExitStack() as stack:
        database, _ = stack.enter_context(postgres(tmp_path, free_ports[1], monkeypatch))
        stack.enter_context(server(servers.prefect_server(settings)))
        process, log = stack.enter_context(training(tmp_path, micro_config))
        wait(lambda: "  explore  " in log(), process, log)
        database.stop()
        process.wait(UP_WITHIN)
        assert process.returncode == 1, log()
        ended = log().split("error: Prefect's server at ")[1]
        assert "500 Internal Server Error" in ended and "the same command goes on from there" in ended
        assert "does not answer (503 Service Unavailable)" in log()
        assert "Traceback" not in log()
        database.start()


def test_preemption_ends_a_run_within_its_grace(
    micro_config: Path, tmp_path: Path, free_ports: tuple[int, int], expected: dict[str, object]
):
    ports = ["--prefect-port", str(free_ports[0]), "--mlflow-port", str(free_ports[1])]
    with training(tmp_path, micro_config, *ports) as (process, log):
        wait(lambda: "explore" in log(), process, log)
        began = time.monotonic()
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        took = time.monotonic() - began
    psutil.wait_procs(children, timeout=5)
    left = [child for child in children if child.is_running()]
    assert (process.returncode != 0, left) == (True, []), log()
    assert took < GRACE, log()
    with training(tmp_path, micro_config, *ports) as (process, log):
        process.wait(UP_WITHIN)
    assert process.returncode == 0, log()
    assert run_contents(tmp_path / "store", "run") == expected


def wait(holds: Callable[[], bool], process: "subprocess.Popen[bytes]", log: Callable[[], str]) -> None:
    until = time.monotonic() + UP_WITHIN
    while not holds():
        assert process.poll() is None, log()
        assert time.monotonic() < until, log()
        time.sleep(0.1)


@contextmanager
def training(home: Path, config: Path, *options: str) -> Iterator[tuple["subprocess.Popen[bytes]", Callable[[], str]]]:
    """``solrl train`` in a process of its own, and what it has printed so far."""
    path = home / f"train-{time.monotonic_ns()}.log"
    command = [BIN / "solrl", "train", config, "--run-id", "run", "--home", home, *options]
    with path.open("wb") as log:
        process = subprocess.Popen(command, cwd=home, stdout=log, stderr=log, start_new_session=True)
    try:
        yield process, lambda: path.read_text(errors="replace")
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def crash_database(port: int) -> None:
    """Kill a connection's process: PostgreSQL then drops all others, recovers and goes on."""
    (main,) = [
        process
        for process in psutil.process_iter()
        if process.name() == "postgres" and f"port={port}" in process.cmdline()
    ]
    clients = [child for child in main.children() if "127.0.0.1(" in " ".join(child.cmdline())]
    assert clients
    clients[0].kill()
