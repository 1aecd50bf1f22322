"""Which flow runs have a living process: one lock file each, dropped by the kernel when the process goes.

Prefect cannot know that a machine lost its power: such a run stays Running for ever. Its lock file tells.
"""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

from flows.settings import Settings
from solrl_tasks.store.locks import FileLock, holder


@contextmanager
def present(settings: Settings, flow_run_id: str, name: str) -> Iterator[None]:
    """Show that this process is running a flow run, for as long as the block lasts.

    The file is removed only after a good end. After any other, what the server thinks of the run is
    checked once more.
    """
    path = _folder(settings) / f"{flow_run_id}.lock"
    with FileLock(path, f"flow run {name}").hold():
        yield
    path.unlink(missing_ok=True)


def find_absent(settings: Settings) -> list[UUID]:
    """Flow runs that began on this machine and whose process is gone."""
    folder = _folder(settings)
    return [UUID(path.stem) for path in sorted(folder.glob("*.lock")) if holder(path) is None]


def forget(settings: Settings, flow_run_id: UUID) -> None:
    """Drop what is known of a flow run whose process is gone, once the server knows it as well."""
    (_folder(settings) / f"{flow_run_id}.lock").unlink(missing_ok=True)


def _folder(settings: Settings) -> Path:
    # By host: on a shared folder, the locks of another machine say nothing about its processes here.
    return settings.home / "flows" / socket.gethostname()
