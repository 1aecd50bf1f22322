"""One knob of a recipe at a time, or all combinations: arms from fields and lists of values.

A factor is a field of the recipe by dotted name with values (``explore.steps=2,4,6,8``), or one of ``FACTORS`` by name,
with values (``candidates=24,192``) or without, which takes those of ``presets``.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Final

import yaml

from solrl_tasks.config.load import RecipeError, load_recipe
from solrl_tasks.config.recipe import Recipe
from solrl_tasks.studies.arms import Arm, ArmError, arm_recipe, make_arm, switch_engine
from solrl_tasks.studies.families import Available, Family, make_family, nvfp4_engine
from solrl_tasks.workers.site import work_elsewhere

FACTORS: Final[dict[str, str]] = {
    "steps": "explore.steps",
    "candidates": "explore.candidates",
    "keep": "select.keep",
    "selector": "select.rule",
    "precision": "explore.engine",
    "objective": "update.objective",
    "advantage": "update.advantage",
}
"""Names for the knobs that are asked about most, and their fields."""
BASE: Final = "base"
LEAST_SHARE: Final = 4
"""A common chunk below this part of the recipe's own would cost more than it saves."""


@dataclass(frozen=True)
class Value:
    """One value of a factor: how it is shown, and the fields that it sets."""

    shown: str
    changes: Mapping[str, Any]


@dataclass(frozen=True)
class Factor:
    """A knob and its values.

    Attributes:
        name: as it was asked for.
        given: whether somebody named the values: one that cannot run here is then an error.
    """

    name: str
    values: tuple[Value, ...]
    given: bool


@dataclass(frozen=True)
class Source:
    """Where the recipe comes from.

    Attributes:
        path: of its file.
        find: the file that a name in a list of values stands for.
    """

    path: Path
    find: Callable[[str], Path] = Path


def read_factor(text: str, base: Recipe, available: Available, source: Source) -> Factor:
    """A factor from words: ``NAME``, or ``FIELD=VALUE,VALUE``.

    Values are YAML, so that ``{name: nft, options: {beta: 0.1}}`` is one. An extension can be given by its name alone.
    An objective can be a recipe file: what it says of update, of the rule of selection, and of the solver that
    regenerates is taken.

    Raises:
        ArmError: there is no such factor, or no value.
        RecipeError: a recipe file cannot be read.
    """
    name, equals, words = text.partition("=")
    name = name.strip()
    if not equals:
        if name not in FACTORS:
            raise ArmError(f"{name!r} has no values: give FIELD=VALUE,VALUE or one of {', '.join(FACTORS)}")
        return Factor(name, tuple(_preset(name, base, available, source)), given=False)
    try:
        values = yaml.safe_load(f"[{words}]")
    except yaml.YAMLError as error:
        raise ArmError(f"{text!r}: the values are no list: {error}") from error
    if not values:
        raise ArmError(f"{text!r} has no values after the =")
    return Factor(name, tuple(_value(name, value, base, source) for value in values), given=True)


def ablation(base: Recipe, factors: Sequence[Factor], available: Available, grid: bool = False) -> Family:
    """The arms of some factors around a recipe, which is an arm itself.

    One factor differs from the recipe at a time; with ``grid`` all combinations of all values are arms. Two ways of
    saying the same recipe are one arm.

    Raises:
        ArmError: there is no factor, one stands twice, or a value that somebody named cannot run here.
        RecipeError: a field is unknown, or a value is not allowed; the message names the arm.
    """
    names = [FACTORS.get(factor.name, factor.name) for factor in factors]
    if not names:
        raise ArmError(f"nothing is varied: name a field with values, or one of {', '.join(FACTORS)}")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ArmError(f"{', '.join(twice)} is varied twice: put all its values into one list")
    if work_elsewhere(base.workers) is None:
        _require_given(factors, available)
    base = arm_recipe(base, common_chunks(base, factors), BASE)
    arms = [make_arm(BASE, "the recipe as it is", base, {})]
    known = [arm_recipe(base, {}, BASE)]
    for combination in _combinations(factors, grid):
        arm = _arm(base, combination)
        recipe = arm_recipe(base, arm.changes, arm.name)
        if recipe not in known:
            known.append(recipe)
            arms.append(arm)
    return make_family("ablation", base, arms, BASE, available, _given_engines(factors))


def common_chunks(base: Recipe, factors: Sequence[Factor]) -> dict[str, Any]:
    """One chunk for all arms where the number of candidates, or of kept seeds, varies: the largest that divides all.

    Blocks are computed whole and a chunk is part of a key: so nothing is sampled that no arm asked for, and arms share
    what they have in common. The recipe's own stays where it is left to the device, where it divides them already, and
    where the common one would be less than a quarter of it.
    """
    explored = _common(base.explore.chunk, base.explore.candidates, _counts(factors, FACTORS["candidates"]))
    kept = _common(base.regenerate.chunk, base.select.keep, _counts(factors, FACTORS["keep"]))
    found = {"explore.chunk": explored, "regenerate.chunk": kept}
    return {field: chunk for field, chunk in found.items() if chunk is not None}


