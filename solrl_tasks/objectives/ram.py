"""Reinforce Adjoint Matching (RAM, arXiv 2605.10759): a regression whose anchor is the reference."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator
from torch import Tensor

from solrl_tasks.config.base import Frozen
from solrl_tasks.objectives.base import LossTerms, MicroBatch, Needs, Role, TimeDensity, Velocities, require
from solrl_tasks.objectives.core import core_gradient, follow, precise, squared_distance, target_velocity


class RamOptions(Frozen):
    """Options of the RAM objective; the defaults are those of the released training script for GenEval and OCR.

    Attributes:
        multiplier: rho, by which advantages are multiplied; 1 / rho is the pull to the reference relative to the
            reward. The authors use 100 for GenEval and OCR, 1000 for PickScore.
        baseline: the velocity that the sample's own is compared with: ``old``, the lagged policy that made the
            sample (as released), or ``current``, the trained one without gradient (Eq. 17 of the paper).
        residual: where the model samples with classifier-free guidance, whether the baseline is the ``conditional``
            velocity (as released) or the ``guided`` one, under which the samples really were made. Everything else is
            conditional in any case. Without guidance they are the same.
        times: how noise levels are drawn; ``sqrt`` has the density 2t of the paper.
    """

    multiplier: Annotated[float, Field(gt=0, le=1e6)] = 100.0
    baseline: Literal["old", "current"] = "old"
    residual: Literal["conditional", "guided"] = "conditional"
    times: TimeDensity = "sqrt"

    @model_validator(mode="after")
    def _guided_is_of_the_old(self) -> Self:
        if self.residual == "guided" and self.baseline != "old":
            raise ValueError("residual guided is of the policy that sampled: it needs baseline old")
        return self


class Ram:
    """Regression to the reference velocity, shifted by the reward.

        target = v_ref + rho A ((eps - x0) - v_b)        L = mean (v - target)^2

    The shift is the Bayes estimator of the bridge score: without variance given the sample, exact where v_b is the
    mean velocity of the samples' own law. Without reward the loss is the squared distance to the reference, so that
    there is no KL term besides. Values of 1e4 and more are normal; look at ``reference_gap`` instead.

    With guidance the law of the samples is not that of the conditional velocity: a conditional residual then widens
    what a guided sampler makes and, where guidance is strong, even turns the shift around. A guided one shifts the
    conditional law as asked, and keeps its width.
    """

    name: ClassVar[str] = "ram"
    version: ClassVar[str] = "1"
    Options: ClassVar[type[Frozen]] = RamOptions
    needs: ClassVar[Needs] = "endpoints"

    def __init__(self, options: RamOptions) -> None:
        self.options = options

    @property
    def roles(self) -> frozenset[Role]:
        """``old`` only where it is the baseline."""
        return frozenset({"old", "reference"} if self.options.baseline == "old" else {"reference"})

    @property
    def guided(self) -> frozenset[Role]:
        """The roles whose velocity is the guided one; see ``base.guided_roles``."""
        return frozenset({"old"} if self.options.residual == "guided" else ())

    @property
    def times(self) -> TimeDensity:
        """As the options say."""
        return self.options.times

    def loss(self, batch: MicroBatch, velocities: Velocities) -> LossTerms:
        """Per-row loss, ``[B]``, with metrics ``reference_gap`` and ``baseline_error``.

        Raises:
            ValueError: the velocity of a role that is needed is missing.
        """
        rho = self.options.multiplier
        current, y = precise(velocities.current), target_velocity(batch.x0, batch.eps)
        reference = require(velocities.reference, "reference", self.name).detach()
        baseline = self._baseline(velocities)
        core = core_gradient(batch.advantage, y, baseline, current, reference=(1 / rho, reference))
        metrics = {
            "reference_gap": squared_distance(current.detach(), reference),
            "baseline_error": squared_distance(baseline, y),
        }
        return LossTerms(follow(current, rho * core), metrics)

    def _baseline(self, velocities: Velocities) -> Tensor:
        if self.options.baseline == "current":
            return velocities.current.detach()
        return require(velocities.old, "old", self.name).detach()


OBJECTIVE = Ram
