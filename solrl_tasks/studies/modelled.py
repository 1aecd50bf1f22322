"""What an iteration of a recipe would cost on stated hardware, counted and not measured."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from solrl_tasks.bench.comparison.work import NoRateError, Work, model_work
from solrl_tasks.bench.flops import ModelFlops, count_flops
from solrl_tasks.bench.peaks import PEAKS, Precision, nominal_rates
from solrl_tasks.config.extensions import find_extension
from solrl_tasks.config.recipe import ModelSpec, Recipe
from solrl_tasks.models.sources import base_digest
from solrl_tasks.stages.resolutions import sampled_model
from solrl_tasks.store.atomic import read_sealed, write_sealed
from solrl_tasks.store.errors import DamagedError
from solrl_tasks.store.keys import key
from solrl_tasks.store.root import Store

DEFAULT_HARDWARE: Final = "NVIDIA B200"
"""The published method was timed on it, and it has units for every precision."""


@dataclass(frozen=True)
class Modelled:
    """Modelled seconds of one iteration.

    Attributes:
        hardware: whose rates they stand for; its name in ``bench.peaks``.
        rates: operations a second by precision, as the vendor states them for dense operands.
        work: by stage; None where the hardware has no units for a precision of the recipe.
        reason: why there is none.
    """

    hardware: str
    rates: Mapping[Precision, float]
    work: Work | None
    reason: str = ""

    def by_stage(self, counted: frozenset[str]) -> dict[str, float] | None:
        """Seconds of the counted stages that are modelled; quantisation is not."""
        if self.work is None:
            return None
        return {stage: seconds for stage, seconds in self.work.model_dump().items() if stage in counted}

    def seconds(self, counted: frozenset[str]) -> float | None:
        """Of the counted stages together."""
        found = self.by_stage(counted)
        return None if found is None else sum(found.values())


def model_iteration(
    recipe: Recipe, flops: ModelFlops, hardware: str = DEFAULT_HARDWARE, explored: ModelFlops | None = None
) -> Modelled:
    """One iteration of a recipe on some hardware.

    Args:
        explored: see ``model_work``.

    Raises:
        ValueError: nothing is known of the hardware.
    """
    rates = nominal_rates(hardware)
    if not rates:
        raise ValueError(f"no rates are known of {hardware!r}; there are those of {', '.join(PEAKS)}")
    try:
        # An arm says which stages count, an exploration that chooses nothing among them or not.
        return Modelled(hardware, rates, model_work(recipe, flops, rates=rates, explored=explored, idle=True))
    except NoRateError as error:
        return Modelled(hardware, rates, None, f"{hardware}: {error}")


def model_recipe(store: Store, recipe: Recipe, hardware: str = DEFAULT_HARDWARE) -> Modelled:
    """``model_iteration`` of a recipe whose operations are counted here, those of a lower resolution included."""
    flops = model_flops(store, recipe.model)
    explored = model_flops(store, sampled_model(recipe.model, recipe.explore))
    return model_iteration(recipe, flops, hardware, explored)


def model_flops(store: Store, model: ModelSpec) -> ModelFlops:
    """Operations of one image and step, counted once for a model and resolution and kept in the store.

    Weights are loaded for it where nobody has counted before.
    """
    spec = {
        "base": base_digest(model, store.cache),
        "family": [model.family, find_extension("family", model.family).version],
        "resolution": model.resolution,
        "max_sequence_length": model.max_sequence_length,
    }
    path = store.root / "cache" / "flops" / f"{key(spec)}.json"
    try:
        return ModelFlops.model_validate(read_sealed(path))
    except (FileNotFoundError, DamagedError):
        found = _count(model)
        write_sealed(path, found.model_dump(mode="json"))
        return found


def _count(model: ModelSpec) -> ModelFlops:
    from solrl_tasks.workers.device import Device
    from solrl_tasks.workers.numerics import default_device

    device = Device(model, default_device())
    return count_flops(device.family, device.resident.embeddings.get(("a picture",)))
