"""The size at which images are explored, where that is not the model's.

Noise: each candidate's own full-size noise, pooled (``sampling.identity.pool_noise``), so that a seed is the same seed
at both sizes. Sigma grid: that of the lower resolution, as the pipeline itself would walk it there. Rewards: images are
enlarged to the model's resolution before they are scored, so that a reward is shown what it is made for; they are kept
as they were sampled.
"""

from typing import Any

from pydantic import ValidationError

from solrl_tasks.config.extensions import find_extension
from solrl_tasks.config.recipe import ModelSpec, SamplingSpec
from solrl_tasks.models.families.base import Family, FamilyError
from solrl_tasks.rewards.pixels import ENLARGING
from solrl_tasks.sampling.identity import POOLING


class UnsuitableError(ValueError):
    """How images are to be sampled does not suit the model."""


def lowered(model: ModelSpec, sampling: SamplingSpec) -> int | None:
    """The side in pixels at which a sampling samples; None where it is the model's, named or not."""
    return None if sampling.resolution == model.resolution else sampling.resolution


def sampled_model(model: ModelSpec, sampling: SamplingSpec) -> ModelSpec:
    """The model as a sampling uses it."""
    side = lowered(model, sampling)
    return model if side is None else model.model_copy(update={"resolution": side})


def lowered_spec(model: ModelSpec, sampling: SamplingSpec) -> dict[str, Any]:
    """What else decides bits where the resolution is lowered, for a pool's key; empty where it is not."""
    if lowered(model, sampling) is None:
        return {}
    return {"lowered": {"from": model.resolution, "noise": POOLING, "scored": ENLARGING}}


def allowed_resolutions(model: ModelSpec) -> list[int]:
    """The sides at which images can be explored, largest first: the model's divided by whole numbers, as far as the
    pipeline has latents for it.

    Raises:
        SourceError: the pipeline's configuration cannot be read.
    """
    family: type[Family] = find_extension("family", model.family)
    sides = [model.resolution // by for by in range(1, model.resolution + 1) if model.resolution % by == 0]
    return [side for side in sides if _has_latents(family, model, side)]


def check_resolution(model: ModelSpec, sampling: SamplingSpec, field: str = "explore.resolution") -> None:
    """Refuse a resolution that noise cannot be pooled for, or that the pipeline has no latents for.

    Args:
        field: where it stands, for the message.

    Raises:
        UnsuitableError: the message lists what is allowed.
    """
    side = lowered(model, sampling)
    if side is None:
        return
    allowed = allowed_resolutions(model)
    if side not in allowed:
        raise UnsuitableError(
            f"{field} is {side}, but noise is pooled in whole cells and {model.source!r} needs whole tokens: with "
            f"model.resolution {model.resolution} it can be {', '.join(map(str, allowed))}"
        )


def _has_latents(family: type[Family], model: ModelSpec, side: int) -> bool:
    try:
        family.latent_shape_of(ModelSpec.model_validate({**model.model_dump(), "resolution": side}))
    except (FamilyError, ValidationError):
        return False
    return True
