"""What a study of arms has and what it lacks, told before anything is computed.

Policies of later iterations are not there yet, so that their pools have no keys to look up: what is missing is counted
by committed steps. What the arms of a study share is counted once: the evaluation of the untrained model, and in the
first iteration the candidates of pools that differ in nothing but their number. What runs of other studies left in the
store is not foreseen: the figures are what it takes at most.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from pydantic import ValidationError

from solrl_tasks.config.recipe import Recipe, SamplingSpec
from solrl_tasks.store.errors import StoreError
from solrl_tasks.store.keys import key
from solrl_tasks.store.pool import Pool
from solrl_tasks.store.records import environment_record
from solrl_tasks.store.root import Store
from solrl_tasks.store.runs import RunView, list_runs
from solrl_tasks.studies.arms import ArmRun
from solrl_tasks.studies.execution import read_execution, stage_seconds
from solrl_tasks.studies.plan import show_seconds
from solrl_tasks.tracking.summary import Summary

Units = dict[str, int]
"""Forward passes of sampling stages, and rows of optimizer steps of the update."""
UPDATE: Final = "update"


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
    """All arms of a study."""

    arms: tuple[ArmForecast, ...]
    shared_by: int = 1

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
        return {"arms": [vars(arm) for arm in self.arms], **totals, "measured_beside": self.shared_by}


def forecast(store: Store | None, runs: Sequence[ArmRun], device: torch.device, threads: int = 1) -> Forecast:
    """What is there of the runs of a study, and what is missing. Computes nothing and makes nothing.

    Args:
        store: None where there is none yet.
        threads: of a process that would compute on a CPU.
    """
    rates = _Rates.of(store, device, threads)
    shelf = _Shelf()
    committed = {run.run_id: _committed(store, run) for run in runs}
    for run in runs:
        for step in committed[run.run_id]:
            shelf.take(run, step)
    by_arm: dict[str, list[ArmRun]] = {}
    for run in runs:
        by_arm.setdefault(run.arm.name, []).append(run)
    # Taken in the order in which they run: the first arm that needs what is shared pays for it.
    lacking = {run.run_id: _lacking(shelf, run, committed[run.run_id]) for run in runs}
    return Forecast(tuple(_arm(mine, committed, lacking, rates) for mine in by_arm.values()), rates.processes)


def iteration_units(recipe: Recipe, step: int) -> Units:
    """What a step of a run takes if nothing of it is there, by stage."""
    units: Units = {}
    prompts, evaluate = recipe.prompts.per_iteration, recipe.evaluate
    if step > 0:
        units["explore"] = prompts * _whole(recipe.explore.candidates, recipe.explore) * recipe.explore.steps
        units["regenerate"] = prompts * _whole(recipe.select.keep, recipe.regenerate) * recipe.regenerate.steps
        units[UPDATE] = prompts * recipe.select.keep * recipe.update.optimizer_steps * recipe.update.times_per_sample
        if recipe.audit.every and (step - 1) % recipe.audit.every == 0:
            images = recipe.audit.prompts * _whole(recipe.explore.candidates, recipe.regenerate)
            units["audit"] = images * recipe.regenerate.steps
    if evaluate.every and step % evaluate.every == 0:
        units["evaluate"] = evaluate.prompts * _whole(evaluate.seeds, evaluate.sampling) * evaluate.sampling.steps
    return units


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
    """The forecast in a sentence or two."""
    if not found.missing:
        return "Every run is complete: nothing is to be computed."
    first = f"{found.missing} steps are missing: at most {found.forwards} forward passes"
    if found.seconds is None:
        lost = sorted({stage for arm in found.arms for stage in arm.unmeasured})
        return f"{first}. No estimate of the time: {', '.join(lost)} of this kind was never measured on this device."
    text = f"{first}, about {show_seconds(found.seconds)} of device time"
    if found.shared_by > 1:
        text += f" (by figures taken while up to {found.shared_by} processes shared the device, which are too high)"
    return f"{text}."


def _time(arm: ArmForecast) -> str:
    if arm.seconds is None:
        return f"not measured: {', '.join(arm.unmeasured)}"
    return show_seconds(arm.seconds)


def _whole(count: int, sampling: SamplingSpec) -> int:
    """Images that are sampled for so many: blocks are computed whole."""
    chunk = sampling.chunk
    return -(-count // chunk) * chunk if isinstance(chunk, int) else count


def _committed(store: Store | None, run: ArmRun) -> set[int]:
    if store is None:
        return set()
    return {step for step in RunView(store, run.run_id).summaries() if step <= run.recipe.iterations}


@dataclass
class _Shelf:
    """What runs of a study have in common: how much of it is there, by what it is."""

    there: dict[str, int] = field(default_factory=dict)

    def take(self, run: ArmRun, step: int) -> Units:
        """What a step still takes, and note it as done."""
        units = iteration_units(run.recipe, step)
        if step == 0 and "evaluate" in units:
            units["evaluate"] = self._lack(_baseline_key(run), units["evaluate"])
        if step == 1:
            units["explore"] = self._lack(_first_pool_key(run), units["explore"])
        return units

    def _lack(self, name: str, wanted: int) -> int:
        there = self.there.get(name, 0)
        self.there[name] = max(there, wanted)
        return max(0, wanted - there)


def _baseline_key(run: ArmRun) -> str:
    recipe = run.recipe
    spec = recipe.evaluate.model_dump(mode="json", exclude={"every"})
    lora = recipe.update.lora.model_dump(mode="json")
    return key(["baseline", _model(recipe), recipe.prompts.model_dump(mode="json"), spec, lora])


def _first_pool_key(run: ArmRun) -> str:
    recipe = run.recipe
    explore = recipe.explore.model_dump(mode="json", exclude={"candidates", "store_images", "reuse"})
    return key(["pool", _model(recipe), recipe.prompts.model_dump(mode="json"), explore, run.seed])


def _model(recipe: Recipe) -> dict[str, Any]:
    return recipe.model.model_dump(mode="json", exclude={"text_encoders"})


def _lacking(shelf: _Shelf, run: ArmRun, committed: set[int]) -> Units:
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
        for view, recipe, summaries in _runs_of(store):
            if not summaries or _where(_record(view, summaries)) != here:
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
        return key([UPDATE, _model(recipe), *like, update.gradient_checkpointing])
    sampling: SamplingSpec = {"explore": recipe.explore, "evaluate": evaluate.sampling}.get(stage, recipe.regenerate)
    rewards = recipe.rewards if stage != "evaluate" else (*recipe.rewards, *evaluate.rewards)
    how = sampling.model_dump(mode="json", include={"engine", "sampler", "resolution"})
    return key([_model(recipe), how, sorted(reward.name for reward in rewards)])


def _runs_of(store: Store | None) -> Iterable[tuple[RunView, Recipe, list[Summary]]]:
    for info in list_runs(store) if store is not None else []:
        if info.config is None or store is None:
            continue
        view = RunView(store, info.run_id)
        try:
            recipe = Recipe.model_validate(info.config)
        except ValidationError:  # of another version: nothing is known of what it cost
            continue
        yield view, recipe, [Summary.model_validate(one) for one in view.summaries().values()]


def _record(view: RunView, summaries: Sequence[Summary]) -> Mapping[str, Any]:
    """The environment that the run's first pool was computed in; empty where none is known."""
    for summary in summaries:
        for name in ("explore", "evaluate_pool"):
            ref = summary.refs.get(name)
            if ref is None or ref.kind != "pools":
                continue
            try:
                records = Pool.load(view.store, ref).records()
            except StoreError:
                continue
            found = next((record for record in records.values() if record is not None), None)
            if found is not None:
                return found
    return {}


def _where(record: Mapping[str, Any]) -> tuple[Any, ...]:
    # A GPU's work does not depend on the threads of its host; that of a CPU does.
    threads = record.get("threads") if record.get("device_class") == "cpu" else None
    return record.get("hardware"), record.get("device_class"), threads
