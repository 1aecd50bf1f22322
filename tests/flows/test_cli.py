"""What the commands print, and that a user's mistakes are told in words."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from solrl_tasks.store.atomic import read_sealed, write_sealed
from solrl_tasks.store.root import Store
from solrl_tasks.store.runs import Run, RunView
from tests.flows.conftest import Finished, Said

Solrl = Callable[..., Said]


def test_runs_are_listed_with_their_state(solrl: Solrl, finished: Finished):
    said = solrl("runs", "--home", finished.home)
    assert said.code == 0
    line = next(line for line in said.out.splitlines() if line.startswith("done"))
    assert line.split() == ["done", "finished", "2", "of", "2", "nvfp4-emulated"]


def test_listed_runs_as_json(solrl: Solrl, finished: Finished, tmp_path: Path):
    home = tmp_path / "home"
    shutil.copytree(finished.home, home)
    runs = home / "store" / "runs"
    shutil.copytree(runs / "done", runs / "cut")
    shutil.rmtree(runs / "cut" / "iterations" / "0002")
    shutil.copytree(runs / "done", runs / "torn")
    (runs / "torn" / "config.json").write_text("{")
    shutil.copytree(runs / "cut", runs / "study-x")
    listed = {run.pop("run_id"): run for run in json.loads(solrl("runs", "--json", "--home", home).out)}
    base = {"kind": "train", "iterations": 2, "engine": "nvfp4-emulated", "held_by": None}
    assert listed["done"] == {**base, "status": "finished", "iterations_done": 2}
    assert listed["cut"] == {**base, "status": "interrupted", "iterations_done": 1}
    assert listed["torn"] == {**base, "status": "damaged", "iterations": None, "engine": None, "iterations_done": 2}
    none = {"status": None, "iterations": None, "iterations_done": None}
    assert listed["study-x"] == {**base, "kind": "study", **none}
    told = {line.split()[0]: line.split()[1:] for line in solrl("runs", "--home", home).out.splitlines() if line}
    assert told["torn"] == ["damaged", "2", "of", "?", "?"] and told["study-x"] == ["study"]
    refused = solrl("runs", "--json", "show", "done", "--home", home)
    assert refused.code == 1 and "solrl runs show … --json" in refused.err


def test_a_running_run_names_who_holds_it(solrl: Solrl, finished: Finished, tmp_path: Path):
    home = tmp_path / "home"
    shutil.copytree(finished.home, home)
    store = Store.open(home / "store")
    with Run.open(store, "done", RunView(store, "done").config):
        (run,) = json.loads(solrl("runs", "--json", "--home", home).out)
        assert run["status"] == "running" and run["held_by"]["pid"] == os.getpid()
        assert f"process {os.getpid()} on" in solrl("runs", "--home", home).out


def test_a_run_is_shown_with_every_metric_and_its_standard_error(solrl: Solrl, finished: Finished):
    said = solrl("runs", "show", finished.run_id, "--home", finished.home)
    assert said.code == 0
    for name in ("reward/proxy", "rank/kept_spearman", "eval/colourfulness", "gpu_hours/spent", "train/loss"):
        assert name in said.out
    assert "standard error" in said.out
    assert "CPU device-hours (no GPU)" in said.out


def test_a_run_as_json_holds_what_the_store_holds(solrl: Solrl, finished: Finished):
    said = solrl("runs", "show", finished.run_id, "--json", "--home", finished.home)
    shown = json.loads(said.out)
    assert [summary["step"] for summary in shown["iterations"]] == [0, 1, 2]
    last = shown["iterations"][-1]
    assert last["metrics"]["reward/bf16"] > 0
    assert set(last["stderr"]) <= set(last["metrics"])
    assert shown["config"]["name"] == "micro"


def test_the_home_may_come_from_the_environment(solrl: Solrl, finished: Finished, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SOLRL_HOME", str(finished.home))
    assert "done" in solrl("runs").out
    assert "done" in solrl("runs", "--home", finished.home).out


def test_pools_are_listed_and_shown(solrl: Solrl, finished: Finished):
    said = solrl("pools", "--home", finished.home)
    explored = [line for line in said.out.splitlines() if "nvfp4-emulated" in line]
    assert len(explored) == 2
    assert all("2 x 8" in line and "100 %" in line and "colourfulness@" in line for line in explored)
    key = explored[0].split()[0]
    shown = json.loads(solrl("pools", "show", key, "--json", "--home", finished.home).out)
    assert shown["key"].startswith(key)
    assert shown["spec"]["steps"] == 2
    assert any(user.startswith("done step ") for user in shown["used_by"])
    assert f"key: {shown['key']}" in solrl("pools", "show", key, "--home", finished.home).out


def test_pools_say_what_they_are_to_whom(solrl: Solrl, finished: Finished, tmp_path: Path):
    home = Path(shutil.copytree(finished.home, tmp_path / "home"))
    listed = json.loads(solrl("pools", "--json", "--home", home).out)
    by_user = {user: pool["kind"] for pool in listed for user in pool["used_by"]}
    assert by_user["done step 1 explore"] == ["explore"] and by_user["done step 0 evaluate"] == ["evaluate"]
    assert not any("begun" in user for user in by_user), "what was finished needs no word on its beginning"
    store = Store.open(home / "store")
    explored = next(pool for pool in listed if "done step 1 explore" in pool["used_by"])
    assert explored == json.loads(solrl("pools", "show", explored["key"], "--json", "--home", home).out)
    shown = solrl("pools", "show", explored["key"], "--home", home).out
    assert "kind: explore" in shown and "_" not in next(line for line in shown.splitlines() if "used_by" in line)[8:]

    ref = RunView(store, "done").refs(1)["explore"]
    for run_id, name in (("study-x", "explored"), ("cut", "explore_begun"), ("evaluate-x", "reference_begun")):
        with Run.open(store, run_id, {"iterations": 1}) as run:
            run.note_ref(1, name, ref)
    both = json.loads(solrl("pools", "show", ref.key, "--json", "--home", home).out)
    assert both["kind"] == ["evaluate", "explore", "study"]
    assert {"cut step 1 explore (begun)", "study-x step 1 explored"} < set(both["used_by"])
    line = next(line for line in solrl("pools", "--home", home).out.splitlines() if line.startswith(ref.key[:12]))
    assert "evaluate, explore, study" in line
    shutil.rmtree(home / "store" / "runs")
    (home / "store" / "runs").mkdir()
    assert {pool["kind"][0] for pool in json.loads(solrl("pools", "--json", "--home", home).out)} == {"unused"}
    refused = solrl("pools", "--json", "show", ref.key, "--home", home)
    assert refused.code == 1 and "--json stands after the command" in refused.err


def test_a_pool_that_cannot_be_read_is_named_wherever_pools_are_listed(
    solrl: Solrl, finished: Finished, tmp_path: Path
):
    home = Path(shutil.copytree(finished.home, tmp_path / "home"))
    (first, second, *_) = sorted((home / "store" / "pools").iterdir())
    before = json.loads(solrl("pools", "--json", "--home", home).out)
    (first / "spec.json").write_text("{")
    (second / "prompts.json").write_text("{")
    listed = solrl("pools", "--home", home).out
    assert f"{first.name[:12]} cannot be read: " in listed and "spec.json is damaged" in listed
    assert f"{len(before) - 1} pools" in listed
    found = {pool["key"]: pool for pool in json.loads(solrl("pools", "--json", "--home", home).out)}
    assert found.keys() == {pool["key"] for pool in before}
    lost = found[first.name]
    assert (
        "is damaged" in lost["damage"] and lost["spec"] is None and lost["used_by"] and lost.keys() == before[0].keys()
    )
    shown = solrl("pools", "show", first.name, "--home", home)
    assert shown.code == 1 and "spec.json is damaged" in shown.err
    shown = json.loads(solrl("pools", "show", second.name, "--json", "--home", home).out)
    assert "prompts.json is damaged" in shown["damage"]
    assert f"{first.name[:12]} cannot be read" in solrl("doctor", "--home", home).out


def test_garbage_is_listed_and_removed_only_on_demand(solrl: Solrl, finished: Finished, tmp_path: Path):
    store = Store.open(tmp_path / "store")
    lost = store.folder("pools") / ("a" * 24)
    lost.mkdir(parents=True)
    young = solrl("pools", "gc", "--home", tmp_path)
    assert "0 objects, 0 B, that nothing refers to" in young.out and "aaaaaaaaaaaa" not in young.out
    assert "Changed within 24 hours, so it stays: 1 object" in young.out and "--min-age-hours" in young.out
    said = solrl("pools", "gc", "--min-age-hours", "0", "--home", tmp_path)
    assert "stays" not in said.out
    assert "aaaaaaaaaaaa" in said.out and "add --delete to remove it" in said.out
    assert lost.exists()
    assert solrl("pools", "gc", "--min-age-hours", "0", "--delete", "--home", tmp_path).code == 0
    assert not lost.exists()


def test_a_pool_is_packed_and_read_as_before(solrl: Solrl, finished: Finished, tmp_path: Path):
    home = Path(shutil.copytree(finished.home, tmp_path / "home"))
    key = next(iter((home / "store" / "pools").iterdir())).name
    before = solrl("pools", "show", key, "--json", "--home", home).out
    said = solrl("pools", "compact", key, "--home", home)
    assert said.code == 0, said.err
    assert "packed" in said.out and "files" in said.out
    after = solrl("pools", "show", key, "--json", "--home", home).out
    kept = [{name: v for name, v in json.loads(text).items() if name != "bytes"} for text in (before, after)]
    assert kept[0] == kept[1]
    assert "nothing packed" in solrl("pools", "compact", key, "--home", home).out


def test_a_run_is_trimmed_only_on_demand_and_says_what_it_kept(solrl: Solrl, finished: Finished, tmp_path: Path):
    home = Path(shutil.copytree(finished.home, tmp_path / "home"))
    said = solrl("runs", "trim", finished.run_id, "--home", home)
    assert said.code == 0, said.err
    assert "done lets go of" in said.out and "add --delete" in said.out
    assert solrl("export", finished.run_id, tmp_path / "a", "--iteration", "1", "--home", home).code == 0
    assert solrl("runs", "trim", finished.run_id, "--keep-best", "2", "--home", home).out.count("among the best 2") == 1
    assert "Removed" in solrl("runs", "trim", finished.run_id, "--delete", "--home", home).out
    refused = solrl("export", finished.run_id, tmp_path / "b", "--iteration", "1", "--home", home)
    assert refused.code == 1 and "iteration 1 of run done was trimmed" in refused.err
    assert "iterations 0, 2" in refused.err and "Traceback" not in refused.err
    assert solrl("export", finished.run_id, tmp_path / "c", "--home", home).code == 0
    assert solrl("runs", "show", finished.run_id, "--home", home).code == 0
    refused = solrl("runs", "trim", finished.run_id, "--metric", "eval/x", "--home", home)
    assert refused.code == 1 and "add --keep-best" in refused.err


def test_an_adapter_is_exported(solrl: Solrl, finished: Finished, tmp_path: Path):
    for arguments, step in (((), 2), (("--iteration", "1"), 1)):
        folder = tmp_path / str(step)
        said = solrl("export", finished.run_id, folder, *arguments, "--home", finished.home)
        assert said.code == 0, said.err
        assert f"Iteration {step} of done" in said.out
        with safe_open(folder / "pytorch_lora_weights.safetensors", "pt") as file:
            names = list(file.keys())
        assert names and all(name.startswith("transformer.") for name in names)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("runs", "show", "nope"), "no run 'nope' in"),
        (("runs", "show", "../x"), "run_id '../x' cannot be a folder name"),
        (("pools", "show", "zz"), "no pool begins with 'zz'"),
        (("export", "done", "{tmp}", "--iteration", "9"), "no finished iteration 9; there are 1 to 2"),
        (("export", "nope", "{tmp}"), "no run 'nope'"),
        (("track", "rebuild", "nope"), "no run 'nope'"),
        (("track", "rebuild", "../x"), "run_id '../x' cannot be a folder name"),
        (("train", "configs/embedded.yaml", "--run-id", "../x"), "run_id '../x' cannot be a folder name"),
        (("demo", "--run-id", ""), "run_id '' cannot be a folder name"),
        (("train", "my recipe.yaml"), "the name of the recipe file 'my recipe' cannot be a folder name"),
    ],
)
def test_mistakes_are_told_without_a_traceback(
    solrl: Solrl, finished: Finished, tmp_path: Path, arguments: tuple[str, ...], words: str
):
    said = solrl(*(a.format(tmp=tmp_path) for a in arguments), "--home", finished.home)
    assert said.code == 1
    assert said.err.startswith("error: ")
    assert words in said.err
    assert "Traceback" not in said.err


@pytest.mark.parametrize("command", [("runs", "show", "done"), ("report", "done"), ("export", "done", "{}/adapter")])
def test_a_run_that_a_newer_version_recorded_is_told_in_words(
    solrl: Solrl, finished: Finished, tmp_path: Path, command: tuple[str, ...]
):
    shutil.copytree(finished.home, tmp_path / "home")
    config = tmp_path / "home" / "store" / "runs" / "done" / "config.json"
    write_sealed(config, {**read_sealed(config), "field_of_tomorrow": 1})
    answer = solrl(*(word.format(tmp_path) for word in command), "--home", tmp_path / "home")
    assert answer.code == 1 and "Traceback" not in answer.err
    told = answer.err.replace("\n", " ")
    assert "run done was recorded with a recipe that this version cannot read" in told
    assert "field_of_tomorrow" in told and "upgrade" in told


def test_a_home_without_a_store_says_how_to_begin(solrl: Solrl, tmp_path: Path):
    said = solrl("runs", "--home", tmp_path)
    assert said.code == 1
    assert "solrl demo" in said.err


def test_the_doctor_reports_and_needs_no_servers(solrl: Solrl, finished: Finished, free_ports: tuple[int, int]):
    prefect, mlflow = free_ports
    said = solrl("doctor", "--home", finished.home, "--prefect-port", prefect, "--mlflow-port", mlflow)
    assert said.code == 0
    for words in ("torch", "bf16", "nvfp4-emulated", "runs          1, 1 finished", "0 of them partly filled"):
        assert words in said.out
    assert "format        1 of at most 2" in said.out and "free\n" in said.out
    assert f"http://127.0.0.1:{prefect}/api does not answer; `solrl up` starts it" in said.out


def test_a_run_can_be_put_into_a_tracking_database(
    solrl: Solrl, finished: Finished, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/m.db")
    said = solrl("track", "rebuild", finished.run_id, "--home", finished.home)
    assert said.code == 0, said.err
    assert f"of run done are in MLflow: sqlite:///{tmp_path}/m.db" in said.out


def test_help_needs_neither_torch_nor_prefect():
    code = "import sys; import flows.cli; print([m for m in ('torch', 'prefect', 'mlflow') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


def test_an_error_of_the_program_keeps_its_traceback(finished: Finished):
    code = (
        "import sys, flows.cli, flows.commands.runs as r\n"
        "def broken(home): raise KeyError('a bug')\n"
        "r.open_store = broken\n"
        "sys.argv = ['solrl', 'runs']\n"
        "flows.cli.main()\n"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ, check=False)
    assert found.returncode == 1
    assert "Traceback" in found.stderr and "a bug" in found.stderr


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("select: {keep: 200}", "select.keep is 200"),
        ("rewards: [{name: nowhere}]", "unknown reward 'nowhere'"),
        ("model: {source: no/such/folder}", "no/such/folder"),
        ("explore: {engine: {name: nvfp4}}", "engine 'nvfp4' cannot run on"),
    ],
)
def test_a_recipe_that_cannot_be_used_is_refused_before_any_server(
    solrl: Solrl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, words: str
):
    def never(*_: object) -> None:
        raise AssertionError("a server was wanted")

    monkeypatch.setattr("flows.commands.demo.running_servers", never)
    monkeypatch.setattr("solrl_tasks.workers.numerics.default_device", lambda: torch.device("cpu"))
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(text)
    said = solrl("train", recipe, "--home", tmp_path / "home")
    assert said.code == 1
    assert words in said.err


@pytest.mark.parametrize("command", [("train", "{config}"), ("demo",), ("up",)])
@pytest.mark.parametrize(
    ("found", "words"), [("newer", "has format 99, which a newer sol-rl wrote"), ("other", "is not empty and not a")]
)
def test_a_store_that_cannot_be_used_is_refused_before_any_server(
    solrl: Solrl,
    micro_config: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...],
    found: str,
    words: str,
):
    def never(*_: object, **__: object) -> None:
        raise AssertionError("a server was wanted")

    monkeypatch.setattr("flows.commands.demo.running_servers", never)
    monkeypatch.setattr("flows.commands.up.running_servers", never)
    home = tmp_path / "home"
    if found == "newer":
        write_sealed(home / "store" / "store.json", {"format": 99})
    else:
        (home / "store").mkdir(parents=True)
        (home / "store" / "thesis.txt").write_text("mine")
    before = sorted(home.rglob("*"))
    said = solrl(*(word.format(config=micro_config) for word in command), "--home", home)
    assert said.code == 1 and words in said.err.replace("\n", " ")
    assert sorted(home.rglob("*")) == before
