"""What a study of arms has and what it lacks, told before anything is computed.

Policies of later iterations are not there yet, so that their pools have no keys to look up: what is missing is counted
by committed steps. What arms share, with each other or with any run of the store, is counted once; see ``sharing``.
What else the store may hold is not foreseen: the figures are what it takes at most.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from solrl_tasks.config.recipe import Recipe, SamplingSpec
from solrl_tasks.config.words import are, counted
from solrl_tasks.stages.chunks import samplings
from solrl_tasks.store.keys import key
from solrl_tasks.store.records import environment_record
from solrl_tasks.store.root import Store
from solrl_tasks.store.runs import RunView
from solrl_tasks.studies.arms import ArmRun
from solrl_tasks.studies.execution import read_execution, stage_seconds
from solrl_tasks.studies.plan import other_devices, show_seconds
from solrl_tasks.studies.sharing import UPDATE, Shelf, Units, iteration_units, model_of, runs_of
from solrl_tasks.tracking.environments import first_environment


@dataclass(frozen=True)
class ArmForecast:
    """What is there of an arm, and what its missing steps take.

    Attributes:
        committed, missing: steps of all its runs, the evaluation of the untrained model included.
        forwards: transformer evaluations while sampling, at most.
        trained_rows: rows that optimizer steps are made of.
        seconds: estimated device time; None where a stage like one of these was never measured on this device.
        unmeasured: those stages.
    """

    name: str
    title: str
    runs: int
    committed: int
    missing: int
    forwards: int
    trained_rows: int
    seconds: float | None
    unmeasured: tuple[str, ...] = ()


@dataclass(frozen=True)
class Forecast:
    """All arms of a study.

    Attributes:
        shared_by: processes that had the device together while what estimates rest on was measured.
        note: what else to know of the figures, for people; see ``plan.other_devices``.
    """

    arms: tuple[ArmForecast, ...]
    shared_by: int = 1
    note: str = ""

    @property
    def missing(self) -> int:
        """Steps of all arms that are not committed."""
        return sum(arm.missing for arm in self.arms)

    @property
    def forwards(self) -> int:
        """Transformer evaluations of all arms, at most."""
        return sum(arm.forwards for arm in self.arms)

    @property
    def seconds(self) -> float | None:
        """Device time of all arms; None where that of one is not known."""
        known = [arm.seconds for arm in self.arms if arm.seconds is not None]
        return sum(known) if len(known) == len(self.arms) else None

    def as_json(self) -> dict[str, Any]:
        """Arms and totals as plain values."""
        totals = {"missing": self.missing, "forwards": self.forwards, "seconds": self.seconds}
        return {
            "arms": [vars(arm) for arm in self.arms],
            **totals,
            "measured_beside": self.shared_by,
            "note": self.note,
        }


def forecast(store: Store | None, runs: Sequence[ArmRun], device: torch.device, threads: int = 1) -> Forecast:
    """What is there of the runs of a study, and what is missing. Computes nothing and makes nothing.

    Args:
        store: None where there is none yet.
        threads: of a process that would compute on a CPU.
    """
    rates = _Rates.of(store, device, threads)
    shelf = Shelf.of(store, runs, device)
    committed = {run.run_id: _committed(store, run) for run in runs}
    for run in runs:
        for step in committed[run.run_id]:
            shelf.take(run, step)
    by_arm: dict[str, list[ArmRun]] = {}
    for run in runs:
        by_arm.setdefault(run.arm.name, []).append(run)
    # Taken in the order in which they run: the first arm that needs what is shared pays for it.
    lacking = {run.run_id: _lacking(shelf, run, committed[run.run_id]) for run in runs}
    arms = tuple(_arm(mine, committed, lacking, rates) for mine in by_arm.values())
    return Forecast(arms, rates.processes, _note(runs, device))


def _note(runs: Sequence[ArmRun], device: torch.device) -> str:
    engines = [sampling.engine.name for run in runs for sampling in samplings(run.recipe)]
    notes = dict.fromkeys(other_devices(run.recipe.workers, device, engines) for run in runs)
    return " ".join(note for note in notes if note)


def forecast_rows(found: Forecast) -> list[dict[str, str]]:
    """A row of text for each arm."""
    return [
        {
            "arm": arm.name,
            "runs": str(arm.runs),
            "steps committed": str(arm.committed),
            "steps missing": str(arm.missing),
            "forward passes": str(arm.forwards),
            "trained rows": str(arm.trained_rows),
            "device time": _time(arm),
        }
        for arm in found.arms
    ]


def forecast_summary(found: Forecast) -> str:
    """The forecast in a sentence or two, and its note."""
    return f"{_counted(found)} {found.note}".strip()


def _counted(found: Forecast) -> str:
    if not found.missing:
        return "Every run is complete: nothing is to be computed."
    first = (
        f"{counted(found.missing, 'step')} {are(found.missing)} missing: at most "
        f"{counted(found.forwards, 'forward pass', 'forward passes')}"
    )
    if found.seconds is None:
        lost = sorted({stage for arm in found.arms for stage in arm.unmeasured})
        return f"{first}. No estimate of the time: {', '.join(lost)} of this kind was never measured on this device."
    text = f"{first}, about {show_seconds(found.seconds)} of device time"
    if found.shared_by > 1:
        text += (
            f" (by figures taken while up to {counted(found.shared_by, 'process', 'processes')} shared the device, "
            "which are too high)"
        )
    return f"{text}."


def _time(arm: ArmForecast) -> str:
    if arm.seconds is None:
        return f"not measured: {', '.join(arm.unmeasured)}"
    return show_seconds(arm.seconds)


def _committed(store: Store | None, run: ArmRun) -> set[int]:
    if store is None:
        return set()
    return {step for step in RunView(store, run.run_id).summaries() if step <= run.recipe.iterations}


def _lacking(shelf: Shelf, run: ArmRun, committed: set[int]) -> Units:
    total: Units = {}
    for step in range(run.recipe.iterations + 1):
        if step not in committed:
            for stage, units in shelf.take(run, step).items():
                total[stage] = total.get(stage, 0) + units
    return total


def _arm(
    runs: Sequence[ArmRun], committed: Mapping[str, set[int]], lacking: Mapping[str, Units], rates: "_Rates"
) -> ArmForecast:
    arm, recipe = runs[0].arm, runs[0].recipe
    units: Units = {}
    for run in runs:
        for stage, count in lacking[run.run_id].items():
            units[stage] = units.get(stage, 0) + count
    found = {stage: rates.seconds(recipe, stage) for stage, count in units.items() if count}
    unmeasured = tuple(sorted(stage for stage, rate in found.items() if rate is None))
    done = sum(len(committed[run.run_id]) for run in runs)
    return ArmForecast(
        name=arm.name,
        title=arm.title,
        runs=len(runs),
        committed=done,
        missing=sum(run.recipe.iterations + 1 for run in runs) - done,
        forwards=sum(count for stage, count in units.items() if stage != UPDATE),
        trained_rows=units.get(UPDATE, 0),
        seconds=None if unmeasured else sum(units[stage] * (rate or 0.0) for stage, rate in found.items()),
        unmeasured=unmeasured,
    )


@dataclass(frozen=True)
class _Rates:
    """Device-seconds of a unit of a stage, by what the stage is like."""

    spent: Mapping[str, tuple[float, int]]
    processes: int

    @classmethod
    def of(cls, store: Store | None, device: torch.device, threads: int) -> "_Rates":
        """From all runs of a store that were computed on this device."""
        spent: dict[str, tuple[float, int]] = {}
        processes = 1
        here = _where({**environment_record(str(device)), "threads": threads})
        for view, recipe, summaries in runs_of(store):
            if not summaries or _where(first_environment(view.store, summaries)) != here:
                continue
            processes = max(processes, read_execution(view).processes or 1)
            for summary in summaries:
                for stage, units in iteration_units(recipe, summary.step).items():
                    if stage in summary.stages:
                        name = _likeness(recipe, stage)
                        seconds, count = spent.get(name, (0.0, 0))
                        spent[name] = seconds + stage_seconds(stage, summary.stages[stage]), count + units
        return cls(spent, processes)

    def seconds(self, recipe: Recipe, stage: str) -> float | None:
        """Of one unit; None where nothing like it was measured."""
        seconds, count = self.spent.get(_likeness(recipe, stage), (0.0, 0))
        return seconds / count if count else None


def _likeness(recipe: Recipe, stage: str) -> str:
    """What decides the cost of a forward pass or a trained row, as far as a recipe says it."""
    update, evaluate = recipe.update, recipe.evaluate
    if stage == UPDATE:
        like: list[Any] = [update.objective.model_dump(mode="json"), update.lora.rank, update.lora.targets]
        return key([UPDATE, model_of(recipe), *like, update.gradient_checkpointing])
    sampling: SamplingSpec = {"explore": recipe.explore, "evaluate": evaluate.sampling}.get(stage, recipe.regenerate)
    rewards = recipe.rewards if stage != "evaluate" else (*recipe.rewards, *evaluate.rewards)
    how = sampling.model_dump(mode="json", include={"engine", "sampler", "resolution"})
    return key([model_of(recipe), how, sorted(reward.name for reward in rewards)])


def _where(record: Mapping[str, Any]) -> tuple[Any, ...]:
    # A GPU's work does not depend on the threads of its host; that of a CPU does.
    threads = record.get("threads") if record.get("device_class") == "cpu" else None
    return record.get("hardware"), record.get("device_class"), threads
