"""The study of what candidates gain, as a flow and on the command line."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from flows.errors import UserError
from flows.gains import Asked, plan_gains, study_gains
from flows.settings import Settings
from flows.theory import theory
from solrl_tasks.reports.stored import has_report, read_report
from solrl_tasks.stages.reporter import SilentReporter
from solrl_tasks.store.root import Store
from tests.flows.conftest import Finished, Said


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("SOLRL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    return Settings.read()


@pytest.mark.slow
@pytest.mark.usefixtures("prefect_server")
def test_the_flow_answers_and_is_paid_for_once(settings: Settings, micro_config: Path):
    asked = {"prompts": 2, "config": str(micro_config), "update_seconds": 0.01}
    planned = theory(**asked, plan=True)
    assert (planned["missing"], planned["blocks"]) == (8, 8)
    first, again = theory(**asked), theory(**asked)
    assert (first["computed"], again["computed"]) == (8, 0)
    assert first["metrics"] == again["metrics"]
    assert first["run_id"] == again["run_id"]
    assert has_report(Store(settings.store_root), first["run_id"])
    assert theory(**asked, plan=True)["missing"] == 0
    ended = theory(**asked, return_state=True)
    assert ended.is_completed() and "candidates" in str(ended.message)
    refused = theory(**{**asked, "prompts": 99}, return_state=True)
    assert "prompts is 99" in str(refused.message)


def test_a_finished_run_is_read_without_computing(solrl: Callable[..., Said], finished: Finished, tmp_path: Path):
    home = Path(shutil.copytree(finished.home, tmp_path / "home"))
    said = solrl("study", "theory", "--run", finished.run_id, "--home", str(home), "--json")
    assert said.code == 0, said.err
    found = json.loads(said.out)
    assert (found["computed"], found["keep"], found["candidates"]) == (0, 4, 8)
    page = read_report(Store(home / "store"), found["run_id"]).page
    assert "1 audited group x" in page.summary
    held = json.loads((home / "store" / "studies" / f"{found['run_id']}.json").read_text())["refs"]
    assert {ref["kind"] for ref in held} == {"pools", "samples"}


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"explored": "abcd"}, "give both keys"),
        ({"run": "x", "explored": "abcd", "reference": "abce"}, "a run, or two pools"),
        ({"run": "x", "prompts": 3, "config": "y"}, "prompts, config: nothing is sampled where run is given"),
        ({"reward": "scene"}, "name explored and reference"),
        ({"run": "x", "keep": 4}, "kept its own number"),
        ({"run": "x", "prices_from": "y"}, "prices of its own"),
        ({"explore_seconds": float("inf")}, "explore_seconds is inf: give a number above 0"),
        ({"threshold": float("nan")}, "threshold is nan: give a number above 0"),
    ],
)
def test_questions_that_contradict_themselves_are_refused(settings: Settings, asked: dict[str, object], words: str):
    for ask in (plan_gains, lambda s, a: study_gains(s, a, SilentReporter())):
        with pytest.raises(UserError, match=words):
            ask(settings, Asked(**asked))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("run", "words"),
    [("nobody", "no run 'nobody'"), ("../x", "cannot be a folder name"), ("done", "its prices are not theirs")],
)
def test_prices_that_are_not_there_are_missed_before_anything_is_sampled(
    solrl: Callable[..., Said], finished: Finished, micro_config: Path, tmp_path: Path, run: str, words: str
):
    home = tmp_path / "home"
    shutil.copytree(finished.home, home)
    more = ("--steps", "3", "--prices-from", run, "--config", micro_config, "--home", home)
    before = sorted((home / "store" / "pools").iterdir())
    for plan in (("--plan",), ()):
        said = solrl("study", "theory", "--prompts", "2", *more, *plan)
        assert (said.code, said.out) == (1, "") and words in said.err
    assert sorted((home / "store" / "pools").iterdir()) == before


def test_a_question_is_asked_again_by_its_command():
    asked = Asked(prompts=2, steps=4, config="my recipe.yaml", explore_seconds=0.5)
    assert asked.command() == "solrl study theory --prompts 2 --steps 4 --config 'my recipe.yaml' --explore-seconds 0.5"
