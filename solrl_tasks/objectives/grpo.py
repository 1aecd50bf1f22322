"""Policy gradients along sampled paths: Flow-GRPO and its relatives as settings of one objective."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator
from torch import Tensor

from solrl_tasks.config.base import Frozen
from solrl_tasks.config.extensions import find_extension
from solrl_tasks.config.stochastic import Stochastic, Window
from solrl_tasks.objectives.base import LossTerms, Needs, Role, TimeDensity, Velocities, require
from solrl_tasks.objectives.core import precise, row_mean, squared_distance
from solrl_tasks.objectives.transitions import Transitions, clipped_policy_loss


class GrpoOptions(Frozen):
    """Options of the GRPO objective; the defaults are those of Flow-GRPO without KL.

    Attributes:
        step: kind of the noisy steps: ``flow-sde``, ``dance`` or ``cps``.
        eta: how much noise they have.
        window: the steps that have noise and are trained; None is all but the last, which never has noise.
        clip: the ratio is clipped to 1 +- clip. Its scale depends on ``log_prob`` and ``guard``.
        advantage_clip: advantages are clipped to +-this.
        log_prob: ``gaussian`` is the log density, ``distance`` the mean squared distance alone, as released with
            ``cps``.
        guard: ``ratio`` is the normalised ratio of GRPO-Guard, ``full`` its gradient weight 1 / |dt| as well.
        kl_weight: weight of the squared distance to the reference velocity; 0 needs no reference.
    """

    step: str = "flow-sde"
    eta: Annotated[float, Field(gt=0, le=10)] = 0.7
    window: Window | None = None
    clip: Annotated[float, Field(gt=0, lt=1)] = 1e-4
    advantage_clip: Annotated[float, Field(gt=0, le=1000)] = 5.0
    log_prob: Literal["gaussian", "distance"] = "gaussian"
    guard: Literal["none", "ratio", "full"] = "none"
    kl_weight: Annotated[float, Field(ge=0, le=1e6)] = 0.0

    @model_validator(mode="after")
    def _one_scale(self) -> Self:
        if self.guard != "none" and self.log_prob != "gaussian":
            raise ValueError(f"log_prob {self.log_prob!r} is not read with a guard, which has a ratio of its own")
        if self.step == "cps" and self.eta > 1:
            raise ValueError(f"eta is {self.eta}: of cps it is at most 1, where all of the noise is exchanged")
        return self


class Grpo:
    """Clipped policy gradient of the noisy steps that were taken (arXiv 2505.05470, 2505.07818, 2510.22319).

        L = max(-A ratio, -A clip(ratio, 1 - clip, 1 + clip)) + kl_weight mean (v - v_ref)^2

    with the ratio of likelihoods of a step under the trained policy and the one that began the update. Before the first
    optimizer step it is exactly 1, whatever engine sampled, as both are evaluated by the training forward. Every
    trained step of a path has the advantage of the image that the path ends in.

    Without the last term the reward is maximised without bound. With few steps, or little noise, only what the noise of
    the trained steps adds to an image can be shifted.
    """

    name: ClassVar[str] = "grpo"
    version: ClassVar[str] = "1"
    Options: ClassVar[type[Frozen]] = GrpoOptions
    needs: ClassVar[Needs] = "trajectories"

    def __init__(self, options: GrpoOptions) -> None:
        """
        Raises:
            UnknownExtensionError: there is no such kind of step.
        """
        find_extension("sde step", options.step)
        self.options = options

    @property
    def roles(self) -> frozenset[Role]:
        """``reference`` only where the pull to it has a weight; the old policy is the current one as it was."""
        return frozenset({"reference"} if self.options.kl_weight > 0 else ())

    @property
    def times(self) -> TimeDensity:
        """Steps of the path itself."""
        return "grid_subset"

    def noise(self, steps: int, iteration: int) -> Stochastic:
        """How the paths of an iteration are to be sampled.

        Raises:
            ValueError: the window does not fit into so many steps.
        """
        window = self.options.window or Window(size=max(steps - 1, 1))
        return Stochastic(step=self.options.step, eta=self.options.eta, window=window.settle(steps, iteration))

    def loss(self, batch: Transitions, velocities: Velocities) -> LossTerms:
        """Per-row loss, ``[B]``, with metrics ``policy_loss``, ``ratio_gap``, ``clipped``, ``step_noise`` and ``kl``.

        Raises:
            ValueError: a velocity that is needed is missing.
        """
        options = self.options
        old = require(velocities.old, "old", self.name).detach()
        log_ratio = self._log_ratio(batch, velocities.current, old)
        advantage = precise(batch.advantage).clamp(-options.advantage_clip, options.advantage_clip)
        policy, clipped = clipped_policy_loss(log_ratio, advantage, options.clip)
        if options.guard == "full":
            policy = policy / precise(batch.length)
        metrics = {
            "policy_loss": policy,
            "ratio_gap": (log_ratio.exp() - 1).abs(),
            "clipped": clipped,
            "step_noise": row_mean(batch.noise(old).square()),
        }
        loss = policy
        if options.kl_weight > 0:
            reference = require(velocities.reference, "reference", self.name).detach()
            metrics["kl"] = squared_distance(velocities.current, reference)
            loss = policy + options.kl_weight * metrics["kl"]
        return LossTerms(loss, {name: value.detach() for name, value in metrics.items()})

    def _log_ratio(self, batch: Transitions, current: Tensor, old: Tensor) -> Tensor:
        if self.options.guard != "none":
            return batch.guarded_log_ratio(current, old)
        log_ratio = batch.log_ratio(current, old)
        if self.options.log_prob == "distance":
            return 2 * precise(batch.std).square() * log_ratio
        return log_ratio


OBJECTIVE = Grpo
