"""Adjoint Matching (arXiv 2409.08861): the gradient of a differentiable reward, carried back along paths."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field
from torch import Tensor

from solrl_tasks.config.base import Frozen
from solrl_tasks.config.stochastic import Stochastic, Window
from solrl_tasks.objectives.adjoints import AdjointStates
from solrl_tasks.objectives.base import LossTerms, Needs, Role, TimeDensity, Velocities, require
from solrl_tasks.objectives.core import per_row, precise, row_mean, squared_distance


class AdjointMatchingOptions(Frozen):
    """Options of Adjoint Matching.

    Attributes:
        multiplier: of the reward; its inverse is the temperature, the weight of the KL divergence to the reference. The
            authors use 1 to 100 with ImageReward.
        weight: how levels count: ``control`` as in the paper, by the inverse of the noise there; ``velocity`` all
            alike.
    """

    multiplier: Annotated[float, Field(gt=0, le=1e6)] = 1.0
    weight: Literal["control", "velocity"] = "control"


class AdjointMatching:
    """Regression of the velocity on the shift that pays best.

        target = v_ref + t / (1 - t) a        L = weight mean (v - target)^2

    a is the lean adjoint: minus the multiplied gradient of the reward, carried back along the reference.
    ``t / (1 - t)`` is half the variance of the memoryless SDE, by which paths are sampled. Advantages do not enter, and
    good and bad samples are learned from alike: select at random (``select.rule: random_keep``) unless paths to the
    extremes are what is wanted. The optimum is the reference law tilted by exp(multiplier reward).

    Only rewards that are differentiable in the pixels can be learned from. With guidance the paths have it, adjoints
    and loss do not.
    """

    name: ClassVar[str] = "adjoint-matching"
    version: ClassVar[str] = "1"
    Options: ClassVar[type[Frozen]] = AdjointMatchingOptions
    needs: ClassVar[Needs] = "adjoints"
    guided: ClassVar[frozenset[Role]] = frozenset()

    def __init__(self, options: AdjointMatchingOptions) -> None:
        self.options = options

    @property
    def roles(self) -> frozenset[Role]:
        """The reference alone."""
        return frozenset({"reference"})

    @property
    def times(self) -> TimeDensity:
        """Steps of the path itself."""
        return "grid_subset"

    def noise(self, steps: int, iteration: int) -> Stochastic:
        """Memoryless everywhere.

        Raises:
            ValueError: there is but one step.
        """
        window = Window(size=max(steps - 1, 1)).settle(steps, iteration)
        return Stochastic(step="memoryless", eta=1.0, window=window)

    def terminal(self, gradient: Tensor) -> Tensor:
        """The adjoint at the end of a path, of the reward's gradient there."""
        return -self.options.multiplier * precise(gradient)

    def loss(self, batch: AdjointStates, velocities: Velocities) -> LossTerms:
        """Per-row loss, ``[B]``, with metrics ``reference_gap`` and ``adjoint_square``.

        Raises:
            ValueError: the velocity of the reference is missing.
        """
        reference = precise(require(velocities.reference, "reference", self.name)).detach()
        half = precise(batch.half_variance)
        shift = per_row(half, reference) * precise(batch.adjoint)
        loss = squared_distance(velocities.current, reference + shift)
        if self.options.weight == "control":
            loss = 2 * loss / half
        metrics = {
            "reference_gap": squared_distance(velocities.current.detach(), reference),
            "adjoint_square": row_mean(precise(batch.adjoint).square()),
        }
        return LossTerms(loss, metrics)


OBJECTIVE = AdjointMatching
