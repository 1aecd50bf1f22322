"""A PostgreSQL of a test's own, made as its image makes one: passwords asked for, one superuser."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


def postgres_programs() -> Path:
    """The folder with ``initdb`` and ``postgres``: POSTGRES_BIN, that of the PATH, or the newest of Debian's.

    Without one the test is skipped, and fails in CI.
    """
    given = os.environ.get("POSTGRES_BIN") or shutil.which("initdb")
    folders = [Path(given) if given and Path(given).is_dir() else Path(given).resolve().parent] if given else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: -int(path.parent.name))
    found = [folder for folder in folders if (folder / "initdb").exists() and (folder / "postgres").exists()]
    if not found:
        missing = "PostgreSQL's initdb and postgres are not there: install Debian's postgresql, or set POSTGRES_BIN"
        (pytest.fail if os.environ.get("CI") else pytest.skip)(missing)
    return found[0]


def other_user() -> dict[str, Any]:
    """For ``subprocess``: PostgreSQL refuses to run as root, so somebody else where the tests do."""
    if os.getuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": ()}


class Cluster:
    """A server that can be stopped as its service would stop it, and started again."""

    def __init__(self, command: list[str], folder: Path, log: Path) -> None:
        self._command, self._folder, self._log = command, folder, log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Until it takes connections: one that is stopped before that does not end cleanly."""
        before = self._log.stat().st_size if self._log.exists() else 0
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(
                self._command,
                cwd=self._folder,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                **other_user(),
            )
        until = time.monotonic() + 60
        while "ready to accept connections" not in self._log.read_text()[before:]:
            assert self._process.poll() is None and time.monotonic() < until, self._log.read_text()
            time.sleep(0.1)

    def stop(self) -> None:
        """Cleanly: connections are ended and all is on the disk."""
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)
            assert self._process.wait(60) == 0, self._log.read_text()
            self._process = None


@contextmanager
def cluster(programs: Path, port: int, password: str, log: Path) -> Iterator["Cluster"]:
    """A server at a port of the loopback interface, started at once and stopped in the end."""
    # Not in a folder of pytest's: whom it runs as could not enter that.
    folder = Path(tempfile.mkdtemp(prefix="solrl-postgres-"))
    try:
        secret = folder / "password"
        secret.write_text(password)
        user = other_user()
        for path in (folder, secret):
            os.chown(path, user.get("user", -1), user.get("group", -1))
        data = folder / "data"
        made = [programs / "initdb", "--pgdata", data, "--username=postgres", f"--pwfile={secret}"]
        made += ["--auth=scram-sha-256", "--no-sync", "--encoding=UTF8", "--no-locale"]
        subprocess.run(made, check=True, cwd=folder, stdout=subprocess.DEVNULL, timeout=120, **user)
        secret.unlink()
        options = {"port": port, "listen_addresses": "127.0.0.1", "unix_socket_directories": "", "fsync": "off"}
        settings = [part for name, value in options.items() for part in ("-c", f"{name}={value}")]
        server = Cluster([str(programs / "postgres"), "-D", str(data), *settings], folder, log)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder)


def query(programs: Path, port: int, role: str, password: str, database: str, statement: str) -> str:
    """The rows of a statement, without headings; an error where the server refuses."""
    env: Mapping[str, str] = {"PATH": os.environ["PATH"], "PGPASSWORD": password}
    command = [programs / "psql", "--no-psqlrc", "--tuples-only", "--no-align", "--host=127.0.0.1", f"--port={port}"]
    command += [f"--username={role}", f"--dbname={database}", f"--command={statement}"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode:
        raise PermissionError(done.stderr)
    return done.stdout.strip()
