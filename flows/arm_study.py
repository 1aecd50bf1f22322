"""A study of arms, from what was asked in plain words to what the store and MLflow hold."""

import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import yaml

from flows.errors import UserError
from flows.home import nothing_there, study_id
from flows.settings import DEFAULT_CONFIG, Settings, find_config

if TYPE_CHECKING:
    from solrl_tasks.config.recipe import Recipe
    from solrl_tasks.store.root import Store
    from solrl_tasks.studies.arm_study import ArmStudy
    from solrl_tasks.studies.arms import ArmRun
    from solrl_tasks.studies.families import Available, Family
    from solrl_tasks.studies.forecast import Forecast
    from solrl_tasks.studies.runs import Watcher

StudyName = Literal["controls", "ablation"]
TITLES: Final[dict[StudyName, str]] = {"controls": "Controls of two-stage sampling", "ablation": "Ablation"}
DEFAULT_SEEDS: Final = (1, 2, 3)
DEFAULT_VARY: Final = ("steps",)
DEFAULT_HARDWARE: Final = "NVIDIA B200"


@dataclass(frozen=True)
class Asked:
    """What is asked of a study of arms; None is what the recipe says.

    Attributes:
        vary: factors of an ablation; ``grid`` makes all their combinations.
        arms: names of those that run; None is all that can run here.
        changes: dotted fields of all arms, below what they set themselves.
        parallel: processes, spread over all visible GPUs.
        seconds: after which runs end with the iteration they are in; None is never.
        timing: iterations of a short run of each arm that has the device for itself; 0 is none.
        modelled_on: hardware whose rates modelled cost stands for.
    """

    study: StudyName
    seeds: tuple[int, ...] = DEFAULT_SEEDS
    iterations: int | None = None
    vary: tuple[str, ...] = DEFAULT_VARY
    grid: bool = False
    arms: tuple[str, ...] | None = None
    changes: Mapping[str, Any] = field(default_factory=dict)
    parallel: int = 1
    seconds: float | None = None
    timing: int = 0
    modelled_on: str = DEFAULT_HARDWARE
    config: str = DEFAULT_CONFIG

    def command(self) -> str:
        """How the same is asked on the command line; ``seconds`` is left out, it is of one sitting."""
        words = ["solrl", "study", self.study, "--seeds", ",".join(map(str, self.seeds))]
        if self.study == "ablation":
            words += [word for factor in self.vary for word in ("--vary", factor)]
            words += ["--grid"] if self.grid else []
        given = {
            "--iterations": self.iterations,
            "--arms": ",".join(self.arms) if self.arms else None,
            "--parallel": self.parallel if self.parallel > 1 else None,
            "--timing": self.timing or None,
            "--modelled-on": None if self.modelled_on == DEFAULT_HARDWARE else self.modelled_on,
            "--config": None if self.config == DEFAULT_CONFIG else self.config,
        }
        words += [word for name, value in given.items() if value is not None for word in (name, str(value))]
        words += [word for name, value in self.changes.items() for word in ("--set", f"{name}={_flow_style(value)}")]
        return shlex.join(words)


@dataclass(frozen=True)
class Settled:
    """What the words come to.

    Attributes:
        run_id: the run of the store that holds the report.
        runs, timings: of all arms.
    """

    asked: Asked
    family: "Family"
    runs: "tuple[ArmRun, ...]"
    timings: "tuple[ArmRun, ...]"
    run_id: str

    @property
    def iterations(self) -> int:
        """Of every run."""
        return self.family.base.iterations


