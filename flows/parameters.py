"""What can be asked of a run from outside, flat and typed, and the recipe that comes of it.

None means the recipe's own value everywhere. The schema leaves it out, so that a refusal names the
plain type and range.
"""

from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, WithJsonSchema
from pydantic.json_schema import SkipJsonSchema

from flows.errors import UserError
from flows.settings import find_config
from solrl_tasks.config.extensions import list_extensions
from solrl_tasks.config.load import RecipeError, load_recipe
from solrl_tasks.config.recipe import Recipe

RUN_ID_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"


def _known_engine(name: str) -> str:
    known = list(list_extensions("engine"))
    if name not in known:
        raise ValueError(f"{name!r} is not one of {known}")
    return name


def _engine_schema() -> dict[str, object]:
    return {"type": "string", "enum": list(list_extensions("engine"))}


Count = Annotated[int, Field(ge=1, le=100_000)]
RunId = Annotated[str, Field(pattern=RUN_ID_PATTERN)] | SkipJsonSchema[None]
Iterations = Count | SkipJsonSchema[None]
Steps = Annotated[int, Field(ge=1, le=200)] | SkipJsonSchema[None]
Group = Annotated[int, Field(ge=2, le=100_000)] | SkipJsonSchema[None]
Prompts = Count | SkipJsonSchema[None]
KnownEngine = Annotated[str, AfterValidator(_known_engine), WithJsonSchema(_engine_schema())]
Engine = KnownEngine | SkipJsonSchema[None]
LearningRate = Annotated[float, Field(gt=0, le=1)] | SkipJsonSchema[None]
Iteration = Annotated[int, Field(ge=0, le=100_000)] | SkipJsonSchema[None]
Guidance = Annotated[float, Field(ge=0, le=30)] | SkipJsonSchema[None]
GuidanceScale = Annotated[float, Field(ge=1, le=30)] | SkipJsonSchema[None]
Seed = Annotated[int, Field(ge=0, le=2**63 - 1)] | SkipJsonSchema[None]
Workers = Literal["inline", "ray"] | SkipJsonSchema[None]
Actors = Annotated[int, Field(ge=1, le=10_000)] | SkipJsonSchema[None]
RayAddress = Annotated[str, Field(min_length=1)] | SkipJsonSchema[None]

FIELDS: Final[dict[str, str]] = {
    "iterations": "iterations",
    "explore_steps": "explore.steps",
    "candidates": "explore.candidates",
    "keep": "select.keep",
    "prompts": "prompts.per_iteration",
    "engine": "explore.engine.name",
    "lr": "update.optimizer.lr",
    "seed": "seed",
    "workers": "workers.kind",
    "actors": "workers.actors",
    "ray_address": "workers.address",
}
"""The field of the recipe that each parameter stands for."""
OF_RAY: Final = ("actors", "ray_address")
"""Parameters that mean nothing to other workers."""


def read_recipe(config: str, parameters: dict[str, object]) -> tuple[Recipe, Path]:
    """The recipe of a config file with parameters on top, and the folder that its relative paths start from.

    Args:
        config: a path from the current directory or from the project's folder.
        parameters: keys of ``FIELDS``; None is left out.

    Raises:
        RecipeError: the file or the result is not usable, or something of Ray's is asked for of one that uses none.
    """
    path = find_config(config)
    overrides = {FIELDS[name]: value for name, value in parameters.items()}
    engine = parameters.get("engine")
    if engine is not None and load_recipe(path).explore.engine.name != engine:
        # The options in the file belong to the engine in the file.
        overrides[FIELDS["engine"].removesuffix(".name")] = {"name": engine}
        del overrides[FIELDS["engine"]]
    recipe = load_recipe(path, overrides)
    require_ray(recipe, parameters, config)
    return recipe, path.parent


def require_ray(recipe: Recipe, parameters: dict[str, object], where: str) -> None:
    """Refuse what only Ray would heed: in a file it may wait for that kind, but who asks for it now means it.

    Args:
        where: what the error begins with.

    Raises:
        RecipeError: actors or a cluster are asked for, and the work is done by no Ray.
    """
    kind = recipe.workers.kind
    asked = [f"{name} {parameters[name]}" for name in OF_RAY if parameters.get(name) is not None]
    if asked and kind != "ray":
        raise RecipeError(
            f"{where}: {' and '.join(asked)} would have no effect, as workers is {kind}: ask for workers ray as "
            "well (--workers ray, or -p workers=ray), or leave it out"
        )


def read_usable(config: str, parameters: dict[str, object]) -> tuple[Recipe, Path]:
    """As ``read_recipe``, and checked as far as it can be without loading weights: before servers are looked up.

    Raises:
        RecipeError: the file or the result is not usable.
        UserError: an extension, its options, prompts, a resolution or a grid is not, or an engine cannot run here.
    """
    # They bring torch, which nothing else here needs.
    from solrl_tasks.stages.session import prepare, require_engines
    from solrl_tasks.workers.numerics import default_device
    from solrl_tasks.workers.site import LocalSite

    recipe, base = read_recipe(config, parameters)
    try:
        prepare(recipe, base)
        if recipe.workers.kind == "inline":
            require_engines(recipe, LocalSite(default_device()))
    except (ValueError, LookupError) as error:
        raise UserError(f"{config}: {error}") from error
    return recipe, base
