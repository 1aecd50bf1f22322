"""A study in MLflow: the same once more changes nothing, other figures are never mixed into a run."""

from dataclasses import replace

import pytest
from mlflow import MlflowClient

from solrl_tasks.tracking.mlflow_client import TrackingError
from solrl_tasks.tracking.mlflow_run import SENT, SUPERSEDED
from solrl_tasks.tracking.mlflow_study import EXPERIMENT, StudyRecord, publish_record

RECORD = StudyRecord(
    run_id="study-x",
    store_id="store-1",
    about="# Study x",
    params={"model": {"family": "flux"}, "steps": [2, 4]},
    metrics={"gain": 0.25, "share (best)": 0.5},
    curves={"rank/spearman": [(2, 0.05), (4, 0.26), (6, 0.4)]},
    files={"report/report.html": b"<p>one</p>", "tables/01-costs.csv": b"a,b\n"},
)


@pytest.fixture
def send(uri, tmp_path):
    def publish(record: StudyRecord = RECORD):
        return publish_record(uri, record, tmp_path / "artifacts")

    return publish


def runs(uri: str) -> list:
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name(EXPERIMENT)
    return client.search_runs([experiment.experiment_id], order_by=["attributes.start_time ASC"])


def points(uri: str, run_id: str, name: str) -> list[tuple[int, float]]:
    return [(m.step, m.value) for m in MlflowClient(tracking_uri=uri).get_metric_history(run_id, name)]


def test_figures_curves_settings_and_files_are_there(send, uri, tmp_path):
    shown = send()
    (run,) = runs(uri)
    assert run.info.run_name == "study-x"
    assert run.info.status == "FINISHED"
    assert run.data.params == {"model.family": "flux", "steps": "[2, 4]"}
    assert run.data.metrics == {"gain": 0.25, "share _best_": 0.5, "rank/spearman": 0.4}
    assert points(uri, shown.run_id, "rank/spearman") == [(2, 0.05), (4, 0.26), (6, 0.4)]
    found = {path.name: path.read_bytes() for path in (tmp_path / "artifacts").rglob("*") if path.is_file()}
    assert found == {"report.html": b"<p>one</p>", "01-costs.csv": b"a,b\n"}


def test_the_same_twice_is_once(send, uri):
    first = send()
    before = runs(uri)[0]
    assert send().run_id == first.run_id
    (after,) = runs(uri)
    assert after.to_dictionary() == before.to_dictionary()
    assert points(uri, first.run_id, "gain") == [(0, 0.25)]


def test_what_a_kill_cut_off_is_made_up_for(send, uri, monkeypatch):
    """Killed between the points and the mark, the next publishing sends the same points, which MLflow drops."""
    first = send()
    client = MlflowClient(tracking_uri=uri)
    client.delete_tag(first.run_id, SENT)
    client.delete_tag(first.run_id, "solrl.files")
    assert send().run_id == first.run_id
    assert points(uri, first.run_id, "rank/spearman") == [(2, 0.05), (4, 0.26), (6, 0.4)]
    assert runs(uri)[0].data.tags[SENT] == RECORD.content_digest


@pytest.mark.parametrize(
    "other",
    [
        replace(RECORD, metrics={**RECORD.metrics, "gain": 0.3}),
        replace(RECORD, curves={"rank/spearman": [(2, 0.05), (4, 0.26)]}),
        replace(RECORD, params={"model": {"family": "sana"}}),
        replace(RECORD, files={"report/report.html": b"<p>one</p>"}),
    ],
)
def test_other_figures_get_a_run_of_their_own(send, uri, other):
    first = send()
    second = send(other)
    assert second.run_id != first.run_id
    tags = {run.info.run_id: run.data.tags for run in runs(uri)}
    assert SUPERSEDED in tags[first.run_id]
    assert SUPERSEDED not in tags[second.run_id]
    assert points(uri, first.run_id, "gain") == [(0, 0.25)], "the old one stays as it is"


def test_a_page_drawn_otherwise_is_written_over(send, uri, tmp_path):
    first = send()
    again = send(replace(RECORD, files={**RECORD.files, "report/report.html": b"<p>two</p>"}))
    assert again.run_id == first.run_id
    found = {path.name: path.read_bytes() for path in (tmp_path / "artifacts").rglob("*.html")}
    assert found == {"report.html": b"<p>two</p>"}


def test_two_stores_have_runs_of_their_own(send, uri):
    assert send().run_id != send(replace(RECORD, store_id="store-2")).run_id
    assert not [run for run in runs(uri) if SUPERSEDED in run.data.tags]


def test_two_names_that_mlflow_takes_for_one_are_refused():
    with pytest.raises(ValueError, match="two metrics or curves have one name in MLflow: a_b"):
        replace(RECORD, metrics={"a(b": 1.0}, curves={"a)b": [(1, 1.0)]})


def test_mlflow_that_is_not_there_is_told(tmp_path):
    with pytest.raises(TrackingError, match="does not answer"):
        publish_record("http://127.0.0.1:1", RECORD)