def settle(asked: Asked) -> Settled:
    """The arms and runs that are asked for, checked without loading weights.

    Raises:
        UserError, ArmError, RecipeError: a value is not usable, or an arm cannot run here; the message names it.
    """
    from flows.parameters import read_recipe
    from solrl_tasks.bench.peaks import PEAKS, nominal_rates
    from solrl_tasks.studies.arms import plan_runs, study_recipe
    from solrl_tasks.studies.timing import TIMING_SEED, plan_timing

    recipe, folder = read_recipe(asked.config, {})
    if not nominal_rates(asked.modelled_on):
        raise UserError(f"modelled_on is {asked.modelled_on!r}: rates are known of {', '.join(PEAKS)}")
    if not asked.seeds or TIMING_SEED in asked.seeds:
        raise UserError(f"seeds are {list(asked.seeds)}: give at least one, and not {TIMING_SEED}, which timing has")
    family = _family(asked, study_recipe(recipe, asked.changes, asked.iterations)).choose(asked.arms)
    if len(family.arms) < 2:
        raise UserError(f"{asked.study} has only the arm {family.baseline}: there is nothing to compare it with")
    runs = tuple(plan_runs(family.name, family.base, family.arms, asked.seeds, folder))
    timings = tuple(plan_timing(family.base, family.arms, asked.timing, folder)) if asked.timing else ()
    _check([*runs, *timings], asked)
    return Settled(asked, family, runs, timings, _run_id(asked, family))


def plan_arms(settings: Settings, asked: Asked) -> "Forecast":
    """What a study has and lacks; nothing is computed and nothing made.

    Raises:
        UserError, ArmError, RecipeError: as ``settle``.
        StoreError: where the store is to be, something else is.
    """
    from solrl_tasks.store.root import Store
    from solrl_tasks.studies.forecast import forecast
    from solrl_tasks.workers.numerics import default_device

    settled = settle(asked)
    store = Store.find(settings.store_root)
    found = forecast(store, [*settled.runs, *settled.timings], default_device())
    return replace(
        found, note=" ".join(filter(None, (nothing_there(store, settings), found.note, *settled.family.left_out())))
    )


def study_arms(settings: Settings, asked: Asked, watcher: "Watcher") -> "tuple[str, ArmStudy]":
    """Run what is missing, read what is there, and publish its report.

    Returns:
        The run of the store that holds the report, and what came of the arms. Runs that failed are in it.

    Raises:
        UserError, ArmError, RecipeError: as ``settle``.
        LockedError: another process runs the same study.
    """
    from flows.study_publishing import publish_study
    from solrl_tasks.store.root import Store
    from solrl_tasks.store.runs import Run
    from solrl_tasks.studies.arms_page import arms_curves, arms_metrics, arms_page
    from solrl_tasks.studies.runs import execute

    started, settled = time.monotonic(), settle(asked)
    store = Store.open(settings.store_root)
    with Run.open(store, settled.run_id, _held(store, settled)):
        outcomes = execute(settings.store_root, settled.runs, asked.parallel, asked.seconds, watcher)
        left = None if asked.seconds is None else asked.seconds - (time.monotonic() - started)
        # One after the other, after all else: nothing may share the device with them.
        outcomes += execute(settings.store_root, settled.timings, 1, left, watcher)
        study = read_study(store, settled, outcomes)
        page = arms_page(study, [replace(asked, seconds=None).command()])
        publish_study(settings, settled.run_id, page, arms_metrics(study), arms_curves(study))
    return settled.run_id, study


def read_study(store: "Store", settled: Settled, outcomes: Sequence[Any]) -> "ArmStudy":
    """What the store holds of a study's runs."""
    from solrl_tasks.studies.arm_study import ArmStudy
    from solrl_tasks.studies.runs import read_runs

    asked = settled.asked
    return ArmStudy(
        title=f"{TITLES[asked.study]}: {settled.family.base.name}",
        family=settled.family,
        seeds=asked.seeds,
        iterations=settled.iterations,
        records=tuple(read_runs(store, settled.runs, asked.modelled_on, settled.timings)),
        outcomes=tuple(outcomes),
        modelled_on=asked.modelled_on,
    )


def plain_result(run_id: str, study: "ArmStudy") -> dict[str, Any]:
    """Run, arms and runs as plain values."""
    from solrl_tasks.studies.arms_page import arm_rows, arms_metrics

    return {
        "run_id": run_id,
        "arms": arm_rows(study),
        "metrics": arms_metrics(study),
        "runs": [vars(outcome) for outcome in study.outcomes],
        "absent": dict(study.family.absent),
    }


