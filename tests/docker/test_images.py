"""docker/Dockerfile: pinned, without root, without secrets, from versions in constraints.txt and a small context."""

import fnmatch
import re
import subprocess
import sys
import tomllib
from importlib.metadata import requires
from pathlib import Path

import pytest

from docker import __name__ as _client  # the package, not the folder of that name
from flows.settings import PROJECT
from tests.support.compose import program
from tests.support.dockerfile import DOCKER, Dockerfile

FINAL = ("prefect", "mlflow", "worker", "worker-cuda", "worker-cuda-te")
PINNED = r"[\w./]+:[\w.-]+@sha256:[0-9a-f]{64}"


@pytest.fixture(scope="module")
def dockerfile() -> Dockerfile:
    return Dockerfile()


@pytest.mark.skipif(program("hadolint") is None, reason="hadolint is packaged for Linux on x86-64 alone")
def test_the_linter_finds_nothing():
    command = [str(program("hadolint")), "--no-color", str(DOCKER / "Dockerfile")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout


def test_the_folder_does_not_hide_the_package_of_its_name():
    assert _client == "docker"
    assert "site-packages" in str(sys.modules["docker"].__file__)


def test_every_base_is_pinned_by_version_and_digest(dockerfile):
    bases = {stage.base for stage in dockerfile.stages.values()} - set(dockerfile.stages)
    assert len(bases) == 2
    for base in bases:
        assert re.fullmatch(PINNED, base), base


@pytest.mark.parametrize("target", FINAL)
def test_an_image_runs_as_a_user_checks_its_health_and_holds_no_secret(dockerfile, target):
    users = [rest for stage in dockerfile.chain(target) for rest in stage.all("USER")]
    assert users[-1] == "${UID}"
    assert int(dockerfile.arguments["UID"]) >= 1000
    last = max(i for i, (name, _) in enumerate(_all(dockerfile, target)) if name == "USER")
    assert not [rest for name, rest in _all(dockerfile, target)[last:] if name == "RUN"]
    assert dockerfile.health(target)[0] == "python"
    assert dockerfile.command(target)[0] in ("prefect", "mlflow")
    said = " ".join(f"{name} {rest}" for stage in dockerfile.stages.values() for name, rest in stage.instructions)
    assert not re.search(r"PASSWORD|SECRET|TOKEN|AUTH", said)


def test_usage_reports_are_off_as_in_the_code(dockerfile):
    from solrl_tasks.tracking import telemetry

    for target in FINAL:
        assert telemetry.SETTINGS.items() <= dockerfile.environment(target).items()


def test_all_that_is_installed_is_held_to_constraints(dockerfile):
    runs = [part for stage in dockerfile.stages.values() for run in stage.all("RUN") for part in run.split("&&")]
    installs = [run for run in runs if "pip install" in run and "--editable /app" not in run]
    assert len(installs) == 6
    for run in installs:
        assert "-c /build/constraints.txt" in run


def test_servers_have_the_versions_of_the_worker(tmp_path):
    """Both are installed with one file of constraints, which names them."""
    text = (PROJECT / "constraints.txt").read_text()
    for name in ("prefect", "mlflow", "torch", "psycopg", "psycopg-binary", "boto3", "setuptools"):
        assert re.search(rf"^{name}==", text, re.MULTILINE), name
    for name in ("pyproject.toml", "constraints.txt"):
        (tmp_path / name).write_text((PROJECT / name).read_text())
    assert printed(tmp_path, "servers", "--only", "prefect", "mlflow") == [
        *(line for line in project()["dependencies"] if line.startswith(("prefect", "mlflow"))),
        *project()["optional-dependencies"]["servers"],
    ]


def test_the_worker_has_all_that_the_project_asks_for(tmp_path, dockerfile):
    (tmp_path / "pyproject.toml").write_text((PROJECT / "pyproject.toml").read_text())
    for target in ("cpu-environment", "cuda-environment"):
        (extras,) = [rest.partition("=")[2].strip('"') for rest in dockerfile.stages[target].all("ARG")]
        asked = printed(tmp_path, *extras.split())
        assert asked[: len(project()["dependencies"])] == project()["dependencies"]
        assert len(asked) == len(project()["dependencies"]) + sum(
            len(project()["optional-dependencies"][extra]) for extra in extras.split()
        )


def test_a_misspelt_extra_ends_the_build(tmp_path):
    (tmp_path / "pyproject.toml").write_text((PROJECT / "pyproject.toml").read_text())
    with pytest.raises(subprocess.CalledProcessError) as refused:
        printed(tmp_path, "rya")
    assert "has no extra 'rya': it has ocr, ray" in refused.value.stderr


def test_transformer_engine_is_the_one_that_the_project_asks_for():
    pinned = dict(re.findall(r"^([\w-]+)==(\S+)$", (DOCKER / "constraints-te.txt").read_text(), re.MULTILINE))
    assert {pinned[name] for name in pinned if name.startswith("transformer_engine")} == {"2.20.2"}
    (asked,) = project()["optional-dependencies"]["te"]
    assert asked == "transformer-engine[pytorch,core-cu13]>=2.20,<3"
    named = {line.partition("==")[0] for line in (PROJECT / "constraints.txt").read_text().splitlines()}
    assert not named & set(pinned), "held by both files"


def test_its_headers_are_of_the_python_and_cuda_of_the_bases(dockerfile):
    python = re.match(r"python:(\d+\.\d+)", dockerfile.arguments["PYTHON"])
    cuda = re.match(r"nvidia/cuda:(\d+\.\d+)", dockerfile.arguments["CUDA"])
    assert python
    assert cuda
    said = " ".join(rest for _, rest in dockerfile.stages["te-environment"].instructions)
    assert set(re.findall(r"python(\d+\.\d+)", said)) == {python[1]}
    assert set(re.findall(r"cuda-(\d+\.\d+)", said)) == {cuda[1]}


def test_the_context_holds_what_is_copied_and_little_else(dockerfile):
    context = [path.relative_to(PROJECT).as_posix() for path in _in_context()]
    for source in dockerfile.copied():
        assert source in context or [path for path in context if path.startswith(f"{source}/")], source
    tops = {path.partition("/")[0] for path in context}
    assert tops == {source.partition("/")[0] for source in dockerfile.copied()}
    assert not [path for path in context if "__pycache__" in path or Path(path).name.startswith(".")]
    assert sum((PROJECT / path).stat().st_size for path in context) < 32 * 2**20


def project() -> dict:
    return dict(tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"])


def printed(folder: Path, *arguments: str) -> list[str]:
    """What the script prints where it lies beside pyproject.toml, as in the build."""
    script = folder / "requirements.py"
    script.write_text((DOCKER / "requirements.py").read_text())
    command = [sys.executable, "-I", str(script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.split("\n")[:-1]


def _all(dockerfile: Dockerfile, target: str) -> list[tuple[str, str]]:
    return [instruction for stage in dockerfile.chain(target) for instruction in stage.instructions]


def _in_context() -> list[Path]:
    """The files that Dockerfile.dockerignore lets in: the last pattern that fits decides."""
    lines = (DOCKER / "Dockerfile.dockerignore").read_text().splitlines()
    patterns = [line for line in lines if line and not line.startswith("#")]
    tops = {line[1:].partition("/")[0] for line in patterns if line.startswith("!")}
    files = [path for top in tops for path in [PROJECT / top, *(PROJECT / top).rglob("*")] if path.is_file()]
    return [path for path in files if _let_in(path.relative_to(PROJECT), patterns)]


def _let_in(path: Path, patterns: list[str]) -> bool:
    inside = True
    for pattern in patterns:
        wanted = pattern.startswith("!")
        pattern = pattern.removeprefix("!")
        names = [part.as_posix() for part in (path, *path.parents)][:-1]
        if pattern.startswith("**/"):
            fits = any(fnmatch.fnmatch(part, pattern[3:]) for part in path.parts)
        else:
            fits = any(fnmatch.fnmatch(name, pattern) and name.count("/") == pattern.count("/") for name in names)
        if fits:
            inside = wanted
    return inside


def test_the_check_of_the_context_knows_its_patterns():
    patterns = ["*", "!flows", "**/__pycache__", "**/.*"]
    assert _let_in(Path("flows/up.py"), patterns)
    assert not _let_in(Path("docs/up.md"), patterns)
    assert not _let_in(Path("flows/__pycache__/up.pyc"), patterns)
    assert not _let_in(Path("flows/.env"), patterns)


def test_mlflow_takes_the_driver_that_the_compose_file_names():
    assert requires("psycopg") is not None
    from sqlalchemy import make_url

    url = re.search(r"MLFLOW_BACKEND_STORE_URI: (\S+)", (DOCKER / "compose.yaml").read_text())
    assert url
    assert make_url(url[1]).get_dialect().driver == "psycopg"
    assert make_url(url[1]).password is None
