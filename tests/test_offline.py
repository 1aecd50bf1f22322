"""A whole run, and its way into MLflow, without a network and without asking for one."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.micro import micro_recipe, write_prompts

ROOT = Path(__file__).resolve().parents[1]
SWITCHES = ("HF_", "DO_NOT_TRACK", "MLFLOW_", "PREFECT_", "TRANSFORMERS_OFFLINE")
"""Set by the tests' own configuration: here the project must do without."""

CHILD = """
import socket, sys
from pathlib import Path

attempts = Path(sys.argv[1])

def watch(event, arguments):
    if event == "socket.connect" or event == "socket.sendto":
        outside = arguments[0].family != socket.AF_UNIX and arguments[1][0] not in ("127.0.0.1", "::1")
        if not outside:
            return
    elif event not in ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr"):
        return
    elif arguments[0] in (None, "", "localhost", "127.0.0.1", "::1", socket.gethostname()):
        return
    with attempts.open("a") as file:
        file.write(f"{event} {arguments[-1] if 'connect' in event else arguments[0]}\\n")
    raise OSError("there is no network")

sys.addaudithook(watch)
if sys.argv[2:] == ["outside"]:
    import urllib.request
    urllib.request.urlopen("http://example.org/")

from solrl_tasks.config.recipe import Recipe
from solrl_tasks.stages.iteration import run_all
from solrl_tasks.stages.session import open_session
from solrl_tasks.tracking.mlflow_run import RunFacts, publish

folder = Path(sys.argv[2])
recipe = Recipe.model_validate_json((folder / "recipe.json").read_text())
with open_session(folder / "store", "run", recipe) as session:
    summaries = list(run_all(session))
facts = RunFacts(
    run_id="run", store_id="store", experiment="offline", device_kind="cpu",
    recipe=recipe.model_dump(mode="json"), engines={"bf16": "real"}, versions={},
)
publish(summaries, facts, f"sqlite:///{folder}/mlflow.db", status="FINISHED")
import flows.cli, flows.deployments
print("committed", len(summaries))
"""


def child(folder: Path, what: str, environment: dict[str, str]) -> tuple[subprocess.CompletedProcess[str], str]:
    attempts = folder / "attempts.txt"
    attempts.touch()
    # Where the kernel allows it, there is really no network, whatever the hook sees.
    apart = ["unshare", "--map-root-user", "--net"]
    cut = shutil.which("unshare") and not subprocess.run([*apart, "true"], capture_output=True, check=False).returncode
    command = [*(apart if cut else []), sys.executable, "-c", CHILD, str(attempts), what]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
    return done, attempts.read_text()


def plain_environment(folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(SWITCHES)}
    return kept | {"OMP_NUM_THREADS": "1", "HOME": str(folder), "PREFECT_HOME": str(folder / "prefect")}


def test_the_watch_sees_an_attempt(tmp_path):
    done, attempts = child(tmp_path, "outside", plain_environment(tmp_path))
    assert done.returncode != 0 and "there is no network" in done.stderr
    assert "socket.getaddrinfo example.org" in attempts


def test_a_run_and_its_tracking_ask_for_no_network(micro_model, tmp_path):
    recipe = micro_recipe(micro_model, write_prompts(tmp_path), iterations=1)
    (tmp_path / "recipe.json").write_text(recipe.model_dump_json())
    done, attempts = child(tmp_path, str(tmp_path), plain_environment(tmp_path))
    assert done.returncode == 0, done.stderr[-3000:]
    assert "committed 2" in done.stdout
    assert attempts == ""
