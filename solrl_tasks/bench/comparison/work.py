"""What an iteration would cost, counted and not measured."""

from typing import Annotated, Any, Final

from pydantic import Field

from solrl_tasks.bench.ceiling import IDEAL_FACTORS, step_speedup
from solrl_tasks.bench.flops import ModelFlops
from solrl_tasks.bench.peaks import PEAKS
from solrl_tasks.config.base import Frozen
from solrl_tasks.config.extensions import build
from solrl_tasks.config.recipe import ExtensionSpec, Recipe
from solrl_tasks.objectives.base import Objective

TRAINED_PASSES: Final = 2
"""Forward passes that a forward and a backward through frozen weights are worth: adapters are left out."""
RATE: Final = PEAKS["NVIDIA H200"]["bf16"].rate


class Work(Frozen):
    """Modelled seconds of one iteration; evaluations are left out, as are decoding, rewards and text."""

    explore: Annotated[float, Field(ge=0)]
    regenerate: Annotated[float, Field(ge=0)]
    update: Annotated[float, Field(ge=0)]

    @property
    def total(self) -> float:
        """Of all stages."""
        return self.explore + self.regenerate + self.update


def model_work(recipe: Recipe, flops: ModelFlops, rate: float = RATE) -> Work:
    """Evaluations of the network by stage, each at the rate that its precision would have in hardware.

    One evaluation an image and step, twice as many with classifier-free guidance. Of an emulated precision the
    operations count as the real one's. An exploration of no more than is kept chooses nothing, and counts nothing. An
    optimizer step covers all kept samples at ``times_per_sample`` levels: twice a forward pass for the trained
    policy, once for each other role that the objective evaluates.

    Args:
        rate: operations a second in bfloat16.
    """
    branches = 2 if recipe.model.guidance_scale > 1 else 1
    forward = branches * flops.total / rate
    explore, select, update = recipe.explore, recipe.select, recipe.update
    prompts = recipe.prompts.per_iteration
    chosen = explore.candidates if explore.candidates > select.keep else 0
    objective: Objective[Any] = build("objective", update.objective.name, dict(update.objective.options))
    rows = update.optimizer_steps * prompts * select.keep * update.times_per_sample
    again = recipe.regenerate
    return Work(
        explore=prompts * chosen * explore.steps * forward / _faster(explore.engine, flops),
        regenerate=prompts * select.keep * again.steps * forward / _faster(again.engine, flops),
        update=rows * (TRAINED_PASSES + len(objective.roles)) * forward,
    )


def _faster(engine: ExtensionSpec, flops: ModelFlops) -> float:
    factor = IDEAL_FACTORS.get(engine.name.removesuffix("-emulated"), 1.0)
    return step_speedup(flops.total, flops.quantisable, factor)
