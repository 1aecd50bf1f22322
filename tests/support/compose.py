"""docker/compose.yaml as Docker's own client reads it."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.dockerfile import DOCKER

SECRETS = {
    "SOLRL_POSTGRES_PASSWORD": "postgres-password",
    "SOLRL_PREFECT_DB_PASSWORD": "prefect's p@ss/word",
    "SOLRL_MLFLOW_DB_PASSWORD": "mlflow's p@ss/word",
    "SOLRL_PREFECT_AUTH": "someone:prefect-api",
}
"""Everything that has no default. Quotes, slashes and at-signs show where a password would have to be escaped."""


def program(name: str) -> str | None:
    """A program of the environment that runs the tests, or None."""
    return shutil.which(name, path=str(Path(sys.executable).parent))


def compose(
    *arguments: str, env: Mapping[str, str] = SECRETS, files: tuple[str, ...] = ("compose.yaml",)
) -> "subprocess.CompletedProcess[str]":
    """Docker Compose with the files of docker/ and nothing else of the environment. No engine is spoken to."""
    named = [part for file in files for part in ("--file", str(DOCKER / file))]
    command = [str(program("docker-compose")), "--env-file", os.devnull, *named, *arguments]
    path = os.environ.get("PATH", os.defpath)
    return subprocess.run(
        command, env={"PATH": path, "HOME": os.devnull, **env}, capture_output=True, text=True, timeout=60, check=False
    )


def read_compose(env: Mapping[str, str] = SECRETS, files: tuple[str, ...] = ("compose.yaml",)) -> dict[str, Any]:
    """The file with its variables put in, merged and in the long form."""
    done = compose("config", "--format", "json", env=env, files=files)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))
