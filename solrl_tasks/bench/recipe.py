"""The recipe of a run whose iterations are timed."""

from typing import Annotated, Any, Final

from pydantic import Field, JsonValue

from solrl_tasks.config.base import Frozen
from solrl_tasks.config.load import parse_recipe
from solrl_tasks.config.recipe import LoraSpec, ModelSpec, Recipe, RewardSpec

Count = Annotated[int, Field(ge=1)]
SEEDS: Final = 4
"""Of a held-out prompt."""


class IterationRequest(Frozen):
    """What iterations to run.

    Attributes:
        options: of engines, by name.
        held_out: prompts of an evaluation after every iteration; 0 is none.
        audit: regenerate the whole group of one prompt in every iteration.
    """

    model: ModelSpec
    engine: str
    options: dict[str, dict[str, JsonValue]] = Field(default_factory=dict)
    prompts: Count
    iterations: Count
    candidates: Count
    keep: Count
    explore_steps: Count
    full_steps: Count
    chunk: Count
    held_out: Annotated[int, Field(ge=0)]
    audit: bool
    micro_batch: Count
    gradient_checkpointing: bool
    reward: RewardSpec
    lora: LoraSpec
    seed: int


def iteration_recipe(request: IterationRequest) -> Recipe:
    """Every stage of a run, at the size asked for.

    Raises:
        RecipeError: the sizes do not fit together.
    """
    again, seeds = min(request.chunk, request.keep), min(request.keep, SEEDS)
    tree: dict[str, Any] = {
        "name": f"bench-{request.model.family}",
        "seed": request.seed,
        "iterations": request.iterations,
        "model": request.model.model_dump(mode="json"),
        "prompts": {"per_iteration": request.prompts},
        "rewards": [request.reward.model_dump(mode="json")],
        "explore": {
            "engine": _engine(request, request.engine),
            "steps": request.explore_steps,
            "candidates": request.candidates,
            "chunk": request.chunk,
        },
        "select": {"keep": request.keep},
        "regenerate": {"engine": _engine(request, "bf16"), "steps": request.full_steps, "chunk": again},
        "update": {
            "lora": request.lora.model_dump(mode="json"),
            "micro_batch": request.micro_batch,
            "gradient_checkpointing": request.gradient_checkpointing,
        },
        "evaluate": {
            "every": int(request.held_out > 0),
            "prompts": max(request.held_out, 1),
            "seeds": seeds,
            "sampling": {"engine": _engine(request, "bf16"), "steps": request.full_steps, "chunk": seeds},
        },
        "audit": {"every": int(request.audit), "prompts": 1},
    }
    return parse_recipe(tree, {}, "bench iteration")


def _engine(request: IterationRequest, name: str) -> dict[str, Any]:
    return {"name": name, "options": dict(request.options.get(name, {}))}
