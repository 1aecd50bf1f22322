"""Runs in child processes that kill themselves at a chosen step to disk.

A child is forked from a server that has imported everything, so that one run costs a second and not the imports. An
*event* is a call of os.replace, os.rename or os.fsync: everything that makes a result durable passes through one.
"""

import json
import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from solrl_tasks.config.recipe import Recipe

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.support.killing", "solrl_tasks.stages.iteration", "solrl_tasks.pretrain.architecture"])
EVENTS = ("replace", "rename", "fsync")


def run_child(root: Path, run_id: str, recipe: Recipe, kill_at: int | None = None, after: bool = False) -> int | None:
    """Run to the end, or to the ``kill_at``-th event.

    Returns:
        The number of events, or None if the child was killed.

    Raises:
        AssertionError: the child ended in another way.
    """
    report = root.parent / f"{run_id}.events"
    report.unlink(missing_ok=True)
    child = CONTEXT.Process(target=_child, args=(str(root), run_id, recipe.model_dump_json(), kill_at, after, str(report)))
    child.start()
    child.join(300)
    assert child.exitcode in (0, -signal.SIGKILL), f"the child ended with {child.exitcode}"
    if child.exitcode != 0:
        return None
    events: int = json.loads(report.read_text())
    return events


def _child(root: str, run_id: str, recipe: str, kill_at: int | None, after: bool, report: str) -> None:
    import torch

    from solrl_tasks.stages.iteration import run_all
    from solrl_tasks.stages.session import open_session

    torch.set_num_threads(1)
    counter = _Counter(kill_at, after)
    for name in EVENTS:
        setattr(os, name, counter.wrap(getattr(os, name)))
    with open_session(Path(root), run_id, Recipe.model_validate_json(recipe)) as session:
        for _ in run_all(session):
            pass
    Path(report).write_text(json.dumps(counter.count))


class _Counter:
    def __init__(self, kill_at: int | None, after: bool) -> None:
        self.count = 0
        self._kill_at = kill_at
        self._after = after

    def wrap(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            due = self.count == self._kill_at
            if due and not self._after:
                os.kill(os.getpid(), signal.SIGKILL)
            result = call(*args, **kwargs)
            if due:
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return counted
