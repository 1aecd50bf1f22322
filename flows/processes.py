"""Processes, their groups, signals and ports: what starting and stopping servers needs of the system."""

import contextlib
import os
import signal
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil

from flows.errors import UserError
from flows.settings import LOOPBACK

ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def find_alive(pid: int, created: float) -> psutil.Process | None:
    """The process of that number, if it is still the one created at that time (seconds since 1970)."""
    try:
        process = psutil.Process(pid)
        same = abs(process.create_time() - created) < 1.0 and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return None
    return process if same else None


def runtime_folder() -> Path:
    """A folder for what commands of this user on this machine must know of each other.

    Raises:
        UserError: somebody else made it.
    """
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    folder = Path(base) / f"solrl-{os.getuid()}"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.stat().st_uid != os.getuid():
        raise UserError(f"{folder} belongs to another user: name another place with XDG_RUNTIME_DIR")
    return folder


def signal_group(leader: int, number: int) -> None:
    """Send a signal to a whole process group; nothing happens where it is gone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


def port_taken(port: int) -> bool:
    """Whether something listens at this port of the loopback interface."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((LOOPBACK, port))
        except OSError:
            return True
    return False


def free_port(above: int) -> int | None:
    """The first free port above this one, to propose to the user."""
    return next((port for port in range(above + 1, min(above + 1000, 65536)) if not port_taken(port)), None)


@contextlib.contextmanager
def signals_ignored() -> Iterator[None]:
    """Let nothing interrupt the block, which must be bounded in time."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def raise_on_termination() -> None:
    """Make SIGTERM and a closed terminal end this command as Ctrl-C does: it stops what it started.

    Whoever starts it with a closed terminal (``nohup``) or Ctrl-C ignored (a script, in the background) means that, and
    it stays so.
    """

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    if not ignored(signal.SIGHUP):
        signal.signal(signal.SIGHUP, interrupt)


def ignored(number: signal.Signals) -> bool:
    """Whether a signal does nothing to this process."""
    return signal.getsignal(number) == signal.SIG_IGN
