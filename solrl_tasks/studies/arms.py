"""Arms of a study: one recipe with some of its fields changed, run with several seeds and compared."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from solrl_tasks.config.load import parse_recipe
from solrl_tasks.config.recipe import ExtensionSpec, Recipe
from solrl_tasks.stages.learning import noise_of
from solrl_tasks.stages.resolutions import lowered
from solrl_tasks.stages.scores import normalised
from solrl_tasks.store.keys import digest

COSTED: Final = ("quantize", "explore", "regenerate", "update")
"""Stages that can count as the cost of an arm. Evaluations and audits measure it: they count for none."""
QUIET: Final[Mapping[str, Any]] = {
    "audit.every": 0,
    "tracking.grid_prompts": 0,
    "explore.store_images": "none",
    "evaluate.store_images": "none",
}
"""Fields that every arm has unless the study says otherwise: none of them changes what is learned."""
NOT_OF_ARMS: Final[Mapping[str, str]] = {
    "seed": "every arm runs with each of the study's seeds: name them there (--seeds, seeds)",
    "iterations": "it is of all arms alike: name it there (--iterations, iterations)",
    "name": "it changes nothing that is learned",
    "workers": "who does the work is the same for all arms: write it into the recipe file",
}
"""Parts of a recipe that no arm changes, and what to do about each."""
NAME_LENGTH: Final = 48


class ArmError(ValueError):
    """Arms that cannot be made or run; the message says which, and what to do."""


@dataclass(frozen=True)
class Arm:
    """Changes of a recipe under a name.

    Attributes:
        name: letters, digits, dots, dashes and underscores; distinct within a study.
        title: what it is, for people.
        changes: fields of the recipe by dotted name, and their values.
        counted: stages whose device-seconds are its cost, out of ``COSTED``; see ``counted_stages``.
        note: what a reader of its figures has to know, such as an engine that stands in for another.
    """

    name: str
    title: str
    changes: Mapping[str, Any]
    counted: frozenset[str]
    note: str = ""


@dataclass(frozen=True)
class ArmRun:
    """An arm with a seed: an ordinary run of the store.

    Attributes:
        recipe: complete; its chunks may be left to the device.
        base: folder that relative prompt files are looked up in.
    """

    arm: Arm
    seed: int
    run_id: str
    recipe: Recipe
    base: Path = Path()


def counted_stages(recipe: Recipe) -> frozenset[str]:
    """The stages whose cost is an arm's, from what each stage does for it.

    * Exploration that chooses nothing is not counted: where all explored seeds are kept, or the rule keeps seeds by
      lot, the same samples could have been had without it. It is counted all the same where statistics of the whole
      pool enter the advantages or the scores. With it goes the quantisation of its engine.
    * Regeneration that repeats what exploration drew is not counted: where the same engine samples the same seeds in
      the same steps by the same solver, the explored images could have been trained on as they are. (They are drawn
      again here because samples are kept with their latents, pools are not; another batch may round otherwise.)
    * The update always counts.
    """
    if not _uses_exploration(recipe):
        return frozenset({"regenerate", "update"})
    if _repeats(recipe):
        return frozenset({"quantize", "explore", "update"})
    return frozenset(COSTED)


def counting_rule(recipe: Recipe) -> str:
    """Why ``counted_stages`` counts what it counts, in a few words."""
    if not _uses_exploration(recipe):
        return "exploration chooses nothing and is not counted"
    if _repeats(recipe):
        return "regeneration repeats what exploration drew and is not counted"
    return "all stages count"


def make_arm(name: str, title: str, base: Recipe, changes: Mapping[str, Any], note: str = "") -> Arm:
    """An arm of a recipe, its cost counted by ``counted_stages``.

    Raises:
        ArmError: a field is none of an arm's, or has no value.
        RecipeError: a field is unknown, or a value is not allowed.
    """
    _require_changes(changes, f"arm {name}")
    return Arm(arm_name(name), title, dict(changes), counted_stages(arm_recipe(base, changes, name)), note)


def arm_recipe(base: Recipe, changes: Mapping[str, Any], name: str) -> Recipe:
    """The recipe of an arm.

    Raises:
        RecipeError: a field is unknown, or a value is not allowed; the message names the arm.
    """
    return _changed(base, changes, f"arm {name}")


def study_recipe(recipe: Recipe, changes: Mapping[str, Any], iterations: int | None = None) -> Recipe:
    """What all arms of a study share: a recipe without pictures and audits, and what the study changes everywhere.

    Args:
        changes: dotted fields, above ``QUIET`` and below what an arm sets.
        iterations: of every run; None leaves the recipe's.

    Raises:
        ArmError: a field is none of an arm's, or has no value.
        RecipeError: a field is unknown, or a value is not allowed.
    """
    _require_changes(changes, recipe.name)
    return _changed(recipe, {**QUIET, "iterations": iterations, **changes}, recipe.name)


def plan_runs(
    study: str, base: Recipe, arms: Sequence[Arm], seeds: Iterable[int], folder: Path = Path()
) -> list[ArmRun]:
    """Every arm with every seed, seed by seed: wherever time runs out, what is done compares all arms.

    The id of a run holds a digest of its recipe without seed and iterations: a study with another recipe has runs of
    its own, and one that asks for more iterations goes on.

    Args:
        study: first part of the ids.
        folder: that relative prompt files are looked up in.

    Raises:
        ArmError: two arms have one name, or a seed stands twice.
        RecipeError: an arm does not fit the recipe.
    """
    numbers = list(seeds)
    for what, given in (("arm", [arm.name for arm in arms]), ("seed", [str(seed) for seed in numbers])):
        twice = sorted({one for one in given if given.count(one) > 1})
        if twice:
            raise ArmError(f"{what} {', '.join(twice)} stands twice: name each {what} once")
    recipes = {arm.name: arm_recipe(base, arm.changes, arm.name) for arm in arms}
    return [_run(study, arm, recipes[arm.name], seed, folder) for seed in numbers for arm in arms]


def choose_arms(arms: Sequence[Arm], names: Sequence[str] | None) -> list[Arm]:
    """The arms of some names, in the order of the names; all of them for None.

    Raises:
        ArmError: there is no such arm.
    """
    if names is None:
        return list(arms)
    known = {arm.name: arm for arm in arms}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ArmError(f"there is no arm {', '.join(unknown)}; there is {', '.join(known)}")
    return [known[name] for name in dict.fromkeys(names)]


def arm_name(text: str) -> str:
    """A name out of any text, as runs can have it."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")
    if len(name) <= NAME_LENGTH:
        return name
    return f"{name[: NAME_LENGTH - 7]}-{digest(text)[:6]}"


