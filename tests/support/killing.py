"""Runs in child processes that kill themselves at a chosen event.

A child is forked from a server that has imported everything, so that a run costs a second and not the imports. Its
*events* are all that a kill could fall between:

* what makes a result durable: ``os.replace``, ``os.rename``, ``os.link`` and ``os.fsync``. Zarr's chunks end in
  ``os.replace`` as our own files do. Of a store in a bucket every ``put``, ``delete`` and ``copy``;
* what computes: every transformer forward, decode, score and optimizer step;
* ``begin`` and ``end`` of every stage.

An event is labelled ``step/stage/what``, such as ``1/explore/replace pools/KEY/data.zarr/images/values/c/0/1/0/0/0``.
What a child does outside of stages belongs to ``open`` (before its first stage), ``between`` (after a stage) or
``summary`` (after the last one). Labels are appended to a file as they happen, so that they outlive the kill.

A long random test, in the root of the repository::

    python -m tests.support.killing --kills 300 [--seed 1]
"""

import argparse
import logging
import multiprocessing
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from solrl_tasks.config.recipe import Recipe
from solrl_tasks.store.places import place_of
from solrl_tasks.store.s3_client import S3Client
from tests.support.contents import run_contents

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    ["tests.support.killing", "solrl_tasks.stages.iteration", "solrl_tasks.pretrain.architecture", "diffusers", "peft"]
)
LAST_STAGE = "evaluate"
TIMEOUT_SECONDS = 300.0


@dataclass(frozen=True)
class Kill:
    """At the ``nth`` event whose label matches the regex from its start, just before or just after it."""

    pattern: str = ""
    nth: int = 1
    after: bool = False


@dataclass
class Attempt:
    """What one child did.

    Attributes:
        events: labels in order.
        warnings: what the project logged as a warning.
        error: traceback of the exception that ended it.
        killed: whether it died by SIGKILL.
    """

    events: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    error: str = ""
    killed: bool = False

    @property
    def stage(self) -> str:
        """``step/stage`` of the last event."""
        return "/".join(self.events[-1].split("/", 2)[:2])

    def count(self, pattern: str) -> int:
        """Events whose label matches."""
        return sum(re.match(pattern, label) is not None for label in self.events)


