"""The study of ranks from outside: by the command line, by the deployment's flow, and as MLflow shows it."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prefect.utilities.schema_tools.validation import ValidationError, validate

from flows.deployments import make_deployments
from flows.home import study_id
from flows.rank_fidelity import rank_fidelity
from flows.ranking import Asked
from flows.settings import Settings
from solrl_tasks.store.root import Store, check_name
from solrl_tasks.store.runs import view_run
from solrl_tasks.studies.rank_results import read_result
from solrl_tasks.tracking.mlflow_client import connect
from tests.flows.conftest import Said

Solrl = Callable[..., Said]
STUDY = ("study", "rank-fidelity", "--steps", "1,2", "--engines", "bf16,nvfp4-emulated", "--references", "3")


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("SOLRL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    return Settings.read()


def shown(settings: Settings, run_id: str) -> dict[str, list[tuple[int, float]]]:
    """Points of every metric of the one MLflow run of that name."""
    with connect(settings.mlflow.url) as client:
        runs = client.search_runs([e.experiment_id for e in client.search_experiments()])
        (run,) = [run for run in runs if run.info.run_name == run_id]
        return {
            name: [(point.step, point.value) for point in client.get_metric_history(run.info.run_id, name)]
            for name in run.data.metrics
        }


def test_a_study_by_command_is_planned_paid_for_once_and_shown(solrl: Solrl, settings: Settings, micro_config: Path):
    more = ("--prompts", 2, "--config", micro_config)
    planned = json.loads(solrl(*STUDY, *more, "--plan", "--json").out)
    assert (planned["missing"], planned["blocks"]) == (20, 20)
    assert not (settings.store_root / "runs").exists()
    assert "never measured" in solrl(*STUDY, *more, "--plan").out

    first = json.loads(solrl(*STUDY, *more, "--json").out)
    assert sum(first["computed"].values()) == planned["missing"]
    again = json.loads(solrl(*STUDY, *more, "--json").out)
    assert set(again["computed"].values()) == {0}
    assert {**first, "computed": {}} == {**again, "computed": {}}
    assert json.loads(solrl(*STUDY, *more, "--plan", "--json").out)["missing"] == 0

    run_id = first["run_id"]
    kept = read_result(view_run(Store(settings.store_root), run_id))
    assert kept is not None
    assert [pool.label for pool in kept.proxies] == [pool["label"] for pool in first["proxies"]]
    report = (settings.store_root / "runs" / run_id / "report" / "report.html").read_text(encoding="utf-8")
    assert "solrl study rank-fidelity --steps 1,2" in report
    points = shown(settings, run_id)
    assert [step for step, _ in points["spearman/bf16 euler 32 px vs 3 steps"]] == [1, 2]

    folder = settings.store_root / "runs" / run_id / "report"
    for path in folder.iterdir():
        path.unlink()
    assert solrl("report", run_id).code == 0
    assert (folder / "report.html").read_text(encoding="utf-8") == report, "made again from the result alone"

    said = solrl(*STUDY, *more)
    assert said.code == 0, said.err
    assert "0 blocks computed" in said.out
    assert "Against bf16, 3 steps, euler" in said.out


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--steps", "2,x"), "--steps is '2,x': give whole numbers"),
        (("--steps", "2,2"), "error: steps is [2, 2]: name each once\n"),
        (("--steps", "0"), "error: steps.0: Input should be greater than or equal to 1 (found 0)\n"),
        (("--policy-run", "../x"), "error: run_id '../x' cannot be a folder name"),
        (("--engines", "fp2"), "fp2"),
        (("--resolutions", "24"), "resolutions is 24"),
        (("--prompts", "99"), "prompts is 99"),
        (("--policy-run", "nobody"), "no run 'nobody'"),
    ],
)
def test_what_cannot_be_studied_is_told(
    solrl: Solrl, settings: Settings, micro_config: Path, more: tuple[str, ...], words: str
):
    said = solrl("study", "rank-fidelity", "--plan", "--config", micro_config, *more)
    assert said.code == 1
    assert words in said.err


def test_a_study_is_named_by_any_name_of_a_recipe_file():
    assert study_id("ranks", "a/my-recipe.v2.yaml", "01234567") == "study-ranks-my-recipe.v2-01234567"
    for name in ("mein Rezept ü.yaml", "x" * 200 + ".yaml", "-.yaml"):
        assert check_name(study_id("theory", name, "01234567"), "run_id").endswith("-01234567")


def test_the_command_of_a_report_asks_for_the_same():
    asked = Asked(steps=(2, 4), engines=("bf16",), references=(10, 40), prompts=3, policy_run="a b", config="x.yaml")
    assert asked.command() == (
        "solrl study rank-fidelity --steps 2,4 --engines bf16 --references 10,40 --prompts 3 --policy-run 'a b' "
        "--config x.yaml"
    )


def test_every_part_of_what_is_asked_is_an_option_of_the_command():
    import typer

    from flows.cli import app

    command: Any = typer.main.get_command(app)
    options = {name for option in command.commands["study"].commands["rank-fidelity"].params for name in option.opts}
    full = Asked((1,), ("a",), ("b",), (32,), (3,), (4,), 1, 8, 4, "run", 1, "c.yaml").command()
    assert {word for word in shlex.split(full) if word.startswith("--")} <= options


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"explore_steps": []}, "explore_steps"),
        ({"explore_steps": [0]}, "0 is less than the minimum of 1"),
        ({"reference_steps": [300]}, "300 is greater than the maximum of 200"),
        ({"engines": ["fp2"]}, "'fp2' is not one of"),
        ({"engines": "bf16"}, "'bf16' is not of type 'array'"),
        ({"resolutions": [8]}, "8 is less than the minimum of 16"),
        ({"plan": "yes"}, "'yes' is not of type 'boolean'"),
        ({"steps": [2]}, "'steps' was unexpected"),
    ],
)
def test_a_study_is_refused_at_creation(parameters: dict[str, Any], words: str):
    schema = make_deployments()[1]._parameter_openapi_schema.model_dump(exclude_unset=True)
    old = {"explore_steps": [2, 4], "candidates": 96, "keep": 24, "prompts": 8, "engine": "bf16", "policy_run": "a"}
    validate(old | {"policy_step": 3, "config": "configs/embedded.yaml"}, schema, raise_on_error=True)
    new = {"engines": ["bf16", "fp8"], "samplers": ["euler"], "resolutions": [32, 64], "reference_steps": [10, 40]}
    validate(new | {"match_counts": [4, 8], "plan": True}, schema, raise_on_error=True)
    with pytest.raises(ValidationError) as refused:
        validate(parameters, schema, raise_on_error=True)
    assert words in str(refused.value)


@pytest.mark.slow
@pytest.mark.usefixtures("prefect_server")
def test_the_flow_plans_studies_and_uses_its_pools_again(settings: Settings, micro_config: Path):
    asked: dict[str, Any] = {
        "explore_steps": [2, 3],
        "reference_steps": [3],
        "engine": "nvfp4-emulated",
        "prompts": 2,
        "config": str(micro_config),
    }
    planned = rank_fidelity(**asked, plan=True)
    first, again = rank_fidelity(**asked), rank_fidelity(**asked)
    assert planned["missing"] == sum(first["computed"].values()) == 3 * 4
    assert [proxy["steps"] for proxy in first["proxies"]] == [2, 3]
    assert set(again["computed"].values()) == {0}
    assert first["proxies"] == again["proxies"]
    ended = rank_fidelity(**asked, return_state=True)
    assert ended.is_completed() and "nvfp4-emulated" in str(ended.message)
    assert shown(settings, first["run_id"])
    for wrong, words in (({"prompts": 99}, "prompts is 99"), ({"engines": ["bf16"]}, "give one of the two")):
        refused = rank_fidelity(**{**asked, **wrong}, return_state=True)
        assert words in str(refused.message)
