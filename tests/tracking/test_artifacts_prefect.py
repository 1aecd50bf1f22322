"""Against a real Prefect server on a temporary database."""

import pytest
from prefect import flow, get_client, task
from prefect.testing.utilities import prefect_test_harness

from solrl_tasks.stages.outcome import StageOutcome
from solrl_tasks.tracking import artifacts
from solrl_tasks.tracking.artifacts import ProgressReporter, show_iteration

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def server():
    with prefect_test_harness(server_startup_timeout=120):
        yield


def stored():
    with get_client(sync_client=True) as client:
        found = client.request("POST", "/artifacts/filter", json={"sort": "UPDATED_DESC"}).json()
    return {artifact["key"]: artifact for artifact in found}


def test_an_iteration_is_shown_with_its_alarm(history, make_summary):
    notes: list[str] = []
    alarmed = make_summary(4, metrics={"rank/kept_spearman": 0.0, "rank/alarm": 1.0})

    @flow(name="shows")
    def shows():
        show_iteration([*history, alarmed], "cpu", None, notes.append)

    shows()
    assert notes == []
    found = stored()
    assert {"demo-iteration", "demo-stages", "demo-iterations", "demo-rank-alarm"} <= set(found)
    assert found["demo-iteration"]["type"] == "markdown"
    assert found["demo-iterations"]["type"] == "table"


def test_progress_is_told_now_and_then_and_at_the_end(monkeypatch):
    calls: list[float] = []
    real = ProgressReporter._tell

    def count(self, share, key, description):
        calls.append(share)
        real(self, share, key, description)

    monkeypatch.setattr(ProgressReporter, "_tell", count)
    reporter = ProgressReporter("run.B", clock=lambda: 0.0)

    @task
    def explore():
        reporter.stage_started(1, "explore", "")
        for done in range(21):
            reporter.progress(1, "explore", done, 20, "blocks")
        reporter.stage_finished(1, StageOutcome(stage="explore", state="Completed"))

    flow(name="progresses")(explore)()
    assert calls == [0.0, 100.0]
    assert stored()["run-b-explore"]["data"] == 100.0


def test_outside_of_a_task_progress_is_silent():
    ProgressReporter("run-c").progress(1, "explore", 1, 2, "blocks")
    assert "run-c-explore" not in stored()


def test_a_fault_of_prefect_is_a_note(history, monkeypatch):
    def fail(*args, **kwargs):
        raise ConnectionError("server gone")

    monkeypatch.setattr("prefect.artifacts.create_markdown_artifact", fail)
    monkeypatch.setattr("prefect.artifacts.create_progress_artifact", fail)
    notes: list[str] = []

    @task
    def explore():
        reporter = ProgressReporter("run-d")
        reporter.progress(1, "explore", 1, 2, "blocks")
        reporter.progress(1, "explore", 2, 2, "blocks")

    @flow(name="goes on")
    def goes_on():
        explore()
        artifacts.show_iteration(history, "cpu", None, notes.append)
        return "done"

    assert goes_on() == "done"
    assert "server gone" in notes[0]
