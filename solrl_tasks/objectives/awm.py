"""Advantage Weighted Matching (AWM, arXiv 2509.25050): flow matching with a weight of either sign."""

from typing import Annotated, ClassVar

from pydantic import Field

from solrl_tasks.config.base import Frozen
from solrl_tasks.objectives.base import LossTerms, MicroBatch, Needs, Role, TimeDensity, Velocities, require
from solrl_tasks.objectives.core import precise, squared_distance, target_velocity


class AwmOptions(Frozen):
    """Options of the AWM objective.

    Attributes:
        kl_weight: weight of the squared distance to the reference velocity; 0 needs no reference. A run is RAM's with
            the baseline ``current`` and the multiplier ``1 / kl_weight``, but for the scale of the loss.
        times: how noise levels are drawn.
    """

    kl_weight: Annotated[float, Field(ge=0, le=1e6)] = 0.01
    times: TimeDensity = "uniform"


class Awm:
    """Flow matching on the policy's own samples, each weighted by its advantage.

        L = A mean (v - (eps - x0))^2 + kl_weight mean (v - v_ref)^2

    The likelihood ratio of the paper is 1 while samples come from the policy that is trained; with several optimizer
    steps an iteration it is left at 1. A negative advantage pushes away without bound: it is the pull to the
    reference that holds the policy.
    """

    name: ClassVar[str] = "awm"
    version: ClassVar[str] = "1"
    Options: ClassVar[type[Frozen]] = AwmOptions
    needs: ClassVar[Needs] = "endpoints"

    def __init__(self, options: AwmOptions) -> None:
        self.options = options

    @property
    def roles(self) -> frozenset[Role]:
        """``reference`` only where the pull to it has a weight."""
        return frozenset({"reference"} if self.options.kl_weight > 0 else ())

    @property
    def times(self) -> TimeDensity:
        """As the options say."""
        return self.options.times

    def loss(self, batch: MicroBatch, velocities: Velocities) -> LossTerms:
        """Per-row loss, ``[B]``, with metrics ``matching_error`` and, with a reference, ``kl``.

        Raises:
            ValueError: the velocity of the reference is needed and missing.
        """
        error = squared_distance(velocities.current, target_velocity(batch.x0, batch.eps))
        loss = precise(batch.advantage) * error
        metrics = {"matching_error": error.detach()}
        if self.options.kl_weight > 0:
            reference = require(velocities.reference, "reference", self.name).detach()
            kl = squared_distance(velocities.current, reference)
            loss, metrics["kl"] = loss + self.options.kl_weight * kl, kl.detach()
        return LossTerms(loss, metrics)


OBJECTIVE = Awm
