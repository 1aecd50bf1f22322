"""docker/compose.yaml is what Docker's own client takes, opens no door, and fits the code that it starts."""

import re
import shlex
import subprocess
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

from flows.settings import MLFLOW_PORT, PREFECT_PORT, PROJECT, Settings
from tests.support.compose import SECRETS, compose, program, read_compose
from tests.support.dockerfile import DOCKER, Dockerfile, service_target

pytestmark = pytest.mark.skipif(
    program("docker-compose") is None, reason="Docker Compose is packaged for Linux on x86-64 alone"
)
OURS = {"prefect", "mlflow", "deploy", "worker"}
FILES = [("compose.yaml",), ("compose.yaml", "compose.cuda.yaml")]
each_form = pytest.mark.parametrize("files", FILES, ids=["cpu", "cuda"])


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    return dict(read_compose()["services"])


@each_form
def test_the_client_takes_it_and_services_are_hardened(files):
    services = read_compose(files=files)["services"]
    assert set(services) == OURS | {"database"}
    for name, service in services.items():
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert set(service["deploy"]["resources"]["limits"]) == {"cpus", "memory", "pids"}, name
        assert not {"privileged", "cap_add", "network_mode", "pid", "ipc", "devices"} & set(service), name


@pytest.mark.parametrize("name", sorted(SECRETS))
@pytest.mark.parametrize("given", [None, ""])
def test_no_secret_has_a_default(name, given):
    left = {key: value for key, value in SECRETS.items() if key != name}
    refused = compose("config", env=left if given is None else left | {name: given})
    assert refused.returncode != 0
    assert f"required variable {name} is missing a value: set it in docker/.env" in refused.stderr
    assert "docs/docker.md" in refused.stderr


def test_no_place_that_a_secret_is_put_in_does_without_it():
    for file in ("compose.yaml", "compose.cuda.yaml"):
        used = re.findall(r"\$\{?(\w+)(:\?)?", (DOCKER / file).read_text())
        assert not [name for name, required in used if name in SECRETS and not required], file


def test_secrets_are_seen_only_by_those_who_need_them(services):
    seen = {
        name: {key for key, value in SECRETS.items() if value in str(service["environment"])}
        for name, service in services.items()
    }
    assert seen == {
        "database": {"SOLRL_POSTGRES_PASSWORD", "SOLRL_PREFECT_DB_PASSWORD", "SOLRL_MLFLOW_DB_PASSWORD"},
        "prefect": {"SOLRL_PREFECT_DB_PASSWORD", "SOLRL_PREFECT_AUTH"},
        "mlflow": {"SOLRL_MLFLOW_DB_PASSWORD"},
        "deploy": {"SOLRL_PREFECT_AUTH"},
        "worker": {"SOLRL_PREFECT_AUTH"},
    }
    for service in services.values():
        outside = {key: value for key, value in service.items() if key != "environment"}
        assert not [value for value in SECRETS.values() if value in str(outside)]


def test_ports_are_those_of_the_code_and_on_loopback_only(services):
    published = {name: service["ports"] for name, service in services.items() if "ports" in service}
    assert {name: ports[0]["target"] for name, ports in published.items()} == {
        "prefect": PREFECT_PORT,
        "mlflow": MLFLOW_PORT,
    }
    for name, ports in published.items():
        assert [(port["host_ip"], port["published"]) for port in ports] == [("127.0.0.1", str(ports[0]["target"]))], (
            name
        )


def test_other_ports_are_published_and_answered_to():
    services = read_compose(SECRETS | {"SOLRL_PREFECT_PORT": "4300", "SOLRL_MLFLOW_PORT": "5100"})["services"]
    assert services["prefect"]["ports"][0]["published"] == "4300"
    assert services["mlflow"]["ports"][0]["published"] == "5100"
    hosts = services["mlflow"]["environment"]["MLFLOW_SERVER_ALLOWED_HOSTS"]
    assert hosts == "mlflow:5000,127.0.0.1:5100,localhost:5100"


def test_only_the_servers_reach_the_database_and_it_has_no_way_out():
    tree = read_compose()
    assert tree["networks"]["data"]["internal"] is True
    on_data = {name for name, service in tree["services"].items() if "data" in service["networks"]}
    assert on_data == {"database", "prefect", "mlflow"}
    assert set(tree["services"]["worker"]["networks"]) == {"control"}


def test_nothing_starts_before_what_it_needs(services):
    conditions = {
        name: {other: how["condition"] for other, how in service.get("depends_on", {}).items()}
        for name, service in services.items()
    }
    assert conditions == {
        "database": {},
        "prefect": {"database": "service_healthy"},
        "mlflow": {"database": "service_healthy"},
        "deploy": {"prefect": "service_healthy"},
        "worker": {"deploy": "service_completed_successfully", "mlflow": "service_healthy"},
    }


def test_what_is_kept_is_on_named_volumes():
    tree = read_compose()
    mounts = {
        (name, mount["source"], mount["target"])
        for name, service in tree["services"].items()
        for mount in service.get("volumes", [])
        if mount["type"] == "volume"
    }
    assert mounts == {
        ("database", "postgres", "/var/lib/postgresql"),
        ("mlflow", "artifacts", "/data"),
        ("worker", "home", "/data"),
    }
    assert set(tree["volumes"]) == {source for _, source, _ in mounts}


@each_form
def test_images_are_of_this_version_and_of_stages_that_exist(files):
    version = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["version"]
    services = read_compose(files=files)["services"]
    for name in OURS:
        assert services[name]["image"].endswith(f":{version}"), name
        assert service_target(services[name]) in Dockerfile().stages, name
    assert services["deploy"]["image"] == services["worker"]["image"]


