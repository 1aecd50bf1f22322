"""The runs of arms: executed beside each other, and read back from what they committed."""

import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Protocol

from solrl_tasks.config.recipe import Recipe
from solrl_tasks.stages.iteration import run_step
from solrl_tasks.stages.session import open_session
from solrl_tasks.store.object_path import Place
from solrl_tasks.store.root import Store
from solrl_tasks.store.runs import RunView
from solrl_tasks.studies.arms import Arm, ArmRun
from solrl_tasks.studies.execution import note_execution, read_execution, stage_seconds
from solrl_tasks.studies.modelled import DEFAULT_HARDWARE, Modelled, model_recipe
from solrl_tasks.studies.processes import ProcessDiedError, in_processes, one_thread, orphaned, sharing
from solrl_tasks.studies.timing import read_timing
from solrl_tasks.tracking.summary import Summary

State = Literal["done", "there", "stopped", "not begun", "failed"]
OURS = ("solrl_tasks.", "flows.")


@dataclass(frozen=True)
class Outcome:
    """What became of a run in this study.

    Attributes:
        state: ``done`` now, ``there`` already, ``stopped`` by time with iterations left, ``not begun``, or ``failed``.
        step: the last committed one, -1 for none.
        seconds: wall time.
        forwards: evaluations of the network while sampling, a row each; ``loads`` of weights.
        error: why it failed.
    """

    run_id: str
    state: State
    step: int = -1
    seconds: float = 0.0
    forwards: int = 0
    loads: int = 0
    error: str = ""

    def __str__(self) -> str:
        if self.state == "failed":
            return f"{self.run_id}: failed after iteration {self.step}: {self.error}"
        if self.state in ("there", "not begun"):
            return f"{self.run_id}: {self.state}"
        return f"{self.run_id}: {self.state} at iteration {self.step} ({self.seconds:.0f} s)"


class Watcher(Protocol):
    """Is told how a study goes; it never decides."""

    def progress(self, done: int, total: int) -> None:
        """So many of all steps of all runs are committed."""
        ...

    def ended(self, outcome: Outcome) -> None:
        """A run ended, one way or another."""
        ...


class SilentWatcher:
    """Tells nobody."""

    def progress(self, done: int, total: int) -> None:
        """Nothing."""

    def ended(self, outcome: Outcome) -> None:
        """Nothing."""


@dataclass(frozen=True)
class _Job:
    """One run for one process."""

    root: str
    run_id: str
    recipe: Recipe
    base: Path
    deadline: float
    processes: int


def execute(
    root: str | Place,
    runs: Sequence[ArmRun],
    parallel: int = 1,
    seconds: float | None = None,
    watcher: Watcher | None = None,
) -> list[Outcome]:
    """Bring every run to its end, or as far as time allows; the same call goes on later.

    A run that is complete is left alone: nothing is opened and nothing loaded. With ``parallel`` 1 all is done in this
    process, one run after the other; else in so many processes, spread over the GPUs that are visible. One torch thread
    each, either way. A run that fails ends no other.

    Args:
        root: of the store.
        seconds: after which every run ends with the iteration it is in; None is never.

    Returns:
        An outcome for each run, in their order.

    Raises:
        ValueError: ``parallel`` is below 1, or above 1 for runs whose workers are actors.
    """
    _check_parallel(parallel, runs)
    store, watcher = Store.open(root, create=True), watcher or SilentWatcher()
    deadline = float("inf") if seconds is None else time.time() + seconds
    outcomes: dict[str, Outcome] = {}
    left = []
    for run in runs:
        if RunView(store, run.run_id).summary(run.recipe.iterations) is None:
            left.append(run)
        else:
            outcomes[run.run_id] = Outcome(run.run_id, "there", run.recipe.iterations)
            watcher.ended(outcomes[run.run_id])
    processes = sharing(min(parallel, len(left)))
    jobs = [_Job(str(root), one.run_id, one.recipe, one.base, deadline, processes) for one in left]

    def tick() -> None:
        watcher.progress(*count_steps(store, runs))

    tick()
    for job, found in _each(jobs, parallel, tick):
        outcomes[job.run_id] = found
        watcher.ended(found)
        tick()
    return [outcomes[run.run_id] for run in runs]


def _check_parallel(parallel: int, runs: Sequence[ArmRun]) -> None:
    if parallel < 1:
        raise ValueError(f"parallel is {parallel}, but at least 1 process is needed")
    spread = next((run for run in runs if run.recipe.workers.kind != "inline"), None)
    if parallel > 1 and spread is not None:
        raise ValueError(
            f"parallel is {parallel}, but workers.kind of {spread.run_id} is {spread.recipe.workers.kind}: its actors "
            "take all devices, and runs beside each other would want the same ones. Set parallel to 1, so that the "
            "actors do one run after the other, or workers.kind to inline, so that each process has a device"
        )


def count_steps(store: Store, runs: Iterable[ArmRun]) -> tuple[int, int]:
    """Steps of runs that are committed, and all of them; the evaluation of the untrained model is one."""
    done = total = 0
    for run in runs:
        steps = range(run.recipe.iterations + 1)
        total += len(steps)
        folder = RunView(store, run.run_id)
        done += sum((folder.iteration_dir(step) / "summary.json").exists() for step in steps)
    return done, total


def _each(jobs: Sequence[_Job], parallel: int, tick: Callable[[], None]) -> Iterable[tuple[_Job, Outcome]]:
    if parallel == 1:
        for job in jobs:
            with one_thread():
                found = _work(job, tick)
            yield job, found
        return
    for job, answer in in_processes(_work, jobs, parallel, tick):
        if isinstance(answer, ProcessDiedError):
            yield job, Outcome(job.run_id, "failed", _last_step(job), error=str(answer))
        else:
            yield job, answer


