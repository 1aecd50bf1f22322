"""What commands do with signals; of a process of its own, as they are for a whole process."""

import signal
import subprocess
import sys

import pytest

COMMAND = """
import os, signal
from flows.processes import raise_on_termination
raise_on_termination()
try:
    os.kill(os.getpid(), signal.{number})
    print("went on")
except KeyboardInterrupt:
    print("stopped")
"""


@pytest.mark.parametrize(
    ("number", "ignored", "said"),
    [
        ("SIGTERM", "", "stopped"),
        ("SIGHUP", "", "stopped"),
        ("SIGINT", "", "stopped"),
        ("SIGTERM", "INT,HUP", "stopped"),
        ("SIGHUP", "HUP", "went on"),
        ("SIGINT", "INT", "went on"),
    ],
)
def test_what_is_to_be_ignored_stays_so_and_the_rest_stops_a_command(number: str, ignored: str, said: str):
    before = ["env", f"--ignore-signal={ignored}"] if ignored else []
    command = [*before, sys.executable, "-c", COMMAND.format(number=number)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == said


def test_the_tests_are_started_with_what_ctrl_c_sends():
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