class Child:
    """A run in a process of its own, started on creation."""

    def __init__(
        self, root: Path | str, run_id: str, recipe: Recipe, kill: Kill | None = None, pause: float = 0.0
    ) -> None:
        folder = root.parent if isinstance(root, Path) else None
        handle, name = tempfile.mkstemp(prefix=f"{run_id}-", suffix=".events", dir=folder)
        os.close(handle)
        self._report = Path(name)
        arguments = (root, run_id, recipe.model_dump_json(), kill, pause, name, _environment())
        self._process = CONTEXT.Process(target=_child, args=arguments)
        self._process.start()

    def seen(self, pattern: str) -> bool:
        """Waits for an event; False if the child ended without it."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while time.monotonic() < deadline:
            alive = self._process.is_alive()
            if self._read().count(pattern):
                return True
            if not alive:
                return False
            time.sleep(0.01)
        raise AssertionError(f"no {pattern} within {TIMEOUT_SECONDS:.0f} s")

    def kill(self) -> None:
        """Ends it with SIGKILL."""
        self._process.kill()

    def wait(self) -> Attempt:
        """What it did, once it has ended."""
        self._process.join(TIMEOUT_SECONDS)
        if self._process.exitcode is None:
            self._process.kill()
            raise AssertionError(f"the child hangs after {self._read().events[-3:]}")
        attempt = self._read()
        attempt.killed = self._process.exitcode == -signal.SIGKILL
        if not attempt.killed and not attempt.error and self._process.exitcode:
            raise AssertionError(f"the child ended with {self._process.exitcode}")
        self._report.unlink()
        return attempt

    def _read(self) -> Attempt:
        attempt = Attempt()
        places = {"E": attempt.events, "W": attempt.warnings}
        for line in self._report.read_text(encoding="utf-8").splitlines():
            if line[:1] in places:
                places[line[0]].append(line[2:])
            else:
                attempt.error += f"{line[2:]}\n"
        return attempt


def run_child(root: Path | str, run_id: str, recipe: Recipe, kill: Kill | None = None) -> Attempt:
    """Run to the end or to the kill.

    Raises:
        AssertionError: the run failed.
    """
    attempt = Child(root, run_id, recipe, kill).wait()
    assert not attempt.error, attempt.error
    return attempt


def leftovers(root: Path) -> list[Path]:
    """Half-written files below a store."""
    return [path for path in root.rglob("*") if path.suffix in (".tmp", ".partial")]


def check_kill_left_no_damage(root: Path | str, attempt: Attempt) -> None:
    """A kill leaves something undone; nothing that it leaves may look like damage."""
    aside = place_of(root) / "quarantine"
    assert not aside.exists(), list(aside.iterdir())
    assert not [text for text in attempt.warnings if "moved to" in text or "damage" in text or "do not fit" in text]


def check_little_was_redone(attempts: list[Attempt], whole: Attempt, recipe: Recipe) -> None:
    """What killed attempts did twice is at most the block in flight of each sampling stage, and the running update."""
    steps = {
        "explore": recipe.explore.steps,
        "regenerate": recipe.regenerate.steps,
        "audit": recipe.regenerate.steps,
        "evaluate": recipe.evaluate.sampling.steps,
    }
    kills = Counter(attempt.stage.split("/")[1] for attempt in attempts if attempt.killed)
    for stage, most in steps.items():
        pattern = rf"\d+/{stage}/forward"
        redone = sum(attempt.count(pattern) for attempt in attempts) - whole.count(pattern)
        assert 0 <= redone <= kills[stage] * most, f"{stage}: {redone} forwards twice after {kills[stage]} kills"
    redone = sum(attempt.count(r"\d+/update/optimizer") for attempt in attempts) - whole.count(r"\d+/update/optimizer")
    assert 0 <= redone <= kills["update"] * recipe.update.optimizer_steps, f"{redone} optimizer steps twice"


def random_kills(
    folder: Path, recipe: Recipe, kills: int, generator: random.Random, tell: Callable[[str], None]
) -> Counter[str]:
    """Kill runs at random events until so many kills have fallen, each run going on until it is done.

    Returns:
        How many kills fell in each stage.

    Raises:
        AssertionError: a run did not end as the uninterrupted one.
    """
    whole = run_child(folder / "whole", "run", recipe)
    expected = run_contents(folder / "whole", "run")
    # Short enough for about eight kills a run, wherever it goes on.
    horizon = len(whole.events) // 4
    fallen: Counter[str] = Counter()
    number = 0
    while sum(fallen.values()) < kills:
        number += 1
        root = folder / f"killed-{number}" / "store"
        root.parent.mkdir()
        attempts: list[Attempt] = []
        while not attempts or attempts[-1].killed:
            left = sum(fallen.values()) < kills
            kill = Kill("", generator.randint(1, horizon), generator.random() < 0.5) if left else None
            attempts.append(run_child(root, "run", recipe, kill))
            if attempts[-1].killed:
                fallen[attempts[-1].stage.split("/")[1]] += 1
                tell(f"run {number}: killed at {attempts[-1].events[-1]}")
            check_kill_left_no_damage(root, attempts[-1])
        assert run_contents(root, "run") == expected
        assert leftovers(root) == []
        check_little_was_redone(attempts, whole, recipe)
        tell(f"run {number}: ended equal after {len(attempts) - 1} kills")
        shutil.rmtree(root.parent)
    return fallen


def _environment() -> dict[str, str]:
    """What a child needs of this process's environment: that of the fork server is older."""
    return {name: value for name, value in os.environ.items() if name.startswith(("AWS_", "SOLRL_"))}


def _child(
    root: Path | str,
    run_id: str,
    recipe: str,
    kill: Kill | None,
    pause: float,
    report: str,
    environment: dict[str, str],
) -> None:
    os.environ.update(environment)
    import torch

    from solrl_tasks.stages.iteration import run_all
    from solrl_tasks.stages.session import open_session

    torch.set_num_threads(1)
    recorder = _Recorder(root, kill, pause, report)
    recorder.install()
    try:
        with open_session(root, run_id, Recipe.model_validate_json(recipe)) as session:
            for _ in run_all(session, recorder.call):
                pass
    except Exception:
        recorder.write("X", traceback.format_exc())


