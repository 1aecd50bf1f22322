"""Which runs the results take: controls with many seeds, two ablations with fewer; what is the same run is run once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from solrl_tasks.config.recipe import ExtensionSpec, Recipe
from solrl_tasks.config.words import counted
from solrl_tasks.studies.arms import Arm, ArmError, ArmRun, arm_recipe, make_arm, plan_runs, study_recipe
from solrl_tasks.studies.controls import controls
from solrl_tasks.studies.families import Available, split_runnable
from solrl_tasks.studies.results.findings import Roles
from solrl_tasks.studies.results.published import CANDIDATES, STEPS

STUDY: Final = "results"
METHOD: Final = "solrl-nvfp4"


@dataclass(frozen=True)
class Settings:
    """What all runs share.

    Attributes:
        every: iterations from one held-out evaluation to the next.
        keep: of ``candidates``; 24 of 96 are published.
        micro_batch: rows of one forward and backward pass; None leaves that of the recipe.
        execution: of engines on an accelerator; runs as short as these end before compiling would have paid.
        seeds: of the controls; ``ablation_seeds`` of the values of the ablations.
        changes: dotted fields of all recipes, below what the arms set.
    """

    iterations: int = 30
    every: int = 3
    candidates: int = 96
    keep: int = 24
    micro_batch: int | None = None
    execution: str = "eager"
    seeds: int = 8
    ablation_seeds: int = 4
    changes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ResultsPlan:
    """The arms, and what each is in the tables.

    Attributes:
        base: recipe that the arms change.
        controls, ablated: arms with many seeds, and those with fewer.
        absent: arms that cannot run here, and why.
    """

    base: Recipe
    folder: Path
    controls: tuple[Arm, ...]
    ablated: tuple[Arm, ...]
    roles: Roles
    absent: Mapping[str, str]

    def engine(self, name: str) -> str | None:
        """What a control explores with; None where there is no such control."""
        found = next((arm for arm in self.controls if arm.name == name), None)
        return None if found is None else arm_recipe(self.base, found.changes, name).explore.engine.name

    def runs(self, seeds: int, ablation_seeds: int) -> list[ArmRun]:
        """All runs, seed by seed: wherever time runs out, what is done compares all arms."""
        found = []
        for seed in range(1, max(seeds, ablation_seeds) + 1):
            arms = [*(self.controls if seed <= seeds else ()), *(self.ablated if seed <= ablation_seeds else ())]
            found += plan_runs(STUDY, self.base, arms, [seed], self.folder)
        return found

    def choose(self, names: Sequence[str] | None) -> "ResultsPlan":
        """Some of the arms; all of them for None.

        Raises:
            ArmError: there is no such arm here.
        """
        if names is None:
            return self
        known = [arm.name for arm in (*self.controls, *self.ablated)]
        unknown = [name for name in names if name not in known]
        if unknown:
            reasons = [f"{name} ({self.absent[name]})" if name in self.absent else name for name in unknown]
            raise ArmError(f"there is no arm {', '.join(reasons)}; there is {', '.join(known)}")
        few, many = (tuple(arm for arm in arms if arm.name in names) for arms in (self.ablated, self.controls))
        return ResultsPlan(self.base, self.folder, many, few, self.roles, self.absent)


def plan_results(recipe: Recipe, settings: Settings, available: Available, folder: Path = Path()) -> ResultsPlan:
    """The controls and both ablations around a recipe.

    What is the same run is run once: the method is the recipe's own steps and all its candidates, and exploring no more
    than is kept is the baseline: both train on all of the first seeds, sampled precisely.

    Args:
        available: of the device that runs them.
        folder: that relative prompt files are looked up in.

    Raises:
        ArmError: the settings keep all that is explored.
        RecipeError: the settings do not fit the recipe.
    """
    base = results_recipe(recipe, settings)
    family = controls(base, available)
    known = {arm.name for arm in family.arms}
    steps: dict[int, str] = {}
    candidates = {settings.keep: family.baseline}
    ablated: list[Arm] = []
    if METHOD in known:
        own = next(arm for arm in family.arms if arm.name == METHOD)
        steps[base.explore.steps] = candidates[settings.candidates] = METHOD
        for value in (value for value in STEPS if value not in steps):
            ablated.append(
                _varied(base, own, f"steps-{value}", f"{counted(value, 'explore step')}", {"explore.steps": value})
            )
            steps[value] = ablated[-1].name
        for value in (value for value in CANDIDATES if settings.keep < value < settings.candidates):
            changes = {"explore.candidates": value, "explore.chunk": value}
            ablated.append(
                _varied(base, own, f"candidates-{value}", f"{counted(value, 'candidate')} a prompt", changes)
            )
            candidates[value] = ablated[-1].name
    runnable, absent = split_runnable(base, ablated, available)
    roles = Roles(
        baseline=family.baseline,
        precise=f"bf16-{settings.candidates}full",
        method=METHOD,
        direct="nvfp4-direct",
        steps=steps,
        candidates=candidates,
        races=tuple(arm.name for arm in family.arms),
    )
    return ResultsPlan(base, folder, family.arms, runnable, roles, {**family.absent, **absent})


def results_recipe(recipe: Recipe, settings: Settings) -> Recipe:
    """What all arms change: groups in one chunk, engines without compilation, evaluations now and then.

    Raises:
        RecipeError: the settings do not fit the recipe.
    """
    changes: dict[str, Any] = {
        "explore.candidates": settings.candidates,
        "explore.chunk": settings.candidates,
        "select.keep": settings.keep,
        "regenerate.chunk": settings.keep,
        "evaluate.every": settings.every,
        "explore.engine": _executed(recipe.explore.engine, settings),
        "regenerate.engine": _executed(recipe.regenerate.engine, settings),
        "evaluate.sampling.engine": _executed(recipe.evaluate.sampling.engine, settings),
    }
    if settings.micro_batch is not None:
        changes["update.micro_batch"] = settings.micro_batch
    named = recipe.model_copy(update={"name": STUDY})
    return study_recipe(named, {**changes, **settings.changes}, settings.iterations)


def _varied(base: Recipe, own: Arm, name: str, title: str, changes: Mapping[str, Any]) -> Arm:
    """The method with one knob turned."""
    return make_arm(name, title, base, {**own.changes, **changes}, own.note)


def _executed(engine: ExtensionSpec, settings: Settings) -> dict[str, Any]:
    return {"name": engine.name, "options": {**engine.options, "execution": settings.execution}}
