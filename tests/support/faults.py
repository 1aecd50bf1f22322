"""Faults of a disk and of a clock, around runs in processes of their own.

The disk is a real one where the system lets a user have a mount of their own (namespaces of Linux): a few megabytes of
memory. Each function is run by ``in_child`` and returns JSON.
"""

import ctypes
import errno
import json
import os
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from flows.errors import in_words, is_for_people
from solrl_tasks.config.recipe import Recipe
from solrl_tasks.store.root import Store
from solrl_tasks.store.runs import list_runs
from tests.support.contents import run_contents
from tests.support.killing import CONTEXT, leftovers

NAMESPACES = 0x10000000 | 0x00020000
"""CLONE_NEWUSER and CLONE_NEWNS."""
PRIVATE = 0x4000 | 0x40000
"""MS_REC and MS_PRIVATE."""
DAY = 86_400.0
TIMEOUT = 300.0
BALLAST = "ballast"


class NoMountError(Exception):
    """The system lets nobody mount here."""


def in_child(work: Callable[..., Any], folder: Path, *arguments: Any) -> Any:
    """What a function of this module returns, run in a process of its own."""
    answer = folder / f"{work.__name__}-{time.monotonic_ns()}.json"
    process = CONTEXT.Process(target=_answer, args=(work, folder, arguments, str(answer)))
    process.start()
    process.join(TIMEOUT)
    if process.exitcode is None:
        process.kill()
        raise AssertionError(f"{work.__name__} hangs")
    said = json.loads(answer.read_text())
    if "skip" in said:
        pytest.skip(said["skip"])
    assert "error" not in said, said["error"]
    return said["answer"]


def _answer(work: Callable[..., Any], folder: Path, arguments: tuple[Any, ...], answer: str) -> None:
    import torch

    torch.set_num_threads(1)
    try:
        said = {"answer": work(folder, *arguments)}
    except NoMountError as error:
        said = {"skip": f"no disk of its own for the test: {error}"}
    except BaseException:
        said = {"error": traceback.format_exc()}
    Path(answer).write_text(json.dumps(said))


def run(root: Path, recipe: Recipe, at: Callable[[str], None] = lambda stage: None) -> str:
    """A run from where it stands, ``at`` called as each stage begins.

    Returns:
        What a person is told of the error that ended it; empty if none did.
    """
    from solrl_tasks.stages.iteration import run_all
    from solrl_tasks.stages.session import open_session

    def call(stage: Callable[..., Any], session: Any, job: Any) -> Any:
        at(f"{job.step}/{getattr(job, 'stage', '') or stage.__name__}")
        return stage(session, job)

    try:
        with open_session(root, "run", recipe) as session:
            for _ in run_all(session, call):
                pass
    except OSError as error:
        assert is_for_people(error), repr(error)
        return in_words(error)
    return ""


def whole(folder: Path, recipe: str) -> dict[str, Any]:
    """Contents of a run that nothing disturbs."""
    assert run(folder / "store", Recipe.model_validate_json(recipe)) == ""
    return run_contents(folder / "store", "run")


def full_disk(folder: Path, recipe: str, stage: str, real: bool) -> dict[str, Any]:
    """A run whose disk is full from a stage on, and which goes on when there is room again."""
    parsed = Recipe.model_validate_json(recipe)
    root = folder / "disk" / "store"
    if real:
        mount_memory(folder / "disk", megabytes=24)
        said = run(root, parsed, lambda begun: fill(folder / "disk") if begun == stage else None)
        (folder / "disk" / BALLAST).unlink()
    else:
        said = _run_refused(root, parsed, stage, errno.ENOSPC)
    return _gone_on(root, parsed, said)


def read_only(folder: Path, recipe: str, stage: str, real: bool) -> dict[str, Any]:
    """A run whose store may not be written any more from a stage on."""
    parsed = Recipe.model_validate_json(recipe)
    root = folder / "store"
    if real:
        give_up_privileges()
        said = run(root, parsed, lambda begun: writable(root, False) if begun == stage else None)
        again = run(root, parsed)
        assert "It may not be written by this user" in again, again
        (shown,) = list_runs(Store.open(root, create=False))
        assert shown.status == "interrupted"
        writable(root, True)
    else:
        said = _run_refused(root, parsed, stage, errno.EROFS)
    return _gone_on(root, parsed, said)


def clock_set_back(folder: Path, recipe: str, stage: str) -> dict[str, Any]:
    """A run in which it is a day earlier from a stage on."""
    parsed = Recipe.model_validate_json(recipe)
    root = folder / "store"
    now, now_ns, back = time.time, time.time_ns, [0.0]

    def turn(begun: str) -> None:
        back[0] = DAY if begun == stage else back[0]

    with (
        patch("time.time", lambda: now() - back[0]),
        patch("time.time_ns", lambda: now_ns() - int(back[0] * 1e9)),
    ):
        said = run(root, parsed, turn)
        return _gone_on(root, parsed, said)


def _gone_on(root: Path, recipe: Recipe, said: str) -> dict[str, Any]:
    again = run(root, recipe)
    aside = root / "quarantine"
    return {
        "said": said,
        "again": again,
        "contents": run_contents(root, "run"),
        "left": [str(path) for path in leftovers(root)],
        "damaged": [str(path) for path in aside.iterdir()] if aside.exists() else [],
    }


def _run_refused(root: Path, recipe: Recipe, stage: str, code: int) -> str:
    """A run with an ``OSError`` put in where anything of the stage is brought to the disk."""
    refused = [False]
    sync = os.fsync

    def at(begun: str) -> None:
        refused[0] = refused[0] or begun == stage

    def fsync(handle: int) -> None:
        if refused[0]:
            raise OSError(code, os.strerror(code))
        sync(handle)

    with patch("os.fsync", fsync):
        return run(root, recipe, at)


def mount_memory(folder: Path, megabytes: int) -> None:
    """A disk of this process alone, which goes with it.

    Raises:
        NoMountError: the system forbids it.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    user, group = os.getuid(), os.getgid()
    folder.mkdir()
    try:
        _check(libc.unshare(NAMESPACES))
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
        _check(libc.mount(b"none", b"/", None, PRIVATE, None))
        size = f"size={megabytes}m".encode()
        _check(libc.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", 0, size))
    except OSError as error:
        raise NoMountError(str(error)) from error


def fill(disk: Path) -> None:
    """Leave no byte on a disk."""
    with (disk / BALLAST).open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12):
            with _until_full():
                while True:
                    file.write(b"\0" * size)


@contextmanager
def _until_full() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise


def writable(root: Path, yes: bool) -> None:
    """Allow or forbid writing below a folder."""
    for path in (root, *root.rglob("*")):
        mode = path.stat().st_mode
        path.chmod(mode | 0o200 if yes else mode & ~0o222)


def give_up_privileges() -> None:
    """Be bound by permissions, whoever runs the tests."""
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    _check(ctypes.CDLL(None, use_errno=True).capset(header, (ctypes.c_uint32 * 6)()))


def _check(result: int) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