def _counts(factors: Sequence[Factor], field: str) -> list[int]:
    given = [value.changes[field] for factor in factors for value in factor.values if field in value.changes]
    return [count for count in given if isinstance(count, int)]


def _common(chunk: int | str, own: int, counts: Sequence[int]) -> int | None:
    if not counts or not isinstance(chunk, int):
        return None
    common = math.gcd(chunk, own, *counts)
    return common if common < chunk and common * LEAST_SHARE >= chunk else None


def _combinations(factors: Sequence[Factor], grid: bool) -> list[list[tuple[Factor, Value]]]:
    each = [[(factor, value) for value in factor.values] for factor in factors]
    if grid:
        return [list(combination) for combination in product(*each)]
    return [[one] for values in each for one in values]


def _arm(base: Recipe, combination: Sequence[tuple[Factor, Value]]) -> Arm:
    changes: dict[str, Any] = {}
    for _, value in combination:
        changes |= value.changes
    shown = [f"{factor.name} {value.shown}" for factor, value in combination]
    return make_arm("-".join(shown), ", ".join(shown), base, changes)


def _require_given(factors: Sequence[Factor], available: Available) -> None:
    for factor in factors:
        for value in factor.values:
            for name in _engines(value.changes):
                if factor.given and not available(name).ok:
                    raise ArmError(f"{factor.name}: {name} cannot run here: {available(name).reason}")


def _given_engines(factors: Sequence[Factor]) -> set[str]:
    """Names of the engines that somebody asked for by name."""
    return {name for factor in factors if factor.given for value in factor.values for name in _engines(value.changes)}


def _engines(changes: Mapping[str, Any]) -> list[str]:
    """Names of the engines that changes put somewhere."""
    found = []
    for field, content in changes.items():
        if field.removesuffix(".name").endswith("engine"):
            found.append(str(content["name"] if isinstance(content, Mapping) else content))
    return found


def _preset(name: str, base: Recipe, available: Available, source: Source) -> list[Value]:
    """The usual values of a factor, for a recipe and a device."""
    candidates, keep = base.explore.candidates, base.select.keep
    if name == "objective":
        return _objectives_beside(base, source)
    usual: dict[str, list[Any]] = {
        "steps": [2, 4, 6, 8],
        "candidates": [keep * times for times in range(1, max(4, candidates // keep) + 1)][:8],
        "keep": [count for count in (keep // 2, keep, keep * 2, keep * 4) if 2 <= count <= candidates],
        "selector": ["best_worst", "mean_deviation", "extremes_random", "random_keep"],
        "precision": ["bf16", "fp8", nvfp4_engine(available)[0]],
        "advantage": ["kept", "pool"],
    }
    return [_value(name, value, base, source) for value in usual[name]]


def _value(name: str, value: Any, base: Recipe, source: Source) -> Value:
    field = FACTORS.get(name, name)
    if field == FACTORS["objective"] and isinstance(value, str) and value.endswith((".yaml", ".yml")):
        return _objective_of(source.find(value))
    shown = _shown(value)
    if field == FACTORS["precision"] and isinstance(value, str):
        return Value(shown, {field: switch_engine(base, value)})
    if isinstance(value, str) and _is_extension(base, field):
        return Value(shown, {field: {"name": value}})
    return Value(shown, {field: value})


def _is_extension(base: Recipe, field: str) -> bool:
    node: Any = base.model_dump(mode="json")
    for part in field.split("."):
        node = node.get(part) if isinstance(node, Mapping) else None
    return isinstance(node, Mapping) and {"name", "options"} <= node.keys()


def _shown(value: Any) -> str:
    if isinstance(value, Mapping):
        return " ".join(_shown(one) if key == "name" else f"{key} {_shown(one)}" for key, one in value.items())
    return str(value)


def _objective_of(path: Path) -> Value:
    recipe = load_recipe(path)
    return Value(
        recipe.name,
        {
            "update": recipe.update.model_dump(mode="json"),
            "select.rule": recipe.select.rule,
            "regenerate.sampler": recipe.regenerate.sampler,
        },
    )


def _objectives_beside(base: Recipe, source: Source) -> list[Value]:
    """Objectives of the recipes beside the given one that align the same model to the same rewards."""
    found = []
    for path in sorted(source.path.parent.glob("*.yaml")):
        try:
            other = load_recipe(path)
        except RecipeError:
            continue
        same = (other.model, other.rewards, other.prompts) == (base.model, base.rewards, base.prompts)
        if same and path.resolve() != source.path.resolve():
            found.append(_objective_of(path))
    if not found:
        raise ArmError(
            f"no recipe beside {source.path} has its model and rewards with another objective: name objectives or "
            "recipe files, as in objective=ram,FILE.yaml"
        )
    return found
