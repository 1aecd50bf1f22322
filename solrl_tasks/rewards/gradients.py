"""Rewards that can be differentiated in the pixels."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from pydantic import JsonValue
from torch import Tensor

from solrl_tasks.config.extensions import find_extension, list_extensions
from solrl_tasks.config.recipe import RewardSpec


class DifferentiableScorer(Protocol):
    """A reward with a method for gradients besides."""

    def differentiable(
        self, pixels: Tensor, prompts: Sequence[str], metadata: Sequence[Mapping[str, JsonValue]]
    ) -> Tensor:
        """Scores ``[B]`` of pixels in 0 to 1, ``[B, 3, H, W]``: those of the reward itself, but for its rounding."""
        ...


def is_differentiable(extension: Any) -> bool:
    """Whether a reward's class has such a method."""
    return callable(getattr(extension, "differentiable", None))


def require_differentiable(spec: RewardSpec, who: str) -> None:
    """Refuse a reward that has no gradient.

    Args:
        who: name of the objective that needs one.

    Raises:
        ValueError: the message names the rewards that have.
    """
    if not is_differentiable(find_extension("reward", spec.use or spec.name)):
        known = ", ".join(name for name, found in list_extensions("reward").items() if is_differentiable(found))
        raise ValueError(
            f"rewards: {spec.name} is not differentiable in the pixels, and {who} learns from the gradient of the "
            f"reward alone: take one that is ({known}, or your own with a method differentiable), or another objective"
        )
    if spec.normalize != "none":
        raise ValueError(
            f"rewards: {spec.name} is normalised over {spec.normalize}, which {who} cannot follow: set normalize to "
            "none and its weight to what it is worth"
        )
