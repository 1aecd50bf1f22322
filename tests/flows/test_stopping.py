"""Studies that are stopped: they end at once, say that they can go on, and do."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest


def start(home: Path, *words: str) -> subprocess.Popen[str]:
    code = "from flows.cli import main; main()"
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MLFLOW_TRACKING_URI": f"sqlite:///{home}/mlflow.db"}
    command = [sys.executable, "-c", code, "study", *words, "--home", str(home)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_study_says_that_it_goes_on_and_does(tmp_path: Path, micro_config: Path, number: signal.Signals):
    words = ("ablation", "--vary", "explore.steps=1,2,3,4", "--seeds", "1-8", "--parallel", "2", "--iterations", "1")
    study = start(tmp_path, *words, "--config", str(micro_config))
    ends = time.monotonic() + 120
    while not list((tmp_path / "store" / "runs").glob("*/iterations/0001/summary.json")):
        assert study.poll() is None and time.monotonic() < ends, study.communicate()
        time.sleep(0.05)
    started = psutil.Process(study.pid).children(recursive=True)
    study.send_signal(number)
    _, said = study.communicate(timeout=60)
    assert study.returncode == 130
    assert "the same command goes on from there" in said and "Traceback" not in said
    _, left = psutil.wait_procs(started, timeout=10)
    assert not left
    planned = start(tmp_path, *words, "--config", str(micro_config), "--plan", "--json")
    out, said = planned.communicate(timeout=60)
    assert planned.returncode == 0, said
    assert any(arm["committed"] for arm in json.loads(out)["arms"])