class _Recorder(logging.Handler):
    """Writes down every event, and kills at one."""

    def __init__(self, root: Path | str, kill: Kill | None, pause: float, report: str) -> None:
        super().__init__(logging.WARNING)
        self._root = root
        self._kill = kill
        self._pause = pause
        self._seen = 0
        self._due = False
        self._handle = os.open(report, os.O_WRONLY | os.O_APPEND)
        self._stage = "0/open"
        # Zarr writes in threads of its own.
        self._one = threading.RLock()

    def install(self) -> None:
        """Put events into this process, for its life."""
        from torch.optim import optimizer

        from solrl_tasks.models.families.flux import Flux
        from solrl_tasks.workers import rollout

        for name in ("replace", "rename", "link", "fsync"):
            setattr(os, name, self._wrapped(getattr(os, name), self._describe(name)))
        S3Client.send = self._wrapped(S3Client.send, _describe_request)
        for name in ("velocity", "decode"):
            what = "forward" if name == "velocity" else name
            setattr(Flux, name, self._wrapped(getattr(Flux, name), lambda *_, what=what: what))
        rollout.score = self._wrapped(rollout.score, lambda *_: "score")
        optimizer.register_optimizer_step_pre_hook(lambda *_: self._before("optimizer step"))
        optimizer.register_optimizer_step_post_hook(lambda *_: self._after())
        logging.getLogger("solrl_tasks").addHandler(self)

    def call(self, stage: Callable[..., Any], session: Any, job: Any) -> Any:
        """Runs a stage under its name."""
        name = "audit" if getattr(job, "stage", "") == "audit" else stage.__name__
        self._stage = f"{job.step}/{name}"
        with self._event("begin"):
            pass
        outcome = stage(session, job)
        with self._event("end"):
            pass
        self._stage = f"{job.step}/{'summary' if name == LAST_STAGE else 'between'}"
        return outcome

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps a warning of the project."""
        self.write("W", record.getMessage())

    def write(self, kind: str, text: str) -> None:
        """Adds lines to the report at once, so that a kill does not lose them."""
        os.write(self._handle, "".join(f"{kind} {line}\n" for line in text.splitlines()).encode())

    @contextmanager
    def _event(self, what: str) -> Iterator[None]:
        self._before(what)
        yield
        self._after()

    def _before(self, what: str) -> None:
        with self._one:
            label = f"{self._stage}/{what}"
            self.write("E", label)
            if self._kill is not None and re.match(self._kill.pattern, label):
                self._seen += 1
                self._due = self._seen == self._kill.nth
                if self._due and not self._kill.after:
                    _die()
        if self._pause:
            time.sleep(self._pause)

    def _after(self) -> None:
        if self._due:
            _die()

    def _wrapped(self, call: Callable[..., Any], name: Callable[..., str]) -> Callable[..., Any]:
        def recorded(*args: Any, **kwargs: Any) -> Any:
            label = name(*args)
            if not label:
                return call(*args, **kwargs)
            with self._event(label):
                return call(*args, **kwargs)

        return recorded

    def _describe(self, name: str) -> Callable[..., str]:
        def described(*paths: Any) -> str:
            path = Path(f"/proc/self/fd/{paths[0]}").readlink() if name == "fsync" else Path(paths[1])
            place = str(path.relative_to(self._root)) if path.is_relative_to(self._root) else str(path)
            place = re.sub(r"[0-9a-f]{24}", "KEY", place)
            place = re.sub(r"\.([^/]+?)\.[0-9a-f]{8}-\d+-\d+-\d+\.tmp", r"\1 (new)", place)
            return f"{name} {place}"

        return described


def _describe_request(_: S3Client, verb: str, key: str, *rest: Any) -> str:
    if verb not in ("put", "delete", "copy"):
        return ""
    place = re.sub(r"\d{20}-[0-9a-f]{16}", "ENTRY", key)
    place = re.sub(r"[0-9a-f]{32}", "TOKEN", place)
    return f"{verb} {re.sub(r'[0-9a-f]{24}', 'KEY', place)}"


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def main(arguments: list[str] | None = None) -> None:
    """Kill a micro run at random events, and say whether it always ends the same."""
    from solrl_tasks.pretrain.architecture import MICRO, build_pipeline
    from tests.support.micro import micro_recipe, write_prompts

    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args(arguments)
    seed = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
    print(f"seed {seed}")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        build_pipeline(MICRO).save_pretrained(folder / "model")
        recipe = micro_recipe(folder / "model", write_prompts(folder))
        fallen = random_kills(folder, recipe, options.kills, random.Random(seed), lambda text: print(text, flush=True))
    print(f"{options.kills} kills, every run ended equal: {dict(fallen)}")


if __name__ == "__main__":
    # Children look functions up by the module's real name.
    from tests.support import killing

    sys.exit(killing.main())
