"""A stored policy measured from outside: by the command line, by the deployment's flow, and as MLflow shows it."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from flows.evaluate import evaluate
from flows.settings import Settings
from solrl_tasks.tracking.mlflow_client import connect
from tests.flows.conftest import Finished, Said

Solrl = Callable[..., Said]
DARKNESS = "tests.support.rewards:darkness"


@pytest.fixture
def home(finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of the test's own with a finished run, and a database for MLflow."""
    shutil.copytree(finished.home, tmp_path / "home")
    monkeypatch.setenv("SOLRL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    return tmp_path / "home"


def shown(run_id: str) -> tuple[dict[str, float], dict[str, str], list[str], str]:
    """Metrics, tags, artifacts and status of the one MLflow run of that name; every metric has one value."""
    with connect(Settings.read().mlflow.url) as client:
        runs = client.search_runs([e.experiment_id for e in client.search_experiments()])
        (run,) = [run for run in runs if run.info.run_name == run_id]
        for name in run.data.metrics:
            assert len(client.get_metric_history(run.info.run_id, name)) == 1, name
        files = [item.path for item in client.list_artifacts(run.info.run_id, "samples")]
    return run.data.metrics, run.data.tags, files, run.info.status


def test_a_policy_is_evaluated_by_command_and_shown_once(solrl: Solrl, home: Path):
    said = solrl("evaluate", "done", "--reward", "colourfulness", "--reward", DARKNESS, "--iteration", 1)
    assert said.code == 0, said.err
    for words in ("done, iteration 1, ema, against the untrained model", "95 % interval", DARKNESS, "% of prompts"):
        assert words in said.out
    again = solrl("evaluate", "done", "--reward", "colourfulness", "--reward", DARKNESS, "--iteration", 1, "--json")
    result = json.loads(again.out)
    metrics, tags, files, status = shown(result["run_id"])
    assert metrics[f"eval/{DARKNESS}"] == result["metrics"][f"eval/{DARKNESS}"]
    assert metrics["eval/gain_colourfulness_se"] == result["stderr"]["eval/gain_colourfulness"]
    assert tags["solrl.evaluates.policy"] == "done, iteration 1, ema"
    assert files == ["samples/iter-0001-heldout.png"]
    assert status == "FINISHED"
    listed = solrl("runs").out
    assert any(line.split()[:2] == [result["run_id"], "evaluation"] for line in listed.splitlines())
    assert "interrupted" not in listed


def test_a_lost_tracker_shows_an_evaluation_again(solrl: Solrl, home: Path, tmp_path: Path):
    run_id = json.loads(solrl("evaluate", "done", "--json").out)["run_id"]
    before = shown(run_id)
    (tmp_path / "mlflow.db").unlink()
    assert solrl("track", "rebuild", run_id).code == 0
    assert shown(run_id) == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nope",), "no run 'nope'"),
        (("done", "--iteration", "9"), "no committed iteration 9: it has [0, 1, 2]"),
        (("done", "--reward", "colourfullness"), "unknown reward 'colourfullness'"),
        (("done", "--prompts", "99"), "evaluate.prompts is 99, but prompts.heldout"),
        (("done", "--heldout", "nowhere.txt"), "nowhere.txt does not exist"),
        (("done", "--against-iteration", "1"), "of which run"),
        (("done", "--actors", "2"), "evaluation of done: actors 2 would have no effect, as workers is inline"),
    ],
)
def test_mistakes_are_told(solrl: Solrl, home: Path, arguments: tuple[str, ...], words: str):
    said = solrl("evaluate", *arguments)
    assert said.code == 1
    assert words in said.err and "Traceback" not in said.err


def test_other_prompts_are_taken_whole_and_may_not_be_trained_on(solrl: Solrl, home: Path, tmp_path: Path):
    (tmp_path / "bench.jsonl").write_text('{"prompt": "a green hill"}\n{"prompt": "a lake"}\n{"prompt": "a moon"}\n')
    said = solrl("evaluate", "done", "--heldout", tmp_path / "bench.jsonl", "--json")
    assert said.code == 0, said.err
    result = json.loads(said.out)
    evaluation = json.loads((home / "store" / result["refs"]["evaluate"]["path"] / "manifest.json").read_text())
    assert evaluation["content"]["content"]["prompts"] == ["a green hill", "a lake", "a moon"]
    (tmp_path / "bench.jsonl").write_text('{"prompt": "a red circle and thing 0"}\n')
    refused = solrl("evaluate", "done", "--heldout", tmp_path / "bench.jsonl")
    assert "share 1 prompt, such as 'a red circle and thing 0'" in refused.err


@pytest.mark.slow
@pytest.mark.usefixtures("prefect_server")
def test_the_flow_evaluates_shows_and_uses_again(home: Path):
    asked = {"run_id": "done", "rewards": ["colourfulness", DARKNESS], "against": "done", "against_iteration": 1}
    first = evaluate(**asked)  # type: ignore[arg-type]
    again = evaluate(**asked)  # type: ignore[arg-type]
    assert again == first
    assert first["metrics"][f"compare/low_{DARKNESS}"] <= first["metrics"][f"eval/gain_{DARKNESS}"]
    metrics, *_ = shown(first["run_id"])
    assert metrics["eval/gain_colourfulness"] == first["metrics"]["eval/gain_colourfulness"]
    refused = evaluate(run_id="done", iteration=9, return_state=True)  # type: ignore[call-overload]
    assert "no committed iteration 9" in str(refused.message)
