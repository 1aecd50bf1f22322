"""Recipes from YAML, with overrides on top."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml
from pydantic import ValidationError

from solrl_tasks.config.recipe import Recipe

_WHERE: Final = "all of which stand in docs/configuration.md; configs/embedded.yaml is one to begin with"


class RecipeError(ValueError):
    """A recipe that cannot be used; the message names file, field, what was found and what is allowed."""


class _UniqueKeys(yaml.SafeLoader):
    """YAML in which a key that stands twice is an error: the first of two sections would be lost."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        twice = sorted({str(key) for key in keys if keys.count(key) > 1})
        if twice:
            raise yaml.constructor.ConstructorError(None, None, f"{', '.join(twice)} stands twice", node.start_mark)
        return super().construct_mapping(node, deep)


def load_recipe(path: Path, overrides: Mapping[str, Any] | None = None) -> Recipe:
    """Read a recipe and apply overrides.

    Args:
        path: a YAML file whose keys are the fields of ``Recipe``.
        overrides: dotted field names to values, such as ``{"explore.steps": 4}``; None values are left out.

    Raises:
        RecipeError: the file is absent, a folder, not to be read, empty, no text in UTF-8 or no YAML, or holds an
            unknown or invalid field.
    """
    return parse_recipe(_read(path), overrides or {}, str(path))


def parse_recipe(tree: Mapping[str, Any], overrides: Mapping[str, Any], origin: str) -> Recipe:
    """The recipe of a plain tree with dotted overrides; ``origin`` names it in errors.

    Raises:
        RecipeError: a field is unknown or invalid.
    """
    try:
        merged = _copy(tree)
    except RecursionError as error:
        raise RecipeError(f"{origin}: a section contains itself through an anchor") from error
    if isinstance(merged.get("workers"), str):
        # The short form has no fields to put others beside.
        merged["workers"] = {"kind": merged["workers"]}
    for dotted, value in overrides.items():
        if value is not None:
            _assign(merged, dotted, value)
    try:
        return Recipe.model_validate(merged)
    except ValidationError as error:
        raise RecipeError(f"{origin}: {describe(error)}") from error


def describe(error: ValidationError) -> str:
    """One line a fault: the field, what was found, what is allowed."""
    faults, lines = error.errors(), []
    for fault in faults:
        if any(
            len(other["loc"]) > len(place := fault["loc"]) and other["loc"][: len(place)] == place for other in faults
        ):
            continue  # a list that has too few items because one of them is at fault, which is told
        field = ".".join(str(part) for part in fault["loc"]) or "recipe"
        if fault["type"] == "extra_forbidden":
            lines.append(f"{field} is not a known field: check the spelling")
        elif fault["type"] == "value_error":
            lines.append(str(fault["ctx"]["error"]))
        else:
            lines.append(f"{field}: {fault['msg']} (found {fault['input']!r})")
    return "; ".join(lines)


def _read(path: Path) -> dict[str, Any]:
    text = _text(path)
    try:
        tree = yaml.load(text, _UniqueKeys)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise RecipeError(f"config file {path} is not valid YAML: {error}") from error
    if tree is None:
        raise RecipeError(f"config file {path} is empty: a recipe is a mapping of fields, {_WHERE}")
    if not isinstance(tree, dict):
        raise RecipeError(f"config file {path} must hold a mapping of fields, found {type(tree).__name__}")
    return tree


def _text(path: Path) -> str:
    try:
        data = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        there = _recipes_in(path.parent)
        raise RecipeError(f"config file {path} does not exist: give a path from the current folder{there}") from error
    except IsADirectoryError as error:
        raise RecipeError(f"config file {path} is a folder: name a file in it{_recipes_in(path)}") from error
    except PermissionError as error:
        raise RecipeError(f"config file {path} may not be read by this user: give it leave (chmod u+r)") from error
    except OSError as error:
        raise RecipeError(f"config file {path} cannot be read: {error.strerror or error}") from error
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        found = f"byte {error.start} (line {line}) is 0x{data[error.start]:02x}"
        raise RecipeError(f"config file {path} is not text in UTF-8: {found}. Save it as UTF-8") from error


def _recipes_in(folder: Path) -> str:
    siblings = sorted(p.name for p in folder.glob("*.yaml")) if folder.is_dir() else []
    return f"; {folder.resolve()} holds {', '.join(siblings)}" if siblings else ""


def _copy(tree: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _copy(value) if isinstance(value, Mapping) else value for key, value in tree.items()}


def _assign(tree: dict[str, Any], dotted: str, value: Any) -> None:
    *parents, leaf = dotted.split(".")
    node = tree
    for name in parents:
        node = node.setdefault(name, {})
        if not isinstance(node, dict):
            raise RecipeError(f"override {dotted}: {name} is not a section")
    node[leaf] = value
