"""The commands as they are typed, on tiny models."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from mlflow import MlflowClient

from solrl_tasks.bench.reports.file import read_report
from solrl_tasks.bench.reports.iteration import IterationReport
from solrl_tasks.bench.reports.rollout import RolloutReport
from solrl_tasks.bench.reports.sync import SyncBenchReport
from solrl_tasks.bench.reports.update import UpdateReport

ROOT = Path(__file__).resolve().parents[2]
MODEL = ("--source", "random:tiny-flux", "--resolution", "64", "--max-sequence-length", "16", "--rank", "2")
SMALL = ("--candidates", "4", "--keep", "2", "--explore-steps", "1", "--full-steps", "2", "--chunk", "2")
CLIP = ("--reward", "clipscore", "--reward-option", "source=random:tiny")


@pytest.fixture
def solrl(monkeypatch, capsys):
    """Runs ``solrl`` in this process; returns its exit code and what it printed."""
    from flows.cli import main

    def run(*arguments: object) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["solrl", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        said = capsys.readouterr()
        return code, said.out + said.err

    return run


def test_a_rollout_with_a_model_as_its_reward(solrl, tmp_path):
    path = tmp_path / "rollout.json"
    arms = ("--arms", "bf16-full,nvfp4-emulated-two-stage", "--timed", "2", "--repeats", "1", "--complete", "all")
    code, said = solrl("bench", "rollout", *MODEL, *SMALL, *CLIP, *arms, "--json", path)
    assert code == 0, said
    report = read_report(path)
    assert isinstance(report, RolloutReport)
    assert [arm.name for arm in report.arms] == ["bf16-full", "nvfp4-emulated-two-stage"]
    assert report.reward == "clipscore"
    assert report.environment.command.startswith("solrl bench rollout --source random:tiny-flux")
    assert "Rollout of one prompt, tiny-flux (random weights) at 64 px" in said
    code, page = solrl("bench", "table", path, path)
    assert code == 0 and page.count("**The network alone**") == 2


def test_options_reach_the_engine_and_the_model(solrl, tmp_path):
    path = tmp_path / "rollout.json"
    more = ("--option", "nvfp4-emulated.activation_scale=row", "--set", "shift=2.5", "--reward", "colourfulness")
    arms = ("--arms", "nvfp4-emulated-full", "--timed", "2", "--repeats", "1")
    code, said = solrl("bench", "rollout", *MODEL, *SMALL, *arms, *more, "--json", path)
    assert code == 0, said
    code, said = solrl("bench", "rollout", *MODEL, *SMALL, *arms, "--option", "nvfp4-emulated.colour=red")
    assert code == 1 and "colour" in said


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (("--arms", "nothing"), "unknown arm 'nothing'"),
        (("--arms", "nvfp4-full"), "engine 'nvfp4' cannot run"),
        (("--option", "fp8"), "give NAME=VALUE"),
        (("--option", "execution=eager"), "give ENGINE.NAME=VALUE"),
        (("--set", "colour=red"), "colour is not a known field"),
        (("--reward-option", "colour=red"), "clipscore"),
        (("--family", "else", "--resolution", "64"), "family 'else' has no model of its own here"),
    ],
)
def test_mistakes_are_told_before_anything_is_loaded(solrl, wrong, told):
    code, said = solrl("bench", "rollout", *wrong)
    assert code == 1
    assert told in said and "Traceback" not in said


def test_updates_and_syncs(solrl, tmp_path):
    small = ("--samples", "2", "--micro-batch", "2", "--full-steps", "2", "--repeats", "1")
    code, said = solrl("bench", "update", *MODEL, *small, "--json", tmp_path / "update.json")
    assert code == 0, said
    assert isinstance(read_report(tmp_path / "update.json"), UpdateReport)
    code, said = solrl(
        "bench", "sync", *MODEL, "--engines", "bf16", "--swaps", "1", "--chunk", "1", "--json", tmp_path / "sync.json"
    )
    assert code == 0, said
    report = read_report(tmp_path / "sync.json")
    assert isinstance(report, SyncBenchReport) and report.engines[0].new_graphs == 0


def test_a_report_goes_to_mlflow(solrl, tmp_path, monkeypatch):
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    home = tmp_path / "home"
    code, said = solrl(
        "bench", "sync", *MODEL, "--engines", "bf16", "--swaps", "1", "--chunk", "1", "--mlflow", "--home", home
    )
    assert code == 0, said
    client = MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("solrl-bench")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.run_name == "sync random:tiny-flux"
    assert run.info.status == "FINISHED"
    assert run.data.metrics["engines/bf16/new_graphs"] == 0
    assert run.data.params["model.source"] == "random:tiny-flux"
    content = json.loads(Path(client.download_artifacts(run.info.run_id, "report.json")).read_text())
    assert content["bench"] == "sync"


def test_servers_are_the_commands_own_and_a_missing_one_is_told(monkeypatch, tmp_path, capsys):
    from flows.bench_run import on_free_ports
    from flows.settings import Settings

    plain = Settings.read(tmp_path, environ={})
    own = on_free_ports(plain)
    assert own.prefect.port > plain.prefect.port and own.mlflow.port > max(plain.mlflow.port, own.prefect.port)
    named = Settings.read(tmp_path, 4321, 5432, environ={})
    assert on_free_ports(named) == named
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    without = on_free_ports(plain)
    assert without.mlflow.url == f"sqlite:///{tmp_path}/mlflow/mlflow.db" and not without.mlflow.is_http
    assert "written to a database" in capsys.readouterr().out


@pytest.mark.slow
def test_the_session_runs_every_step_on_tiny_models(tmp_path):
    """The script that is run on a GPU, with the same commands, as far as a CPU and a few minutes allow."""
    script = str(ROOT / "benchmarks" / "gpu_session.py")
    steps = ["ceiling", "sana-rollout", "flux-complete", "sd3-sync", "flux-update", "sd3-iteration"]
    done = subprocess.run(
        [sys.executable, script, "--tiny", "--out", str(tmp_path), "--steps", *steps],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=540,
        check=False,
    )
    log = (tmp_path / "session.log").read_text()
    assert done.returncode == 0, done.stdout + done.stderr + log
    assert [line.split()[:2] for line in done.stdout.splitlines()] == [[step, "done,"] for step in steps]
    reports = {path.stem: read_report(path) for path in tmp_path.glob("*.json")}
    assert set(reports) == set(steps)
    iterations = reports["sd3-iteration"]
    assert isinstance(iterations, IterationReport)
    stages = {"quantize", "explore", "select", "regenerate", "update", "evaluate"}
    assert all(set(cost.stages) == stages for cost in iterations.iterations)
    assert len(iterations.warm) == 2
    assert 0 < iterations.fixed_seconds < max(cost.seconds for cost in iterations.warm)
    tables = (tmp_path / "tables.md").read_text()
    assert "**What is possible**" in tables and "Fixed cost of a warm iteration" in tables


def test_the_session_lists_its_steps_and_refuses_others(tmp_path):
    script = str(ROOT / "benchmarks" / "gpu_session.py")
    listed = subprocess.run([sys.executable, script, "--list"], capture_output=True, text=True, check=True, cwd=ROOT)
    assert "flux-rollout " in listed.stdout and "solrl bench iteration --family sana" in listed.stdout
    wrong = subprocess.run(
        [sys.executable, script, "--steps", "flux-rolout", "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert wrong.returncode == 2 and "unknown steps flux-rolout" in wrong.stderr
