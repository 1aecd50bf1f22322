"""Studies of arms from outside: by the command line, by the deployments' flows, and as report and MLflow show them."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prefect.utilities.schema_tools.validation import ValidationError, validate

from flows.arm_study import Asked, read_changes, read_seeds, settle
from flows.console import shown_command
from flows.deployments import DEPLOYMENTS, make_deployments
from flows.errors import UserError
from flows.settings import Settings
from solrl_tasks.reports.stored import read_report
from solrl_tasks.store.root import Store
from solrl_tasks.tracking.mlflow_client import connect
from tests.flows.conftest import Said

Solrl = Callable[..., Said]
FEW = ("--seeds", "1", "--iterations", "1", "--set", "explore.engine={name: bf16}")


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("SOLRL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    return Settings.read()


def test_an_ablation_by_command_is_planned_paid_for_once_and_shown(
    solrl: Solrl, settings: Settings, micro_config: Path
):
    words = ("study", "ablation", "--vary", "select.keep=6", "--config", micro_config, *FEW)
    planned = json.loads(solrl(*words, "--plan", "--json").out)
    assert (planned["missing"], planned["seconds"]) == (4, None) and not settings.store_root.exists()
    said = solrl(*words, "--plan").out
    assert "never measured on this device" in said
    assert f"There is no store in {settings.store_root} yet, so that all of it is to be computed." in said
    assert not settings.store_root.exists()

    first = json.loads(solrl(*words, "--json").out)
    assert {run["state"] for run in first["runs"]} == {"done"}
    spent = sum(run["forwards"] for run in first["runs"])
    assert 0 < spent <= planned["forwards"]
    again = json.loads(solrl(*words, "--json").out)
    assert {(run["state"], run["forwards"], run["loads"]) for run in again["runs"]} == {("there", 0, 0)}
    assert again["arms"] == first["arms"] and again["run_id"] == first["run_id"]
    assert json.loads(solrl(*words, "--plan", "--json").out)["missing"] == 0

    said = solrl(*words)
    assert said.code == 0, said.err
    assert "base" in said.out and "select.keep-6" in said.out and "0 forward passes" in said.out
    assert f"Report of the ablation: {shown_command('solrl')} report {first['run_id']}" in said.out.replace("\n", " ")

    run_id = first["run_id"]
    report = (settings.store_root / "runs" / run_id / "report" / "report.html").read_text(encoding="utf-8")
    for words_ in ("solrl study ablation --seeds 1 --vary", "Modelled milliseconds", "Measured device-seconds"):
        assert words_ in report
    with connect(settings.mlflow.url) as client:
        runs = client.search_runs([e.experiment_id for e in client.search_experiments()])
        (run,) = [run for run in runs if run.info.run_name == run_id]
        points = client.get_metric_history(run.info.run_id, "eval/colourfulness/base")
        assert [point.step for point in points] == [0, 1]
        assert "modelled_seconds/base" in run.data.metrics


def test_controls_by_command_time_arms_alone_and_name_what_failed(
    solrl: Solrl, settings: Settings, micro_config: Path, monkeypatch: pytest.MonkeyPatch
):
    from solrl_tasks.studies import runs

    run_step = runs.run_step

    def fail(session: Any, step: int) -> Any:
        if "explore" in session.run.run_id:
            raise RuntimeError("the device is gone")
        return run_step(session, step)

    monkeypatch.setattr(runs, "run_step", fail)
    words = ("study", "controls", "--config", micro_config, *FEW, "--arms", "bf16-8full,bf16-explore", "--timing", 2)
    said = solrl(*words)
    assert said.code == 1 and "2 runs failed: controls-bf16-explore" in said.err
    assert "the device is gone" in said.out and "bf16-4of4" in said.out
    (report,) = settings.store_root.glob("runs/study-controls-*/report/report.html")
    page = report.read_text(encoding="utf-8")
    assert "alone, in a timing run" in page and "the device is gone" in page
    monkeypatch.undo()
    monkeypatch.setenv("SOLRL_HOME", str(settings.home))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", settings.mlflow.url)
    again = solrl(*words)
    assert again.code == 0, again.err
    assert "controls-bf16-8full" in again.out and ": there" in again.out
    assert "the device is gone" not in report.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "words", [("controls", *FEW), ("rank-fidelity", "--prompts", "1"), ("theory", "--prompts", "1")]
)
def test_a_plan_in_a_folder_that_is_no_store_is_refused_whatever_study_it_is_of(
    solrl: Solrl, settings: Settings, micro_config: Path, words: tuple[str, ...]
):
    settings.store_root.mkdir(parents=True)
    (settings.store_root / "thesis.txt").write_text("mine")
    said = solrl("study", *words, "--config", micro_config, "--plan")
    assert said.code == 1 and f"{settings.store_root} is not empty and not a store" in said.err
    (settings.store_root / "thesis.txt").unlink()
    said = solrl("study", *words, "--config", micro_config, "--plan")
    assert said.code == 0, said.err
    assert f"There is no store in {settings.store_root} yet" in said.out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("controls", "--seeds", "1,x"), "seeds are '1,x'"),
        (("controls", "--seeds", "1,1"), "seed 1 stands twice"),
        (("controls", "--seeds", "900001"), "which timing has"),
        (("controls", "--arms", "nope"), "no arm nope; there is bf16-4of4"),
        (("controls", "--arms", "bf16-4of4"), "nothing to compare it with"),
        (("controls", "--modelled-on", "abacus"), "rates are known of"),
        (("controls", "--set", "explore.steps"), "give FIELD=VALUE"),
        (("controls", "--set", "explore.stpes=2"), "stpes is not a known field"),
        (("ablation", "--vary", "stpes"), "'stpes' has no values"),
        (("ablation", "--vary", "select.keep=99"), "keep fewer seeds"),
        (("ablation", "--vary", "objective"), "with another objective"),
        (("ablation", "--vary", "update.objective=nope"), "nope"),
        (("ablation", "--vary", "precision=nvfp4"), "cannot run here"),
        (("ablation", "--vary", "explore.steps=2"), "nothing to compare it with"),
    ],
)
def test_what_cannot_be_studied_is_told_before_anything_runs(
    solrl: Solrl, settings: Settings, micro_config: Path, words: tuple[str, ...], told: str
):
    said = solrl("study", *words, "--config", micro_config, "--plan")
    assert said.code == 1 and told in said.err
    assert not settings.store_root.exists()


def test_the_command_of_a_report_asks_for_the_same(micro_config: Path):
    asked = Asked(
        "ablation", (1, 2), 4, ("steps", "objective=ram,{name: nft, options: {beta: 0.1}}"), True, ("base", "x"),
        {"update.optimizer.lr": 0.01, "rewards": [{"name": "scene"}]}, 3, None, 2, "NVIDIA H200", str(micro_config),
    )  # fmt: skip
    words = shlex.split(asked.command())
    assert words[:3] == ["solrl", "study", "ablation"]
    given = [words[place + 1] for place, word in enumerate(words) if word == "--set"]
    assert read_changes(given) == asked.changes
    assert [words[place + 1] for place, word in enumerate(words) if word == "--vary"] == list(asked.vary)
    assert read_seeds(words[words.index("--seeds") + 1]) == asked.seeds


@pytest.mark.parametrize("study", ["controls", "ablation"])
def test_every_part_of_what_is_asked_is_an_option_of_the_command(study: Any):
    import typer

    from flows.cli import app

    command: Any = typer.main.get_command(app)
    options = {name for option in command.commands["study"].commands[study].params for name in option.opts}
    full = Asked(study, (1,), 4, ("steps",), True, ("a",), {"seed": 1}, 3, None, 2, "NVIDIA H200", "c.yaml").command()
    assert {word for word in shlex.split(full) if word.startswith("--")} <= options
    assert {"--seconds", "--plan", "--json"} <= options


def test_seeds_are_lists_and_ranges():
    assert read_seeds("1-3,7") == (1, 2, 3, 7)
    for wrong in ("", "a", "1-", "3.5", "3-1", "-1"):
        with pytest.raises(UserError, match="whole numbers"):
            read_seeds(wrong)


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["explore.steps"], "give FIELD=VALUE"),
        (["=2"], "give FIELD=VALUE"),
        (["explore.steps=2", "explore.steps=3"], "explore.steps is 2 already"),
        (["explore.steps=[2"], "is not YAML"),
    ],
)
def test_changes_of_all_arms_are_fields_with_values(texts: list[str], words: str):
    with pytest.raises(UserError, match=words):
        read_changes(texts)


def test_a_study_has_one_report_whatever_its_seeds_and_iterations(micro_config: Path):
    def run_id(**more: Any) -> str:
        return settle(Asked(study="controls", config=str(micro_config), **more)).run_id

    assert run_id() == run_id(seeds=(1, 2, 3, 4), iterations=9, timing=2, parallel=3, modelled_on="NVIDIA H200")
    assert run_id() != run_id(changes={"update.optimizer.lr": 0.2}) != run_id(arms=("bf16-explore",))


def test_processes_of_one_gpu_do_not_measure_what_it_holds(micro_config: Path, monkeypatch: pytest.MonkeyPatch):
    import torch

    monkeypatch.setattr("solrl_tasks.workers.numerics.default_device", lambda: torch.device("cuda"))
    monkeypatch.setattr("solrl_tasks.studies.families.report_engines", lambda _: {})
    asked = Asked(study="controls", config=str(micro_config), parallel=2, changes={"explore.chunk": "auto"})
    with pytest.raises(UserError, match=r"give numbers for explore\.chunk"):
        settle(asked)


@pytest.mark.parametrize(
    ("name", "parameters", "words"),
    [
        ("solrl-controls/default", {"seeds": []}, "seeds"),
        ("solrl-controls/default", {"seeds": 3}, "3 is not of type 'array'"),
        ("solrl-controls/default", {"parallel": 0}, "0 is less than the minimum of 1"),
        ("solrl-controls/default", {"vary": ["steps"]}, "'vary' was unexpected"),
        ("solrl-ablation/default", {"vary": []}, "vary"),
        ("solrl-ablation/default", {"grid": "yes"}, "'yes' is not of type 'boolean'"),
        ("solrl-ablation/default", {"iterations": 0}, "0 is less than the minimum of 1"),
    ],
)
def test_a_study_is_refused_at_creation(name: str, parameters: dict[str, Any], words: str):
    place = list(DEPLOYMENTS).index(name)
    schema = make_deployments()[place]._parameter_openapi_schema.model_dump(exclude_unset=True)
    validate({"seeds": [1, 2], "plan": True, "iterations": 3}, schema, raise_on_error=True)
    with pytest.raises(ValidationError) as refused:
        validate(parameters, schema, raise_on_error=True)
    assert words in str(refused.value)


@pytest.mark.slow
def test_flows_show_their_progress_and_end_with_their_report(
    prefect_server: None, settings: Settings, micro_config: Path
):
    from prefect.client.orchestration import get_client

    planned = DEPLOYMENTS["solrl-ablation/default"](
        vary=["select.keep=6"], seeds=[1], iterations=1, config=str(micro_config), plan=True
    )
    assert planned["missing"] == 4 and not settings.store_root.exists()
    state = DEPLOYMENTS["solrl-ablation/default"](
        vary=["select.keep=6"], seeds=[1], iterations=1, config=str(micro_config), return_state=True
    )
    assert state.is_completed() and "This time" in state.message
    data = state.result()
    assert {run["state"] for run in data["runs"]} == {"done"}
    assert read_report(Store(settings.store_root), data["run_id"]).page.title.startswith("Ablation")
    with get_client(sync_client=True) as client:
        keys = {artifact.key: artifact for artifact in client.read_artifacts()}
    assert {"ablation-plan", "ablation-progress"} <= set(keys) and keys["ablation-progress"].data == 100.0
    failed = DEPLOYMENTS["solrl-ablation/default"](vary=["stpes"], config=str(micro_config), return_state=True)
    assert failed.is_failed() and "'stpes' has no values" in failed.message
