"""The command itself: runs, stops, goes on, reports without a device."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
SMALL = (
    "model.resolution=32", "prompts.per_iteration=1", "regenerate.steps=3", "explore.steps=2", "update.micro_batch=8",
    "update.times_per_sample=2", "update.lora.rank=2", "evaluate.prompts=1", "evaluate.seeds=2",
    "evaluate.sampling.steps=2", "evaluate.sampling.chunk=2",
)  # fmt: skip


@pytest.fixture
def compare(micro_model, tmp_path):
    def call(*more, iterations=2):
        script = str(ROOT / "benchmarks" / "objective_comparison.py")
        sizes = ("--seeds", "1", "--iterations", str(iterations), "--every", "1", "--candidates", "4", "--keep", "2")
        where = ("--store", str(tmp_path / "store"), "--out", str(tmp_path / "out"), "--parallel", "1")
        small = ("--optimizer-steps", "2", "--gradients", "1", "--set", f"model.source={micro_model}", *SMALL)
        words = [sys.executable, script, *where, "--arms", "ram", "flow-grpo", *sizes, *more, *small]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
        return subprocess.run(
            words, check=False, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=500
        )

    return call


@pytest.mark.slow
def test_runs_stop_go_on_and_are_used_again(compare, tmp_path):
    nothing = compare("--seconds", "0")
    assert nothing.returncode == 1 and "not begun" in nothing.stdout
    assert "no report: 0 of 0 runs" in nothing.stderr and "Traceback" not in nothing.stderr
    first = compare(iterations=1)
    assert first.returncode == 0, first.stderr
    assert first.stdout.count("done at iteration 1") == 4 and "gradients: done, 1 samples" in first.stdout
    grown = compare()
    assert grown.returncode == 0, grown.stderr
    assert grown.stdout.count("done at iteration 2") == 4 and "gradients: used again" in grown.stdout
    before = (tmp_path / "out" / "report.md").read_text()
    assert "| ram | two-stage | 1 | 2 | 4 |" in before
    again = compare()
    assert "4 of 4 runs are done already" in again.stdout and "done at" not in again.stdout
    only_read = compare("--report")
    assert only_read.returncode == 0, only_read.stderr
    assert (tmp_path / "out" / "report.md").read_text() == before
    assert len(list((tmp_path / "out").glob("*.png"))) == 7
