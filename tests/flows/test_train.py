"""The flows on a real Prefect server: what it shows of a run, of one that is started again, and of one that died."""

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterFlowRunId, FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import State
from prefect.states import Pending, Running

from flows.presence import find_absent, present
from flows.recovery import close_dead_flow_runs, close_dead_mlflow_runs
from flows.settings import Settings
from flows.train import train
from solrl_tasks.store.root import Store
from solrl_tasks.store.runs import list_runs
from solrl_tasks.tracking.mlflow_client import connect

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("prefect_server")]


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("SOLRL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    return Settings.read()


def run(**parameters: object) -> State:
    return train(**parameters, return_state=True)  # type: ignore[arg-type, return-value]


def children(state: State) -> dict[str, str]:
    """Names of the iteration flows and of their tasks, with the names of their states."""
    found = {}
    with get_client(sync_client=True) as client:
        parent = client.read_flow_run(state.state_details.flow_run_id)
        for flow_run in client.read_flow_runs():
            if flow_run.parent_task_run_id is None or flow_run.start_time < parent.start_time:
                continue
            found[flow_run.name] = flow_run.state.name
            tasks = FlowRunFilter(id=FlowRunFilterId(any_=[flow_run.id]))
            for task in client.read_task_runs(flow_run_filter=tasks):
                found[task.name] = task.state.name
    return found


def mlflow_points(settings: Settings) -> list[tuple[str, int, float]]:
    with connect(settings.mlflow.url) as client:
        runs = client.search_runs([e.experiment_id for e in client.search_experiments()])
        assert len(runs) == 1
        assert runs[0].info.status == "FINISHED"
        history = [p for name in runs[0].data.metrics for p in client.get_metric_history(runs[0].info.run_id, name)]
    return sorted((point.key, point.step, point.value) for point in history)


def test_a_run_is_shown_and_started_again_is_reused(settings: Settings, micro_config: Path):
    state = run(run_id="one", config=str(micro_config))
    assert state.is_completed(), state.message
    assert state.result()["run_id"] == "one"
    shown = children(state)
    assert {"baseline", "iteration-0001", "iteration-0002"} <= set(shown)
    assert shown["explore-0001"] == "Completed"
    assert shown["audit-0001"] == "Completed"
    first = mlflow_points(settings)
    assert ("reward/bf16", 2) in {point[:2] for point in first}

    again = run(run_id="one", config=str(micro_config))
    assert again.is_completed()
    shown = children(again)
    assert {shown[name] for name in ("baseline", "iteration-0001", "iteration-0002")} == {"Reused"}
    assert mlflow_points(settings) == first
    assert find_absent(settings) == []

    other = run(run_id="two", config=str(micro_config), iterations=1, keep=6)
    assert other.is_completed(), other.message
    shown = children(other)
    assert shown["explore-0001"] == "Reused", "another keep needs no exploration"
    assert shown["regenerate-0001"] == "Completed"


def test_artifacts_stand_beside_the_iteration(settings: Settings, micro_config: Path):
    state = run(run_id="art", config=str(micro_config), iterations=1)
    with get_client(sync_client=True) as client:
        flow_runs = [
            r for r in client.read_flow_runs() if r.name == "iteration-0001" and r.parameters["run_id"] == "art"
        ]
        mine = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[flow_runs[0].id]))
        keys = {artifact.key for artifact in client.read_artifacts(artifact_filter=mine)}
    assert state.is_completed()
    assert keys >= {"art-iteration", "art-stages", "art-iterations"}


def test_a_run_ends_with_its_report(settings: Settings, micro_config: Path):
    state = run(run_id="told", config=str(micro_config), iterations=1)
    assert "<h1>Run told</h1>" in Path(state.result()["report"]).read_text("utf-8")
    with get_client(sync_client=True) as client:
        mine = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[state.state_details.flow_run_id]))
        artifacts = {artifact.key: artifact.data for artifact in client.read_artifacts(artifact_filter=mine)}
    assert str(artifacts["told-report"]).startswith("# Run told")
    with connect(settings.mlflow.url) as client:
        (shown,) = client.search_runs([e.experiment_id for e in client.search_experiments()])
        assert "report/report.html" in {entry.path for entry in client.list_artifacts(shown.info.run_id, "report")}


