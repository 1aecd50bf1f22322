"""Servers start in process groups of their own, are shared by commands, and the last one out stops them."""

import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from flows import lifecycle, servers
from flows.errors import UserError
from flows.lifecycle import running_servers
from flows.processes import free_port, port_taken, runtime_folder
from flows.servers import ServerSpec, probe
from flows.settings import LOOPBACK, Settings
from tests.support.ports import first_port

FAKE = """
import http.server, subprocess, sys
port, body = int(sys.argv[1]), sys.argv[2].encode()
worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(body)
    def log_message(self, *_): pass
http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    first = free_port(first_port())
    assert first is not None
    second = free_port(first)
    return Settings.read(tmp_path / "home", prefect_port=first, mlflow_port=second, environ={})


@pytest.fixture
def fakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Stand-ins that answer as the servers do, each with a worker process that ignores nothing."""
    (tmp_path / "fakeserver.py").write_text(textwrap.dedent(FAKE))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    real_prefect, real_mlflow = servers.prefect_server, servers.mlflow_server

    def fake(make, body: str):
        def build(settings: Settings) -> ServerSpec:
            spec = make(settings)
            return ServerSpec(**{**vars(spec), "arguments": ("fakeserver", str(spec.address.port), body)})

        return build

    monkeypatch.setattr(servers, "prefect_server", fake(real_prefect, "true"))
    monkeypatch.setattr(servers, "mlflow_server", fake(real_mlflow, "3.17.2"))
    return iter(())


def family(pid: int) -> list[psutil.Process]:
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def test_both_start_and_are_stopped_with_all_their_children(settings: Settings, fakes: None):
    told: list[str] = []
    with running_servers(settings, told.append) as started:
        assert [server.spec.name for server in started] == ["Prefect", "MLflow"]
        members = [member for server in started for member in family(server.process.pid)]
        assert len(members) == 4
        assert all(os.getpgid(m.pid) != os.getpgid(0) for m in members)
        assert all(probe(server.spec) == "answers" for server in started)
    psutil.wait_procs(members, timeout=5)
    assert not any(member.is_running() for member in members)
    assert not list(runtime_folder().glob("*.json"))
    assert any("Prefect: up after" in line for line in told)
    assert told[-1] == "MLflow: stopped"


def test_the_last_command_that_uses_a_server_stops_it(settings: Settings, fakes: None):
    told: list[str] = []
    first, second = running_servers(settings, told.append), running_servers(settings, told.append)
    started = first.__enter__()
    joined = second.__enter__()
    assert [server.process for server in joined] == [server.process for server in started]
    assert any("started by another solrl; stopped with the last that uses it" in line for line in told)
    first.__exit__(None, None, None)
    assert told[-1] == "MLflow: left running for another solrl that uses it, which stops it"
    assert probe(servers.prefect_server(settings)) == "answers"
    second.__exit__(None, None, None)
    assert told[-1] == "MLflow: stopped"
    assert probe(servers.prefect_server(settings)) == "silent"
    for server in started:
        server.child.wait()


def test_a_server_that_no_command_started_is_used_and_left_alone(settings: Settings, fakes: None):
    told: list[str] = []
    command = [sys.executable, "-m", "fakeserver", str(settings.prefect.port), "true"]
    other = subprocess.Popen(command, start_new_session=True)
    try:
        while probe(servers.prefect_server(settings)) == "silent":
            pass
        with running_servers(settings, told.append) as used:
            assert [server.process is None for server in used] == [True, False]
        assert any("already running; left as it is" in line for line in told)
        assert other.poll() is None
        assert not any("Prefect: stopped" in line for line in told)
    finally:
        os.killpg(other.pid, signal.SIGKILL)
        other.wait()


def test_servers_of_another_home_are_named_as_such(settings: Settings, fakes: None, tmp_path: Path):
    told: list[str] = []
    elsewhere = settings.model_copy(update={"home": tmp_path / "elsewhere"})
    with running_servers(settings, told.append), running_servers(elsewhere, told.append):
        pass
    assert any(f"for the home {settings.home}, which keeps what it shows" in line for line in told)


