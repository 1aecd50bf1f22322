import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import closing

import pytest
from mlflow import MlflowClient

from solrl_tasks.tracking.mlflow_files import RunFiles
from solrl_tasks.tracking.mlflow_run import SUPERSEDED, publish, publish_or_note
from solrl_tasks.tracking.points import points
from solrl_tasks.tracking.rebuild import compare, rebuild


def test_an_empty_mlflow_is_filled_with_the_same_history(tmp_path, uri, empty_database, facts, history):
    lived, empty = uri, f"sqlite:///{tmp_path}/empty.db"
    (tmp_path / "empty.db").write_bytes(empty_database)
    for count in range(1, len(history) + 1):
        publish(history[:count], facts, lived, artifact_root=tmp_path)
    made = rebuild(history, facts, empty, artifact_root=tmp_path)
    assert made.replaced is None
    assert made.points == sum(len(points(summary)) for summary in history)
    ours, theirs = MlflowClient(tracking_uri=empty), MlflowClient(tracking_uri=lived)
    (old,) = theirs.search_runs(["1"])
    new = ours.get_run(made.run.run_id)
    assert new.data.params == old.data.params
    assert new.data.metrics == old.data.metrics
    assert new.info.start_time == old.info.start_time
    for name in new.data.metrics:
        assert values(ours, new, name) == values(theirs, old, name)


def values(client, run, name):
    return [(m.step, m.value, m.timestamp) for m in client.get_metric_history(run.info.run_id, name)]


def test_what_is_complete_stays(tmp_path, uri, facts, history):
    run = publish(history, facts, uri, status="FINISHED", artifact_root=tmp_path)
    made = rebuild(history, facts, uri, artifact_root=tmp_path)
    assert (made.run, made.replaced) == (run, None)


def test_foreign_values_are_found_and_set_aside(tmp_path, uri, facts, history):
    run = publish(history, facts, uri, artifact_root=tmp_path)
    client = MlflowClient(tracking_uri=uri)
    client.log_metric(run.run_id, "eval/scene", 9.0, history[2].timestamp_ms, 2)
    assert compare(history, run) == ("eval/scene of step 2 is 9.0, which the store does not say",)
    made = rebuild(history, facts, uri, artifact_root=tmp_path)
    assert made.replaced == run.run_id != made.run.run_id
    assert compare(history, made.run) == ()
    assert SUPERSEDED in client.get_run(run.run_id).data.tags


def test_lost_values_are_found(tmp_path, uri, facts, history, make_summary):
    run = publish(history, facts, uri, artifact_root=tmp_path)
    found = compare([*history, make_summary(4)], run)
    assert found[0].endswith("of step 4 is missing")
    assert found[-1].startswith("and ")


@pytest.fixture
def server(tmp_path):
    """A real MLflow server on a free port, stopped with all its workers."""
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{tmp_path}/s.db", "--artifacts-destination", str(tmp_path / "art")]
    environment = os.environ | {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
    with (tmp_path / "server.log").open("w") as log:
        child = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
    url = f"http://127.0.0.1:{port}"
    try:
        _wait(url, child, tmp_path)
        yield url
    finally:
        os.killpg(child.pid, signal.SIGTERM)
        try:
            child.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait(20)


def _wait(url, child, tmp_path):
    for _ in range(240):
        assert child.poll() is None, (tmp_path / "server.log").read_text()
        try:
            urllib.request.urlopen(f"{url}/health", timeout=2).close()
            return
        except OSError:
            time.sleep(0.5)
    raise AssertionError((tmp_path / "server.log").read_text())


@pytest.mark.slow
def test_against_a_server(server, tmp_path, facts, make_summary, iteration_folder):
    history = [make_summary(0), *(make_summary(step, images=["grid.png"]) for step in (1, 2, 3))]
    adapter = tmp_path / "adapter"
    adapter.mkdir()
    (adapter / "pytorch_lora_weights.safetensors").write_bytes(b"weights")
    files = RunFiles(iteration_folder, (3, adapter))
    notes: list[str] = []
    first = publish_or_note(notes.append, history[:2], facts, server, files)
    run = publish_or_note(notes.append, history, facts, server, files, "FINISHED")
    assert (notes, run) == ([], first)
    assert compare(history, run) == ()
    with urllib.request.urlopen(run.image_url("samples/iter-0003.png"), timeout=20) as response:
        assert response.read() == (iteration_folder(3) / "grid.png").read_bytes()
        assert response.headers["Content-Type"] == "image/png"
    made = rebuild(history, facts, server, files)
    assert (made.run.run_id, made.replaced) == (run.run_id, None)