def test_a_report_that_cannot_be_drawn_fails_no_run(
    settings: Settings, micro_config: Path, monkeypatch: pytest.MonkeyPatch
):
    def dry(record: object) -> None:
        raise RuntimeError("no ink")

    monkeypatch.setattr("flows.report.training_page", dry)
    state = run(run_id="dry", config=str(micro_config), iterations=1)
    assert state.is_completed(), state.message
    assert state.result()["report"] == ""
    assert not (settings.store_root / "runs" / "dry" / "report").exists()
    assert mlflow_points(settings)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"config": "nowhere.yaml"}, "config file nowhere.yaml does not exist"),
        ({"keep": 8, "candidates": 4}, "select.keep is 8, more than explore.candidates (4)"),
        ({"prompts": 99}, "prompts.per_iteration is 99, but prompts.train"),
    ],
)
def test_what_cannot_be_run_fails_in_words(
    settings: Settings, micro_config: Path, parameters: dict[str, object], words: str
):
    state = run(**{"run_id": "bad", "config": str(micro_config), **parameters})
    assert state.is_failed()
    assert words in str(state.message)
    assert not (settings.store_root / "runs" / "bad").exists()


def test_the_same_run_id_with_another_recipe_is_refused(settings: Settings, micro_config: Path):
    assert run(run_id="same", config=str(micro_config), iterations=1).is_completed()
    state = run(run_id="same", config=str(micro_config), iterations=1, lr=0.5)
    assert state.is_failed()
    assert "update.optimizer.lr: 0.01 -> 0.5" in str(state.message)
    assert run(run_id="same", config=str(micro_config), iterations=2).is_completed(), "iterations may grow"


def test_a_run_without_a_name_gets_one(settings: Settings, micro_config: Path):
    state = run(config=str(micro_config), iterations=1)
    name = state.result()["run_id"]
    assert name.startswith("micro-20")
    assert [info.run_id for info in list_runs(Store(settings.store_root))] == [name]


@pytest.fixture
def dead_flow_run(settings: Settings) -> Iterator[UUID]:
    """A flow run that is Running on the server while its process was killed."""
    with get_client(sync_client=True) as client:
        flow_run = client.create_flow_run(train, parameters={"config": "x.yaml"}, state=Pending())
        client.set_flow_run_state(flow_run.id, Running(), force=True)
    code = f"""
    import os, signal
    from flows.presence import present
    from flows.settings import Settings
    with present(Settings.read(), {str(flow_run.id)!r}, "dead"):
        os.kill(os.getpid(), signal.SIGKILL)
    """
    child = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], env=os.environ, check=False)
    assert child.returncode == -signal.SIGKILL
    return iter([flow_run.id])


def test_a_flow_run_whose_process_was_killed_is_closed_after_saying_so(
    settings: Settings, dead_flow_run: Iterator[UUID]
):
    told: list[str] = []
    flow_run_id = next(dead_flow_run)
    assert close_dead_flow_runs(settings, told.append) == 1
    assert "its process is gone; marked as Crashed" in told[0]
    with get_client(sync_client=True) as client:
        assert client.read_flow_run(flow_run_id).state.is_crashed()
    assert close_dead_flow_runs(settings, told.append) == 0


def test_a_flow_run_with_a_living_process_is_left_alone(settings: Settings):
    with get_client(sync_client=True) as client:
        flow_run = client.create_flow_run(train, parameters={"config": "x.yaml"}, state=Pending())
        client.set_flow_run_state(flow_run.id, Running(), force=True)
        with present(settings, str(flow_run.id), "alive"):
            assert close_dead_flow_runs(settings, print) == 0
        assert client.read_flow_run(flow_run.id).state.is_running()


def test_mlflow_runs_that_nobody_has_open_are_ended(settings: Settings, micro_config: Path):
    assert run(run_id="m", config=str(micro_config), iterations=1).is_completed()
    with connect(settings.mlflow.url) as client:
        (shown,) = client.search_runs([e.experiment_id for e in client.search_experiments()])
        client.update_run(shown.info.run_id, status="RUNNING")
    told: list[str] = []
    assert close_dead_mlflow_runs(settings, told.append) == 1
    assert "no process has it open; ended as FINISHED" in told[0]
    assert json.dumps(mlflow_points(settings))
    assert close_dead_mlflow_runs(settings, told.append) == 0