def test_servers_of_another_home_are_not_taken_for_its_own(
    settings: Settings, fakes: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Both at the default ports: runs of the second would be served by the first, or by either."""
    ports = settings.prefect.port, settings.mlflow.port
    monkeypatch.setattr("flows.settings.PREFECT_PORT", ports[0])
    monkeypatch.setattr("flows.settings.MLFLOW_PORT", ports[1])
    first, second = (Settings.read(tmp_path / name, environ={}) for name in ("first", "second"))
    told: list[str] = []
    with running_servers(first, told.append, own=True):
        with pytest.raises(UserError) as refused, running_servers(second, told.append, own=True):
            pass
        assert f"was started for the home {first.home}" in str(refused.value)
        assert "--prefect-port" in str(refused.value) and "--mlflow-port" in str(refused.value)
        assert not (second.home / "mlflow").exists()
        chosen = Settings.read(tmp_path / "second", *ports, environ={})
        with running_servers(chosen, told.append, own=True), running_servers(first, told.append, own=True):
            pass
    assert not any(map(port_taken, ports))


def test_an_error_inside_stops_the_servers_too(settings: Settings, fakes: None):
    with pytest.raises(KeyboardInterrupt), running_servers(settings, lambda _: None) as started:
        raise KeyboardInterrupt
    assert all(probe(server.spec) == "silent" for server in started)


def test_a_server_whose_starter_was_killed_is_stopped_by_the_next(settings: Settings, fakes: None, tmp_path: Path):
    body = f"""
    import os, signal
    from pathlib import Path
    from flows import servers
    from flows.lifecycle import running_servers
    from flows.settings import Settings
    ports = {settings.prefect.port}, {settings.mlflow.port}
    settings = Settings.read(Path({str(settings.home)!r}), *ports, {{}})
    real = servers.prefect_server, servers.mlflow_server
    def fake(make, body):
        def build(s):
            arguments = ("fakeserver", str(make(s).address.port), body)
            return servers.ServerSpec(**{{**vars(make(s)), "arguments": arguments}})
        return build
    servers.prefect_server, servers.mlflow_server = fake(real[0], "true"), fake(real[1], "3.17.2")
    with running_servers(settings, print) as started:
        print([server.process.pid for server in started], flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    child = subprocess.run([sys.executable, "-c", textwrap.dedent(body)], capture_output=True, text=True, check=False)
    assert child.returncode == -signal.SIGKILL, child.stderr
    told: list[str] = []
    with running_servers(settings, told.append) as started:
        assert all(server.process is not None and server.child is None for server in started)
        members = [member for server in started for member in family(server.process.pid)]
    _, alive = psutil.wait_procs(members, timeout=5)
    assert not alive


def test_a_port_in_use_by_something_else_names_the_way_out(settings: Settings, fakes: None):
    taken = socket.create_server((LOOPBACK, settings.prefect.port))
    with taken, pytest.raises(UserError) as refused, running_servers(settings, lambda _: None):
        pass
    message = str(refused.value)
    assert f"port {settings.prefect.port}" in message
    assert "--prefect-port" in message and "SOLRL_PREFECT_PORT=" in message


def test_a_port_taken_by_another_web_server_is_not_mistaken_for_ours(settings: Settings, fakes: None, tmp_path: Path):
    command = [sys.executable, "-m", "fakeserver", str(settings.mlflow.port), "<html>"]
    other = subprocess.Popen(command, start_new_session=True)
    try:
        while probe(servers.mlflow_server(settings)) == "silent":
            pass
        with (
            pytest.raises(UserError, match=r"MLflow: port .* is no MLflow server"),
            running_servers(settings, print),
        ):
            pass
        assert other.poll() is None, "what was there before is left alone"
        assert not port_taken(settings.prefect.port), "the Prefect server that had been started is stopped"
    finally:
        os.killpg(other.pid, signal.SIGKILL)
        other.wait()


def test_an_address_elsewhere_that_does_not_answer_is_refused_with_the_remedy(tmp_path: Path):
    env = {"PREFECT_API_URL": "http://127.0.0.2:9/api"}
    with pytest.raises(UserError) as refused, running_servers(Settings.read(tmp_path, environ=env), print):
        pass
    assert "http://127.0.0.2:9/api, named by PREFECT_API_URL" in str(refused.value)
    assert "unset PREFECT_API_URL" in str(refused.value)


def test_a_server_that_ends_at_once_shows_its_log(settings: Settings, fakes: None, monkeypatch: pytest.MonkeyPatch):
    good = servers.prefect_server

    def broken(settings: Settings) -> ServerSpec:
        return ServerSpec(**{**vars(good(settings)), "arguments": ("no_such_module_here",)})

    monkeypatch.setattr(servers, "prefect_server", broken)
    with pytest.raises(UserError) as refused, running_servers(settings, lambda _: None):
        pass
    message = str(refused.value)
    assert "Prefect: the server ended with exit code 1" in message
    assert "No module named no_such_module_here" in message
    assert not port_taken(settings.mlflow.port)


def test_a_server_that_never_answers_is_given_up(settings: Settings, fakes: None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(lifecycle, "START_LIMIT", 0.5)
    good = servers.prefect_server

    def mute(settings: Settings) -> ServerSpec:
        return ServerSpec(
            **{**vars(good(settings)), "arguments": ("timeit", "-n1", "-r1", "import time; time.sleep(60)")}
        )

    monkeypatch.setattr(servers, "prefect_server", mute)
    with pytest.raises(UserError, match="does not answer after"), running_servers(settings, lambda _: None):
        pass


def test_a_tracking_database_needs_no_server(settings: Settings, fakes: None, tmp_path: Path):
    told: list[str] = []
    env = {
        "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/m.db",
        "SOLRL_PREFECT_PORT": str(settings.prefect.port),
    }
    with running_servers(Settings.read(tmp_path, environ=env), told.append) as started:
        assert [server.spec.name for server in started] == ["Prefect"]
    assert any("no server is started" in line for line in told)


def test_servers_listen_on_loopback_only(settings: Settings):
    for spec in (servers.prefect_server(settings), servers.mlflow_server(settings)):
        assert spec.arguments[spec.arguments.index("--host") + 1] == LOOPBACK
        assert spec.environment["DO_NOT_TRACK"] == "true"