def _work(job: _Job, tick: Callable[[], None] = lambda: None) -> Outcome:
    """Do a job until its end or the deadline. Nothing is raised."""
    if time.time() > job.deadline:
        return Outcome(job.run_id, "not begun", _last_step(job))
    started = time.time()
    try:
        found = _run(job, tick)
    except Exception as error:  # A run that fails must not end the others.
        ours = type(error).__module__.startswith(OURS)
        told = str(error) if ours else traceback.format_exc()
        found = Outcome(job.run_id, "failed", _last_step(job), error=told)
    return replace(found, seconds=time.time() - started)


def _run(job: _Job, tick: Callable[[], None]) -> Outcome:
    recipe, last = job.recipe, -1
    state: State = "done"
    with open_session(job.root, job.run_id, recipe, base=job.base) as session:
        environment = session.worker.site.environment()
        for step in range(recipe.iterations + 1):
            if step > 0 and (time.time() > job.deadline or orphaned()):
                state = "stopped"
                break
            fresh = session.run.summary(step) is None
            run_step(session, step)
            if fresh:
                note_execution(session.run, step, job.processes, environment)
            last = step
            tick()
        counters = session.worker.counters
        return Outcome(job.run_id, state, last, forwards=counters.forwards, loads=counters.loads)


def _last_step(job: _Job) -> int:
    return max(RunView(Store(job.root), job.run_id).summaries(), default=-1)


@dataclass(frozen=True)
class ArmRecord:
    """A run of an arm as it was committed.

    Attributes:
        recipe: as recorded, its chunks settled.
        summaries: of all committed steps, in order; step 0 is the untrained model.
        modelled: seconds of one iteration on stated hardware.
        processes: the most that shared the device while a step was computed; measured seconds of more than one are
            inflated. None where nobody noted it.
        timing: device-seconds of one iteration by stage, measured while nothing else ran; None where that was not done.
        hardware: that computed the run, in words; empty where it is not known.
        environment: the same as blocks of the store record it.
    """

    arm: Arm
    seed: int
    run_id: str
    recipe: Recipe
    summaries: tuple[Summary, ...]
    modelled: Modelled
    processes: int | None
    timing: Mapping[str, float] | None
    hardware: str
    environment: Mapping[str, Any] = field(default_factory=dict)

    @property
    def reward(self) -> str:
        """Name of the first trained reward."""
        return self.recipe.rewards[0].name

    @property
    def shared(self) -> bool:
        """Whether its measured seconds were taken, or may have been, while other processes used the device."""
        return self.processes != 1

    @property
    def last_step(self) -> int:
        """The last committed iteration; -1 before the first summary."""
        return max((one.step for one in self.summaries), default=-1)

    @cached_property
    def evaluated(self) -> dict[int, Summary]:
        """Steps with a held-out evaluation of the trained reward, in order."""
        return {one.step: one for one in self.summaries if f"eval/{self.reward}" in one.metrics}

    def curve(self, name: str = "") -> tuple[list[int], list[float]]:
        """Evaluated steps and a metric at each, NaN where it is absent; the trained reward by default."""
        name = name or f"eval/{self.reward}"
        return list(self.evaluated), [one.metrics.get(name, float("nan")) for one in self.evaluated.values()]

    def device_seconds(self, step: int) -> dict[str, float]:
        """Device-seconds of an iteration by stage, whoever paid for them; empty for a step that is not committed."""
        found = next((one for one in self.summaries if one.step == step), None)
        return {} if found is None else {name: stage_seconds(name, cost) for name, cost in found.stages.items()}

    def measured_seconds(self, step: int) -> float:
        """Device-seconds of the arm's counted stages in an iteration."""
        return sum(seconds for name, seconds in self.device_seconds(step).items() if name in self.arm.counted)

    def timed_seconds(self) -> float | None:
        """Device-seconds of the counted stages of one iteration that had the device for itself; None if not timed."""
        if self.timing is None:
            return None
        return sum(seconds for name, seconds in self.timing.items() if name in self.arm.counted)

    def modelled_seconds(self) -> float | None:
        """Modelled seconds of the counted stages of one iteration; None where hardware lacks a precision."""
        return self.modelled.seconds(self.arm.counted)


def read_runs(
    store: Store, runs: Sequence[ArmRun], hardware: str = DEFAULT_HARDWARE, timings: Iterable[ArmRun] = ()
) -> list[ArmRecord]:
    """What runs have committed; those that were not begun are left out.

    Args:
        hardware: whose rates modelled seconds stand for.
        timings: runs that had the device for themselves, as ``timing.plan_timing`` makes them.

    Raises:
        ValueError: nothing is known of the hardware.
    """
    timed = {run.arm.name: read_timing(store, run) for run in timings}
    records = []
    for run in runs:
        view = RunView(store, run.run_id)
        config = view.recorded()
        if config is None:
            continue
        recipe = Recipe.model_validate(config)
        execution = read_execution(view)
        records.append(
            ArmRecord(
                arm=run.arm,
                seed=run.seed,
                run_id=run.run_id,
                recipe=recipe,
                summaries=tuple(Summary.model_validate(one) for one in view.summaries().values()),
                modelled=model_recipe(store, recipe, hardware),
                processes=execution.processes,
                timing=timed.get(run.arm.name),
                hardware=execution.hardware,
                environment=execution.environment,
            )
        )
    return records
