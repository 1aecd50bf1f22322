"""What every test runs under: no network, no reports home, nothing of the user's own set-up."""

import atexit
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

# Started in the background of a script, pytest and all that tests start would ignore what Ctrl-C sends.
signal.signal(signal.SIGINT, signal.default_int_handler)
_FOREIGN = ("PREFECT_", "MLFLOW_", "SOLRL_")
for _name in [name for name in os.environ if name.startswith(_FOREIGN)]:
    del os.environ[_name]


def _own_folder(name: str) -> str:
    """A folder for as long as this process lives; one that it forked leaves it alone."""
    folder, owner = tempfile.mkdtemp(prefix=f"solrl-tests-{name}-"), os.getpid()
    atexit.register(lambda: shutil.rmtree(folder, ignore_errors=True) if os.getpid() == owner else None)
    return folder


os.environ.update(
    {
        "HF_HUB_OFFLINE": "1",
        "DO_NOT_TRACK": "true",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "XDG_RUNTIME_DIR": _own_folder("runtime"),
        "PREFECT_HOME": _own_folder("prefect"),
    }
)
os.environ.setdefault("OMP_NUM_THREADS", "2")
if not torch.cuda.is_available():
    # Before anything imports Triton: its kernels then run on the CPU.
    os.environ.setdefault("TRITON_INTERPRET", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Quick tests first: a mistake shows soon."""
    items.sort(key=lambda item: item.get_closest_marker("slow") is not None)


@pytest.fixture(scope="session")
def prefect_server() -> Iterator[None]:
    """A Prefect server of the session's own, with an empty database; 16 s to start, so one for all tests."""
    from prefect.testing.utilities import prefect_test_harness

    with prefect_test_harness(server_startup_timeout=180):
        yield


@pytest.fixture(scope="session")
def micro_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a random FluxPipeline of the embedded model's kind."""
    from solrl_tasks.pretrain.architecture import MICRO, build_pipeline

    folder = tmp_path_factory.mktemp("models") / "micro"
    build_pipeline(MICRO).save_pretrained(folder)
    return folder


@pytest.fixture
def free_ports() -> tuple[int, int]:
    """Two ports that nothing listens at."""
    from flows.processes import free_port
    from tests.support.ports import first_port

    first = free_port(first_port())
    assert first is not None
    second = free_port(first)
    assert second is not None
    return first, second
