"""Extensions found by name: one small module each, no central list."""

import importlib
import pkgutil
from typing import Any, Final

from pydantic import ValidationError

from solrl_tasks.config.base import Frozen

KINDS: Final[dict[str, tuple[str, str]]] = {
    "family": ("solrl_tasks.models.families", "FAMILY"),
    "engine": ("solrl_tasks.engines", "ENGINE"),
    "sampler": ("solrl_tasks.sampling.samplers", "SAMPLER"),
    "sde step": ("solrl_tasks.sampling.sde", "STEP"),
    "feature": ("solrl_tasks.features", "FEATURE"),
    "reward": ("solrl_tasks.rewards", "REWARD"),
    "objective": ("solrl_tasks.objectives", "OBJECTIVE"),
    "selection rule": ("solrl_tasks.selection", "RULE"),
}


class UnknownExtensionError(LookupError):
    """A name in a recipe that no module answers to."""


def _load(module_name: str, attribute: str, asked: str) -> Any:
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and module_name.startswith(error.name):
            return None
        raise UnknownExtensionError(
            f"{asked}: its module {module_name} needs {error.name}, which is not installed"
        ) from error
    return getattr(module, attribute, None)


def list_extensions(kind: str) -> dict[str, Any]:
    """The project's own extensions of a kind, by name.

    Args:
        kind: a key of ``KINDS``.
    """
    package_name, attribute = KINDS[kind]
    package = importlib.import_module(package_name)
    found = {}
    for info in pkgutil.iter_modules(package.__path__):
        extension = _load(f"{package_name}.{info.name}", attribute, info.name)
        if extension is not None:
            found[extension.name] = extension
    return dict(sorted(found.items()))


def find_extension(kind: str, name: str) -> Any:
    """The extension class that a recipe names.

    A plain name is a module of the project's package for that kind (dashes stand for underscores). ``module:attribute``
    names anything importable, such as a user's own class or function.

    Raises:
        UnknownExtensionError: nothing answers to the name; the message lists what there is.
    """
    package_name, attribute = KINDS[kind]
    if ":" in name:
        module_name, _, own = name.partition(":")
        extension = _load(module_name, own, f"{kind} {name!r}")
        if extension is None:
            raise UnknownExtensionError(f"{kind} {name!r}: no {own!r} in an importable module {module_name!r}")
        return extension
    extension = None
    module = name.replace("-", "_")
    if module.isidentifier():
        extension = _load(f"{package_name}.{module}", attribute, f"{kind} {name!r}")
    if extension is None or extension.name != name:
        known = ", ".join(list_extensions(kind))
        raise UnknownExtensionError(f"unknown {kind} {name!r}: there is {known}; your own is named as module:attribute")
    return extension


def parse_options(kind: str, extension: Any, options: dict[str, Any]) -> Frozen | None:
    """An extension's options, validated by its own ``Options`` class; None where it has none.

    Raises:
        ValueError: an option is unknown or out of range; the message names it.
    """
    schema: type[Frozen] | None = getattr(extension, "Options", None)
    name = getattr(extension, "name", str(extension))
    if schema is None:
        if options:
            raise ValueError(f"{kind} {name!r} takes no options, found {sorted(options)}")
        return None
    try:
        return schema.model_validate(options)
    except ValidationError as error:
        details = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        allowed = ", ".join(schema.model_fields)
        raise ValueError(f"{kind} {name!r}: options refused ({details}); allowed are {allowed}") from error


def build(kind: str, name: str, options: dict[str, Any], *arguments: Any) -> Any:
    """An instance of the extension: its options first where it has any, then ``arguments``."""
    extension = find_extension(kind, name)
    parsed = parse_options(kind, extension, options)
    return extension(*arguments) if parsed is None else extension(parsed, *arguments)
