"""Whether a flow run's process lives is known from its lock, however the process ended."""

import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from flows.presence import find_absent, forget, present
from flows.settings import Settings


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings.read(tmp_path, environ={})


def test_a_living_run_is_not_absent_and_a_finished_one_is_forgotten(settings: Settings):
    with present(settings, str(uuid4()), "run a"):
        assert find_absent(settings) == []
    assert find_absent(settings) == []


def test_a_run_that_failed_is_looked_at_once_more(settings: Settings):
    flow_run = uuid4()
    with pytest.raises(RuntimeError), present(settings, str(flow_run), "run a"):
        raise RuntimeError
    assert find_absent(settings) == [flow_run]
    forget(settings, flow_run)
    assert find_absent(settings) == []


def test_a_killed_process_is_known(settings: Settings):
    flow_run = str(uuid4())
    code = f"""
    import os, signal
    from pathlib import Path
    from flows.presence import present
    from flows.settings import Settings
    with present(Settings.read(Path({str(settings.home)!r}), environ={{}}), {flow_run!r}, "run a"):
        os.kill(os.getpid(), signal.SIGKILL)
    """
    child = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=False)
    assert child.returncode == -signal.SIGKILL
    assert find_absent(settings) == [UUID(flow_run)]
