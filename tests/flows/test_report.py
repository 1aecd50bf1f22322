"""Reports of runs and studies: from the store alone, by the command line, and at the end of a flow."""

import shutil
from unittest.mock import patch

import pytest
import yaml
from mlflow import MlflowClient

from flows.evaluating import Asked, evaluate_policy
from flows.home import shown_status
from flows.recovery import close_dead_mlflow_runs
from flows.report import draw_or_note, draw_report, run_record
from flows.settings import Settings
from flows.study_publishing import publish_study
from solrl_tasks.config.recipe import Recipe
from solrl_tasks.reports.page import Commands, Page, Section, Table, Text
from solrl_tasks.reports.stored import read_report, report_folder
from solrl_tasks.stages.reporter import SilentReporter
from solrl_tasks.store.errors import UnreachableError
from solrl_tasks.store.pool import Pool
from solrl_tasks.store.root import Store
from solrl_tasks.store.runs import Run, list_runs, view_run

PAGE = Page(
    "A study",
    "The answer.",
    (Section("Figures", (Text("words"), Table("Costs", ("arm", "gain"), (("a", "0.1"),)), Commands(("solrl",)))),),
)


class Told(SilentReporter):
    """Keeps what it was told."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, message: str) -> None:
        self.notes.append(message)


@pytest.fixture
def home(finished, tmp_path):
    """A copy of the finished run that may be written to, without servers."""
    shutil.copytree(finished.home, tmp_path / "home")
    return tmp_path / "home"


@pytest.fixture
def store(home) -> Store:
    return Store.open(home / "store")


@pytest.fixture
def told(monkeypatch) -> Told:
    reporter = Told()
    monkeypatch.setattr("flows.study_publishing.current_reporter", lambda: reporter)
    return reporter


@pytest.fixture
def settings(home, monkeypatch) -> Settings:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{home}/mlflow.db")
    return Settings.read(home)


def test_the_report_of_a_finished_run(home, finished, solrl):
    said = solrl("report", finished.run_id, "--home", home, "--out", home / "copy")
    assert said.code == 0
    folder = home / "store" / "runs" / finished.run_id / "report"
    assert str(folder / "report.html") in said.out.replace("\n", "")
    html = (folder / "report.html").read_text()
    assert f"<h1>Run {finished.run_id}</h1>" in html
    assert 'src="data:image/png;base64,' in html
    copied = {path.name for path in (home / "copy").iterdir()}
    assert copied == {path.name for path in folder.iterdir()} - {"page.json"}
    assert (home / "copy" / "report.html").read_text() == html


def test_the_recipe_beside_it_is_that_of_the_run(store, finished):
    draw_report(store, finished.run_id)
    written = yaml.safe_load((report_folder(store, finished.run_id) / "recipe.yaml").read_text())
    config = view_run(store, finished.run_id).config
    assert Recipe.model_validate(written) == Recipe.model_validate(config)


def test_drawing_it_touches_nothing_else_of_the_store(store, finished):
    def contents() -> dict[str, bytes]:
        paths = (path for path in store.root.rglob("*") if path.is_file() and path.parent.name != "report")
        return {str(path): path.read_bytes() for path in paths}

    before = contents()
    draw_report(store, finished.run_id)
    assert contents() == before


def test_drawn_again_it_is_the_same(store, finished):
    first = draw_report(store, finished.run_id).html.read_bytes()
    shutil.rmtree(report_folder(store, finished.run_id))
    assert draw_report(store, finished.run_id).html.read_bytes() == first


def test_a_run_that_is_not_there_or_has_nothing(home, finished, solrl, store):
    said = solrl("report", "nothing", "--home", home)
    assert said.code == 1
    assert "no run 'nothing'" in said.err
    assert finished.run_id in said.err
    assert solrl("report", "../x", "--home", home).code == 1
    shutil.rmtree(store.runs / finished.run_id / "iterations")
    said = solrl("report", finished.run_id, "--home", home)
    assert said.code == 1
    assert "committed nothing yet" in said.err


def test_a_folder_that_is_a_file(home, finished, solrl):
    (home / "taken").write_text("")
    said = solrl("report", finished.run_id, "--home", home, "--out", home / "taken")
    assert said.code == 1
    assert "is a file" in said.err


def test_a_run_that_stopped_early_is_called_interrupted(store, finished):
    view = view_run(store, finished.run_id)
    last = max(view.summaries())
    shutil.rmtree(view.iteration_dir(last))
    assert run_record(store, view).status == "interrupted"


def test_a_report_that_cannot_be_drawn_fails_no_run(store, finished):
    told = Told()
    with patch("flows.report.training_page", side_effect=RuntimeError("no ink")):
        assert draw_or_note(store, finished.run_id, told.note) is None
    (note,) = told.notes
    assert "no ink" in note
    assert f"solrl report {finished.run_id}" in note
    assert draw_or_note(store, finished.run_id, told.note) is not None


def test_a_pool_that_cannot_be_read_is_named(home, store, finished):
    view = view_run(store, finished.run_id)
    assert not run_record(store, view).unknown
    explored, evaluated = (view.summary(1)["refs"][stage]["key"] for stage in ("explore", "evaluate_pool"))
    (home / "store" / "pools" / explored / "spec.json").write_text("{")
    for record in (home / "store" / "pools" / evaluated / "records").iterdir():
        record.unlink()
    found = run_record(store, view)
    assert {explored, evaluated} <= set(found.unknown)
    assert "spec.json is damaged" in found.unknown[explored]
    assert found.unknown[evaluated] == "1 of its 1 environment record cannot be read"
    page = draw_report(store, finished.run_id).page
    table = next(block for block in page.blocks if isinstance(block, Table) and "origin is not known" in block.caption)
    assert {explored, evaluated} <= {key for key, _ in table.rows}
    lines = [block.provenance.line for block in page.blocks if isinstance(block, Table) and block.provenance]
    assert lines and all(f"where {len(table.rows)} pools of the run came from is not known" in line for line in lines)


def test_a_store_that_does_not_answer_is_no_pool_without_an_origin(store, finished, monkeypatch):
    def silent(*_):
        raise UnreachableError("no answer")

    monkeypatch.setattr(Pool, "load", silent)
    with pytest.raises(UnreachableError):
        run_record(store, view_run(store, finished.run_id))


def test_an_evaluation_has_a_report(home, finished, settings):
    evaluated = evaluate_policy(settings, Asked(finished.run_id), SilentReporter())
    html = (home / "store" / "runs" / evaluated.run_id / "report" / "report.html").read_text()
    assert f"<h1>Evaluation {evaluated.run_id}</h1>" in html
    client = MlflowClient(tracking_uri=settings.mlflow.url)
    (run,) = client.search_runs([experiment.experiment_id for experiment in client.search_experiments()])
    assert "report/report.html" in {entry.path for entry in client.list_artifacts(run.info.run_id, "report")}


def test_a_study_is_kept_and_shown(settings, store, told):
    for _ in range(2):
        publish_study(settings, "study-x", PAGE, {"gain": 0.1}, {"rank": [(2, 0.1), (4, 0.2)]})
    assert told.notes == []
    assert read_report(store, "study-x").page == PAGE
    client = MlflowClient(tracking_uri=settings.mlflow.url)
    (run,) = client.search_runs([client.get_experiment_by_name("solrl-studies").experiment_id])
    assert run.data.metrics == {"gain": 0.1, "rank": 0.2}
    paths = {entry.path for folder in ("report", "tables") for entry in client.list_artifacts(run.info.run_id, folder)}
    assert paths == {"report/report.html", "report/report.md", "tables/02-costs.csv"}


def test_mlflow_that_is_down_is_told_and_made_up_for(home, store, told, solrl, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:1")
    publish_study(Settings.read(home), "study-x", PAGE, {"gain": 0.1})
    (note,) = told.notes
    assert "MLflow does not show study study-x" in note
    assert "solrl track rebuild study-x" in note
    assert read_report(store, "study-x").page == PAGE
    uri = f"sqlite:///{home}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    assert solrl("track", "rebuild", "study-x", "--home", home).code == 0
    client = MlflowClient(tracking_uri=uri)
    (run,) = client.search_runs([client.get_experiment_by_name("solrl-studies").experiment_id])
    assert run.data.metrics == {"gain": 0.1}


def test_the_report_of_a_study_is_drawn_again_from_what_it_kept(settings, store, home, told, solrl):
    publish_study(settings, "study-x", PAGE, {"gain": 0.1})
    folder = report_folder(store, "study-x")
    before = (folder / "report.html").read_bytes()
    (folder / "report.html").unlink()
    assert solrl("report", "study-x", "--home", home).code == 0
    assert (folder / "report.html").read_bytes() == before
    assert read_report(store, "study-x").figures.metrics == {"gain": 0.1}


def test_a_figure_that_is_not_finite_is_refused(settings, told):
    with pytest.raises(ValueError, match="not finite: gain"):
        publish_study(settings, "study-x", PAGE, {"gain": float("nan")})


def test_a_study_is_finished_by_its_report_though_it_commits_no_iteration(settings, store, told):
    def state():
        (info,) = [info for info in list_runs(store) if info.run_id == "study-arms"]
        return shown_status(store, info)

    with Run.open(store, "study-arms", {"iterations": 2}):
        assert state() == "RUNNING"
    assert state() == "KILLED"
    publish_study(settings, "study-arms", PAGE, {"gain": 0.1})
    assert state() == "FINISHED" and not told.notes


def test_a_study_that_died_while_it_was_shown_is_closed_as_finished_and_as_a_study(settings, store, told):
    with Run.open(store, "study-arms", {"iterations": 2}):
        publish_study(settings, "study-arms", PAGE, {"gain": 0.1})
    client = MlflowClient(tracking_uri=settings.mlflow.url)
    everywhere = [experiment.experiment_id for experiment in client.search_experiments()]
    (shown,) = client.search_runs(everywhere)
    client.update_run(shown.info.run_id, status="RUNNING")
    said: list[str] = []
    assert close_dead_mlflow_runs(settings, said.append) == 1 and "ended as FINISHED" in said[0]
    everywhere = [experiment.experiment_id for experiment in client.search_experiments()]
    (after,) = client.search_runs(everywhere)
    assert (after.info.run_id, after.info.status) == (shown.info.run_id, "FINISHED")
