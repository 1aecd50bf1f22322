"""What an iteration would cost, counted and not measured."""

from collections.abc import Mapping
from typing import Annotated, Any, Final

from pydantic import Field

from solrl_tasks.bench.ceiling import IDEAL_FACTORS, floor_seconds
from solrl_tasks.bench.flops import ModelFlops
from solrl_tasks.bench.peaks import PEAKS, Precision, precision_of
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


class NoRateError(LookupError):
    """Hardware has no units for a precision, or nothing is known of them."""


def ideal_rates(bf16: float) -> dict[Precision, float]:
    """Operations a second of hardware that has every precision, from that in BF16; see ``IDEAL_FACTORS``."""
    return {"bf16": bf16, "fp8": bf16 * IDEAL_FACTORS["fp8"], "nvfp4": bf16 * IDEAL_FACTORS["nvfp4"]}


def model_work(
    recipe: Recipe,
    flops: ModelFlops,
    rate: float = RATE,
    rates: Mapping[Precision, float] | None = None,
    explored: ModelFlops | None = None,
    idle: bool = False,
) -> Work:
    """Evaluations of the network by stage, each at the rate that its precision would have in hardware.

    One evaluation an image and step, twice as many with classifier-free guidance. Of an emulated precision the
    operations count as the real one's. An exploration of no more than is kept chooses nothing, and counts nothing. An
    optimizer step covers all kept samples at ``times_per_sample`` levels: twice a forward pass for the trained
    policy, once for each other role that the objective evaluates.

    Args:
        rate: operations a second in bfloat16, of which the other precisions are multiples.
        rates: of each precision, in the place of ``rate``.
        explored: of one image and step at ``explore.resolution``; needed where that is not the model's.
        idle: count an exploration that chooses nothing as well: its statistics may be of use.

    Raises:
        NoRateError: ``rates`` lacks a precision that the recipe samples in.
        ValueError: ``explored`` is needed.
    """
    if explored is None and recipe.explore.resolution not in (None, recipe.model.resolution):
        raise ValueError(f"what an image of explore.resolution {recipe.explore.resolution} takes has to be counted too")
    known = ideal_rates(rate) if rates is None else rates
    explore, select, update = recipe.explore, recipe.select, recipe.update
    prompts = recipe.prompts.per_iteration
    chosen = explore.candidates if idle or explore.candidates > select.keep else 0
    objective: Objective[Any] = build("objective", update.objective.name, dict(update.objective.options))
    rows = update.optimizer_steps * prompts * select.keep * update.times_per_sample
    branches = 2 if recipe.model.guidance_scale > 1 else 1
    again = recipe.regenerate
    return Work(
        explore=prompts * chosen * explore.steps * branches * _step_seconds(explore.engine, explored or flops, known),
        regenerate=prompts * select.keep * again.steps * branches * _step_seconds(again.engine, flops, known),
        update=rows * (TRAINED_PASSES + len(objective.roles)) * branches * flops.total / known["bf16"],
    )


def _step_seconds(engine: ExtensionSpec, flops: ModelFlops, rates: Mapping[Precision, float]) -> float:
    precision = precision_of(engine.name.removesuffix("-emulated"), "real")
    if precision not in rates:
        raise NoRateError(f"{engine.name} multiplies in {precision}; rates are known of {', '.join(rates)}")
    return floor_seconds(flops.total, flops.quantisable, rates["bf16"], rates[precision])