def test_gpus_and_transformer_engine_are_asked_for():
    env = SECRETS | {"SOLRL_CUDA_TARGET": "worker-cuda-te"}
    services = read_compose(env, FILES[1])["services"]
    assert service_target(services["worker"]) == service_target(services["deploy"]) == "worker-cuda-te"
    (device,) = services["worker"]["deploy"]["resources"]["reservations"]["devices"]
    assert device["capabilities"] == ["gpu"]
    assert "reservations" not in services["deploy"]["deploy"]["resources"]


def test_the_code_reads_what_the_worker_is_given(services):
    worker = services["worker"]
    env = {**Dockerfile().environment("worker"), **{k: v for k, v in worker["environment"].items() if v is not None}}
    settings = Settings.read(environ=env)
    assert settings.home == Path("/data")
    assert settings.prefect.url == "http://prefect:4200/api"
    assert settings.mlflow.url == "http://mlflow:5000"
    assert settings.prefect_home == Path("/data/prefect")
    assert Settings.read(environ=env | {"SOLRL_STORE": "s3://bucket/store"}).store_url == "s3://bucket/store"
    read = "\n".join(
        path.read_text("utf-8") for top in ("flows", "solrl_tasks") for path in (PROJECT / top).rglob("*.py")
    )
    page = (PROJECT / "docs/operations.md").read_text("utf-8")
    for name in worker["environment"]:
        if name.startswith("SOLRL_"):
            assert f'"{name}"' in read, name
        if name.startswith("AWS_"):
            assert f"`{name}`" in page, name


def test_credentials_of_a_bucket_are_passed_on_and_left_out_where_there_are_none(services):
    assert services["worker"]["environment"]["AWS_ACCESS_KEY_ID"] is None
    given = SECRETS | {
        "AWS_ACCESS_KEY_ID": "key",
        "SOLRL_STORE": "s3://bucket/store",
        "SOLRL_MLFLOW_ARTIFACTS": "s3://b/m",
    }
    services = read_compose(given)["services"]
    assert services["worker"]["environment"]["AWS_ACCESS_KEY_ID"] == "key"
    assert services["mlflow"]["environment"]["AWS_ACCESS_KEY_ID"] == "key"
    assert services["worker"]["environment"]["SOLRL_STORE"] == "s3://bucket/store"
    assert services["mlflow"]["environment"]["MLFLOW_ARTIFACTS_DESTINATION"] == "s3://b/m"


def test_the_example_names_every_variable_and_no_other():
    text = (DOCKER / "env.example").read_text()
    named = set(re.findall(r"^#?(\w+)=", text, re.MULTILINE))
    files = "".join((DOCKER / file).read_text() for file in ("compose.yaml", "compose.cuda.yaml"))
    files = re.sub(r"^\s*#.*$", "", files, flags=re.MULTILINE)
    used = set(re.findall(r"\$\{(\w+)", files)) | set(re.findall(r"^\s+((?:AWS|HF|SOLRL)_\w+):$", files, re.MULTILINE))
    assert named == used
    assert set(re.findall(r"^(\w+)=$", text, re.MULTILINE)) == set(SECRETS)
    assert not re.search(r"^\w+=.", text, re.MULTILINE), "a value that a copy would bring along"


def test_what_holds_passwords_is_ignored_by_git():
    asked = subprocess.run(["git", "check-ignore", "docker/.env"], cwd=PROJECT, capture_output=True, check=False)
    assert asked.returncode in (0, 128), "docker/.env could be committed"


def test_the_pool_is_that_of_the_deployments(services):
    pools = {
        deployment["work_pool"]["name"]
        for deployment in yaml.safe_load((PROJECT / "prefect.yaml").read_text())["deployments"]
    }
    created = re.search(r"work-pool create (\S+)", services["deploy"]["command"][-1])
    command = shlex.join(Dockerfile().command("worker"))
    started = re.search(r"worker start --pool (\S+)", command)
    assert created
    assert started
    assert pools == {created[1]} == {started[1]}
    assert "--limit 1" in command


def test_the_pool_has_every_deployment():
    from flows.deployments import DEPLOYMENTS

    deployments = yaml.safe_load((PROJECT / "prefect.yaml").read_text())["deployments"]
    named = set()
    for deployment in deployments:
        module, _, attribute = deployment["entrypoint"].rpartition(".")
        flow = getattr(import_module(module), attribute)
        named.add(f"{flow.name}/{deployment['name']}")
    assert named == set(DEPLOYMENTS)


def test_the_page_names_every_variable_and_service(services):
    page = (PROJECT / "docs/docker.md").read_text("utf-8")
    named = set(re.findall(r"^#?(\w+)=", (DOCKER / "env.example").read_text(), re.MULTILINE))
    cells = "".join(line for line in page.splitlines() if line.startswith("| `"))
    assert named <= set(re.findall(r"`(\w+)`", cells))
    assert set(services) <= set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    for words in (shlex.split(line, comments=True) for line in page.splitlines() if line.startswith("docker compose ")):
        assert words[2:4] == ["-f", "docker/compose.yaml"]
        rest = words[6:] if words[4] == "-f" else words[4:]
        assert rest[0] in ("up", "exec", "cp", "stop", "down")
        if rest[0] == "exec":
            assert rest[1] in services


def test_postgresql_is_pinned_and_the_script_of_databases_can_be_run(services):
    assert re.fullmatch(r"postgres:\d+\.\d+-\w+@sha256:[0-9a-f]{64}", services["database"]["image"])
    (script,) = [m for m in services["database"]["volumes"] if m["type"] == "bind"]
    assert script["read_only"]
    assert Path(script["source"]).stat().st_mode & 0o111 == 0o111
    assert script["target"].startswith("/docker-entrypoint-initdb.d/")
