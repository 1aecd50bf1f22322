"""A training run through all services of the compose file, as processes: what can be known of it without an engine."""

import base64
import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import psutil
import pytest
import yaml

from flows.processes import port_taken
from solrl_tasks.store.root import Store
from solrl_tasks.store.runs import list_runs
from tests.support.compose import SECRETS, program
from tests.support.micro import micro_recipe, write_prompts
from tests.support.postgres import query
from tests.support.s3 import ACCESS, serving, speaking_to
from tests.support.topology import Topology

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(
        program("docker-compose") is None, reason="Docker Compose is packaged for Linux on x86-64 alone"
    ),
]


@pytest.fixture(scope="module")
def topology(tmp_path_factory: pytest.TempPathFactory, micro_model: Path) -> Iterator[Topology]:
    """All services up, and one run finished that was asked for beside the worker."""
    with Topology(tmp_path_factory.mktemp("topology")) as topology:
        train(topology, micro_model)
        yield topology


def train(topology: Topology, model: Path) -> None:
    """Ask for a run as ``docker compose exec worker`` would, and wait for its end."""
    recipe = micro_recipe(model, write_prompts(topology.folder), iterations=1)
    config = topology.folder / "micro.yaml"
    config.write_text(yaml.safe_dump(recipe.model_dump(mode="json", exclude_unset=True)), encoding="utf-8")
    asked = ["solrl/train", "-p", f"config={config}", "-p", "run_id=stack", "--watch"]
    done = topology.execute("worker", "prefect", "deployment", "run", *asked)
    assert done.returncode == 0, done.stdout + done.stderr + topology.said("worker")


def fetch(url: str, content: Any = None, **headers: str) -> Any:
    body = None if content is None else json.dumps(content).encode()
    request = urllib.request.Request(url, body, {"Content-Type": "application/json", **headers})
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.loads(response.read())


def rows(topology: Topology, server: str, statement: str) -> str:
    password = SECRETS[f"SOLRL_{server.upper()}_DB_PASSWORD"]
    return query(topology.programs, topology.ports["database"], server, password, server, statement)


def test_the_run_is_in_the_workers_store(topology: Topology):
    (run,) = list_runs(Store(topology.place("worker", "data") / "store"))
    assert (run.run_id, run.status, run.committed) == ("stack", "finished", 2)


def test_commands_beside_the_worker_find_store_and_servers(topology: Topology):
    done = topology.execute("worker", "solrl", "runs")
    assert done.returncode == 0, done.stderr
    assert "stack" in done.stdout
    done = topology.execute("worker", "solrl", "doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    assert topology.url("prefect") in done.stdout
    assert topology.url("mlflow") in done.stdout


def test_prefect_has_it_in_postgresql(topology: Topology):
    login = base64.b64encode(SECRETS["SOLRL_PREFECT_AUTH"].encode()).decode()
    api = topology.url("prefect") + "/api"
    asked = {"flow_runs": {"name": {"any_": ["stack"]}}}
    (flow_run,) = fetch(f"{api}/flow_runs/filter", asked, Authorization=f"Basic {login}")
    assert flow_run["state_type"] == "COMPLETED"
    assert flow_run["work_pool_name"] == "solrl-local"
    said = rows(topology, "prefect", "SELECT id, state_type FROM flow_run WHERE name = 'stack'")
    assert said == f"{flow_run['id']}|COMPLETED"


def test_mlflow_has_it_in_postgresql_and_its_files_on_the_volume(topology: Topology):
    api = topology.url("mlflow") + "/api/2.0/mlflow"
    experiments = [
        found["experiment_id"] for found in fetch(f"{api}/experiments/search?max_results=100")["experiments"]
    ]
    (run,) = fetch(f"{api}/runs/search", {"experiment_ids": experiments})["runs"]
    assert run["info"]["run_name"] == "stack"
    assert run["info"]["status"] == "FINISHED"
    assert {"gpu_hours/spent", "eval/colourfulness"} <= {metric["key"] for metric in run["data"]["metrics"]}
    assert rows(topology, "mlflow", "SELECT name, status FROM runs") == "stack|FINISHED"
    artifacts = topology.place("mlflow", "data") / "artifacts"
    assert [path for path in artifacts.rglob("*") if path.is_file()]


def test_no_server_has_a_database_of_its_own_or_writes_where_an_image_is_read_only(topology: Topology):
    assert not [path for name in ("prefect.db", "mlflow.db") for path in topology.folder.rglob(name)]
    for name in ("prefect", "mlflow"):
        assert not list(topology.place(name, "app").iterdir())
    assert not list(topology.place("prefect", "data").iterdir())
    assert [path.name for path in topology.place("mlflow", "data").iterdir()] == ["artifacts"]


def test_the_database_opens_to_no_one_else(topology: Topology):
    port, password = topology.ports["database"], SECRETS["SOLRL_PREFECT_DB_PASSWORD"]
    with pytest.raises(PermissionError, match="permission denied for database"):
        query(topology.programs, port, "prefect", password, "mlflow", "SELECT 1")
    with pytest.raises(PermissionError, match="password authentication failed"):
        query(topology.programs, port, "prefect", "wrong", "prefect", "SELECT 1")
    assert rows(topology, "prefect", "SELECT rolsuper FROM pg_roles WHERE rolname IN ('prefect', 'mlflow')") == "f\nf"


def test_prefect_asks_for_its_password(topology: Topology):
    with pytest.raises(urllib.error.HTTPError, match="401"):
        fetch(topology.url("prefect") + "/api/flow_runs/filter", {})
    assert fetch(topology.url("prefect") + "/ui-settings")["api_url"] == "/api"


def test_mlflow_answers_to_its_own_names_only(topology: Topology):
    url = topology.url("mlflow") + "/api/2.0/mlflow/experiments/search?max_results=1"
    port = topology.ports["mlflow"]
    for host in (f"localhost:{port}", f"127.0.0.1:{port}"):
        assert fetch(url, Host=host)
    with pytest.raises(urllib.error.HTTPError, match="403"):
        fetch(url, Host="elsewhere.example")


def test_all_of_it_ends_when_asked_to(topology: Topology):
    children = [child for p in topology.processes.values() if p.poll() is None for child in _family(p.pid)]
    assert len(children) >= 3
    topology.started.close()
    psutil.wait_procs(children, timeout=5)
    assert not [child for child in children if child.is_running()]
    assert not [name for name, port in topology.ports.items() if port_taken(port)]


def test_store_and_mlflows_files_lie_in_a_bucket(tmp_path: Path, micro_model: Path, monkeypatch: pytest.MonkeyPatch):
    with serving() as server, speaking_to(server) as store:
        bucket = store.removeprefix("s3://").partition("/")[0]
        named = {"SOLRL_STORE": store, "SOLRL_MLFLOW_ARTIFACTS": f"s3://{bucket}/mlflow"}
        with Topology(tmp_path, {**SECRETS, **ACCESS, **named, "AWS_ENDPOINT_URL_S3": server.url}) as topology:
            train(topology, micro_model)
        (run,) = list_runs(Store(store))
        assert (run.run_id, run.status, run.committed) == ("stack", "finished", 2)
        client = boto3.client("s3", endpoint_url=server.url)
        files = [found["Key"] for found in client.list_objects_v2(Bucket=bucket, Prefix="mlflow/")["Contents"]]
        client.close()
        assert [path for path in files if "/artifacts/" in path]
    assert not (tmp_path / "worker" / "data" / "store").exists()
    assert not list((tmp_path / "mlflow" / "data").iterdir())


def _family(pid: int) -> list[psutil.Process]:
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]
