"""The circumstances of a measurement."""

import shlex
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import torch

from solrl_tasks.bench.reports.facts import Environment
from solrl_tasks.store.records import environment_record

_DRIVER_SECONDS = 30.0


def describe_environment(device: torch.device, arguments: list[str] | None = None) -> Environment:
    """Hardware, versions and command of a measurement that begins now.

    Args:
        arguments: of the command line; the process's own by default.
    """
    record = environment_record(str(device))
    words = list(sys.argv if arguments is None else arguments)
    return Environment(
        hardware=record["hardware"],
        device_class=record["device_class"],
        driver=_driver() if device.type == "cuda" else "",
        threads=record["threads"],
        libraries=record["libraries"] | _toolkit(),
        command=shlex.join([_program(words[0]), *words[1:]]),
        started=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _program(word: str) -> str:
    # `python -c` and `python -m` leave no name that anybody could type again.
    name = Path(word).name
    return "solrl" if name in ("-c", "-m", "__main__.py", "cli.py") else name


def _toolkit() -> dict[str, str]:
    found: str | None = torch.version.cuda
    return {"cuda": found} if found else {}


def _driver() -> str:
    program = shutil.which("nvidia-smi")
    if program is None:
        return "unknown"
    query = [program, "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=_DRIVER_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    lines = done.stdout.split()
    return lines[0] if lines else "unknown"