def read_changes(texts: Sequence[str]) -> dict[str, Any]:
    """Dotted fields from words such as ``update.optimizer.lr=0.001``.

    Raises:
        UserError: one has no field or no value, or a field stands twice.
    """
    changes: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip()
        if not equals or not name:
            raise UserError(f"--set {text}: give FIELD=VALUE, such as update.optimizer.lr=0.001")
        if name in changes:
            raise UserError(f"--set {text}: {name} is {changes[name]!r} already: set each field once")
        try:
            changes[name] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise UserError(f"--set {text}: the value is not YAML: {error}") from error
    return changes


def read_seeds(text: str) -> tuple[int, ...]:
    """Seeds from words such as ``1,2,5`` or ``1-8``.

    Raises:
        UserError: they are no whole numbers.
    """
    found: list[int] = []
    for word in text.split(","):
        first, dash, last = word.strip().partition("-")
        try:
            found += range(int(first), int(last) + 1) if dash else [int(first)]
        except ValueError as error:
            raise UserError(f"seeds are {text!r}: give whole numbers with commas, or a range such as 1-8") from error
    if not found:
        raise UserError(f"seeds are {text!r}, which is none: give whole numbers with commas, or a range such as 1-8")
    return tuple(found)


def _family(asked: Asked, base: "Recipe") -> "Family":
    from solrl_tasks.studies.controls import controls
    from solrl_tasks.studies.families import availability_on
    from solrl_tasks.workers.numerics import default_device

    available = availability_on(default_device())
    return controls(base, available) if asked.study == "controls" else _ablation(asked, base, available)


def _ablation(asked: Asked, base: "Recipe", available: "Available") -> "Family":
    from solrl_tasks.studies.ablation import Source, ablation, read_factor

    path = find_config(asked.config)

    def find(name: str) -> Path:
        beside = path.parent / name
        return beside if beside.exists() else find_config(name)

    factors = [read_factor(text, base, available, Source(path, find)) for text in asked.vary]
    return ablation(base, factors, available, asked.grid)


def _check(runs: "Sequence[ArmRun]", asked: Asked) -> None:
    """Refuse what a run would be refused for, before the first begins."""
    from solrl_tasks.stages.session import prepare, require_engines
    from solrl_tasks.workers.numerics import default_device
    from solrl_tasks.workers.site import LocalSite

    device = default_device()
    if asked.parallel > 1 and device.type == "cuda" and any(_unsettled(run.recipe) for run in runs):
        raise UserError(
            f"{asked.config} leaves a chunk to the device (auto), which only a process that has it to itself can "
            "measure: give numbers for explore.chunk, regenerate.chunk and evaluate.sampling.chunk, or use one process"
        )
    here, seen = LocalSite(device), set[str]()
    for run in runs:
        if run.arm.name in seen:
            continue
        seen.add(run.arm.name)
        try:
            prepare(run.recipe, run.base)
            if run.recipe.workers.kind == "inline":
                require_engines(run.recipe, here)
        except (ValueError, LookupError) as error:
            raise UserError(f"{asked.config}, arm {run.arm.name}: {error}") from error


def _unsettled(recipe: "Recipe") -> bool:
    from solrl_tasks.stages.chunks import samplings

    return any(sampling.chunk == "auto" for sampling in samplings(recipe))


def _run_id(asked: Asked, family: "Family") -> str:
    from solrl_tasks.store.keys import digest

    base = family.base.model_dump(mode="json", exclude={"seed", "iterations"})
    arms = [[arm.name, dict(arm.changes)] for arm in family.arms]
    return study_id(asked.study, asked.config, digest([base, arms])[:8], 40)


def _held(store: "Store", settled: Settled) -> dict[str, Any]:
    """What the study's own run holds: the recipe that arms change. Seeds and iterations may grow or shrink."""
    from solrl_tasks.store.runs import RunView

    config = settled.family.base.model_dump(mode="json") | {"seed": 0}
    before = RunView(store, settled.run_id).recorded() or config
    return config | {"iterations": max(config["iterations"], before["iterations"])}


def _flow_style(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True, width=10_000).removesuffix("...\n").strip()
