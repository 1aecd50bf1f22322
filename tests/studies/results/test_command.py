"""The command itself: works, stops, goes on, reports without a device and without a store."""

import importlib.util
import json
import shutil
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[3]
SCRIPT = ROOT / "benchmarks" / "results.py"
SMALL = (
    "model.resolution=32", "prompts.per_iteration=1", "regenerate.steps=3", "explore.steps=2", "update.micro_batch=8",
    "update.lora.rank=2", "update.optimizer_steps=1", "evaluate.prompts=2", "evaluate.seeds=2",
    "evaluate.sampling.steps=2", "evaluate.sampling.chunk=2", "rewards=[{name: colourfulness}]",
)  # fmt: skip
ARMS = ("bf16-2of2", "solrl-nvfp4", "steps-4")
RUNS = 2 * len(ARMS)


@pytest.fixture(scope="module")
def module():
    spec = importlib.util.spec_from_file_location("results_command", SCRIPT)
    found = importlib.util.module_from_spec(spec)
    sys.modules["results_command"] = found
    spec.loader.exec_module(found)
    yield found
    del sys.modules["results_command"]


@pytest.fixture
def call(module, micro_model, tmp_path, monkeypatch, capsys):
    """The command in this process; returns exit status and what was printed."""
    # Processes of ranks would load everything anew; that they work is tested where they are.
    monkeypatch.setattr(module, "in_processes", lambda work, tasks, _: ((task, work(task)) for task in tasks))
    docs = tmp_path / "results.md"
    shutil.copy(ROOT / "docs" / "results.md", docs)

    def run(*more, iterations=4):
        sizes = ("--iterations", str(iterations), "--every", "1", "--candidates", "4", "--keep", "2")
        few = ("--seeds", "2", "--ablation-seeds", "2", "--rank-prompts", "2", "--references", "3", "4")
        where = ("--store", str(tmp_path / "store"), "--out", str(tmp_path / "out"), "--parallel", "1")
        words = (*where, "--config", str(ROOT / "configs" / "embedded.yaml"), "--arms", *ARMS, *sizes, *few, *more)
        changes = ("--set", f"model.source={micro_model}", *SMALL)
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), *words, "--timing-iterations", "1", *changes])
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            module.main()
        printed = capsys.readouterr().out
        return end.value.code, printed

    return run


def test_it_works_goes_on_and_reports(call, tmp_path):
    out, docs = tmp_path / "out", tmp_path / "results.md"
    code, said = call("--seconds", "0")
    assert "none of 0 runs" in str(code) and f"0 of {RUNS} runs are complete" in said, said

    code, said = call("--docs", str(docs))
    assert code == 0, said
    assert f"{RUNS} of {RUNS} runs are complete" in said and "2 of 2 runs are complete" in said
    names = {
        "report.json",
        "report.md",
        "report.html",
        "ranks.json",
        "engines.json",
        "steps.png",
        "controls-iterations.png",
    }
    assert names <= {path.name for path in out.iterdir()}
    report = json.loads((out / "report.json").read_text())
    assert {arm["name"] for arm in report["arms"]} == set(ARMS)
    # The other values of an ablation are not compared by cost.
    assert {arm["name"] for arm in report["arms"] if arm["timed"]} == set(ARMS) - {"steps-4"}
    text = docs.read_text()
    assert "**Reward at the end by explore steps**" in text and "](images/results-steps.png)" in text

    code, again = call("--docs", str(docs))
    assert code == 0 and "ranks: used again" in again and "done at iteration" not in again, again
    assert json.loads((out / "report.json").read_text())["arms"] == report["arms"]

    shutil.rmtree(out)
    code, said = call("--report", iterations=3)
    assert code == 0 and "3 iterations" in said, said
    whole = out / "report.json"
    shutil.rmtree(tmp_path / "store")
    before = (out / "report.md").read_bytes()
    code, said = call("--from", str(whole))
    assert code == 0 and (out / "report.md").read_bytes() == before


def test_a_page_without_marks_is_refused_before_the_work(call, tmp_path):
    (tmp_path / "results.md").write_text("nothing")
    code, _ = call("--docs", str(tmp_path / "results.md"))
    assert "results: summary" in str(code) and not (tmp_path / "store").exists()


def test_a_bench_that_cannot_be_read_is_named_before_the_work(call, tmp_path):
    code, _ = call("--bench", str(tmp_path / "absent.json"))
    assert "absent.json cannot be read" in str(code) and not (tmp_path / "store").exists()


def test_an_arm_that_is_not_there_is_named(call):
    code, _ = call("--arms", "no-such")
    assert "there is no arm no-such; there is bf16-2of2" in str(code)
