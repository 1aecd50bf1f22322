"""The command itself: runs, stops, goes on, reports without a device."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "benchmarks" / "objective_comparison.py"
SMALL = (
    "model.resolution=32", "prompts.per_iteration=1", "regenerate.steps=3", "explore.steps=2", "update.micro_batch=8",
    "update.times_per_sample=2", "update.lora.rank=2", "evaluate.prompts=1", "evaluate.seeds=2",
    "evaluate.sampling.steps=2", "evaluate.sampling.chunk=2", "rewards=[{name: colourfulness}]",
)  # fmt: skip


@pytest.fixture
def words(micro_model, tmp_path):
    def make(*more, iterations=2):
        sizes = ("--seeds", "1", "--iterations", str(iterations), "--every", "1", "--candidates", "4", "--keep", "2")
        where = ("--store", str(tmp_path / "store"), "--out", str(tmp_path / "out"), "--parallel", "1")
        few = ("--arms", "ram", "flow-grpo", "--optimizer-steps", "2", "--gradients", "1")
        return [str(SCRIPT), *where, *few, *sizes, *more, "--set", f"model.source={micro_model}", *SMALL]

    return make


@pytest.fixture
def compare(words, monkeypatch, capsys):
    """The command in this process, tasks one after another; returns exit status and what was printed."""
    spec = importlib.util.spec_from_file_location("objective_comparison", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "objective_comparison", module)
    spec.loader.exec_module(module)

    def in_turn(left, _):
        said = [module.work(task) for task in left]
        print(*said, sep="\n")
        return not any("FAILED" in one for one in said)

    monkeypatch.setattr(module, "execute", in_turn)

    def call(*more, iterations=2):
        monkeypatch.setattr(sys, "argv", words(*more, iterations=iterations))
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            module.main()
        return end.value.code, capsys.readouterr().out

    return call


def test_runs_go_on_and_are_used_again_and_the_report_needs_no_device(compare, tmp_path):
    code, said = compare(iterations=1)
    assert code == 0, said
    assert said.count("done at iteration 1") == 4 and "gradients: done, 1 sample" in said
    code, said = compare()
    assert code == 0, said
    assert "0 of 4 runs are done already" in said
    assert said.count("done at iteration 2") == 4 and "gradients: used again" in said
    out = tmp_path / "out"
    before = (out / "report.md").read_text()
    assert "| ram | two-stage | 1 | 2 | 4 |" in before and "| flow-grpo | plain | 1 | 2 | 4 |" in before
    code, said = compare()
    assert code == 0 and "4 of 4 runs are done already" in said and "done at" not in said
    (out / "report.md").unlink()
    code, said = compare("--report")
    assert code == 0 and "done" not in said
    assert (out / "report.md").read_text() == before
    assert len(list(out.glob("*.png"))) == 7


def test_a_run_that_fails_ends_no_other(compare):
    assert compare("--arms", "ram", "--gradients", "0", iterations=1)[0] == 0
    # A run that exists cannot go on with other settings.
    code, said = compare("--arms", "ram", "awm", "--gradients", "0", "--optimizer-steps", "3")
    assert code == 1
    assert said.count("FAILED") == 2 and "update.optimizer_steps" in said
    assert said.count("done at iteration 2") == 2 and "| awm | two-stage | 1 | 2 | 6 |" in said


def test_processes_stop_in_time_and_what_is_not_there_yet_is_said(words, tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, *words("--seconds", "0")]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 1 and done.stdout.count("not begun") >= 4
    assert "no report: 0 of 0 runs" in done.stderr and "Traceback" not in done.stderr


def test_learning_rates_are_tried_once_and_then_taken(compare, tmp_path):
    tuning = ("--tune", "--tuning-iterations", "1", "--gradients", "0")
    code, said = compare(*tuning, iterations=1)
    assert code == 0, said
    assert said.count("seed0: done at iteration 1") == 6 and said.count("seed1: done at iteration 1") == 4
    chosen = json.loads((tmp_path / "out" / "tuning.json").read_text())
    assert [one["arm"] for one in chosen] == ["ram", "flow-grpo"]
    assert all(f"-lr{one['chosen']:g}-seed1" in said for one in chosen)
    code, said = compare(*tuning, iterations=1)
    assert code == 0 and "done at" not in said and "4 of 4 runs are done already" in said
    assert "Learning rates" in said