def switch_engine(recipe: Recipe, name: str) -> dict[str, Any]:
    """Another engine in the place of the exploring one.

    Options belong to an engine: another one has its own defaults, but for how it is executed, which all of them know.
    """
    now: ExtensionSpec = recipe.explore.engine
    if now.name == name:
        return now.model_dump(mode="json")
    kept = {key: value for key, value in now.options.items() if key == "execution"}
    return {"name": name, "options": kept}


def _require_changes(changes: Mapping[str, Any], origin: str) -> None:
    for field, value in changes.items():
        if reason := NOT_OF_ARMS.get(field.partition(".")[0]):
            raise ArmError(f"{origin}: {field} cannot be changed in a study of arms: {reason}")
        if value is None:
            raise ArmError(f"{origin}: {field} has no value: give one, or leave it out of the recipe and of the study")


def _changed(recipe: Recipe, changes: Mapping[str, Any], origin: str) -> Recipe:
    found = parse_recipe(recipe.model_dump(mode="json"), changes, origin)
    # Who does the work stands in no dump: it changes no result.
    return found.model_copy(update={"workers": recipe.workers})


def _run(study: str, arm: Arm, recipe: Recipe, seed: int, folder: Path) -> ArmRun:
    known = digest(recipe.model_dump(mode="json", exclude={"seed", "iterations"}))[:6]
    return ArmRun(
        arm=arm,
        seed=seed,
        run_id=f"{study}-{arm.name}-{known}-seed{seed}",
        recipe=recipe.model_copy(update={"seed": seed}),
        base=folder,
    )


def _uses_exploration(recipe: Recipe) -> bool:
    by_lot = recipe.select.rule == "random_keep"
    chooses = recipe.explore.candidates > recipe.select.keep and not by_lot
    lends = recipe.update.advantage == "pool" or bool(normalised(recipe.rewards))
    return chooses or lends


def _repeats(recipe: Recipe) -> bool:
    first, again = recipe.explore, recipe.regenerate
    same = (first.engine, first.sampler, first.steps) == (again.engine, again.sampler, again.steps)
    same = same and lowered(recipe.model, first) is None
    # An objective with noise in its steps regenerates other images than were explored.
    return same and noise_of(recipe, 1) is None
