"""Times of full-size models, from reports of ``solrl bench``, beside the published ones."""

from collections.abc import Sequence

from solrl_tasks.bench.arms import FULL, PIPELINE, PRECISE, TWO_STAGE
from solrl_tasks.bench.reports.file import Report
from solrl_tasks.bench.reports.rollout import Arm, RolloutReport
from solrl_tasks.config.base import Frozen
from solrl_tasks.studies.results.published import TIMES

BASELINE = f"{PRECISE}{FULL}"
FAMILIES = {"flux": "FLUX.1", "sd3": "SD3.5-Large", "sana": "SANA"}
"""Under which name a family was published."""


class ArmTime(Frozen):
    """One way of making a prompt's training images.

    Attributes:
        seconds: of one prompt's rollout.
        over_precise: how many times faster than the precise rollout at full steps, compiled as it is; None where that
            was not measured. ``over_pipeline`` the same against the plain pipeline.
        kind: of the engine that explores; empty for the plain pipeline.
    """

    name: str
    kind: str
    seconds: float
    over_precise: float | None
    over_pipeline: float | None


class RolloutTimes(Frozen):
    """A report of ``solrl bench rollout``.

    Attributes:
        published: how many times faster the published rollout in two stages is; None for another model.
    """

    source: str
    family: str
    resolution: int
    hardware: str
    command: str
    candidates: int
    keep: int
    arms: tuple[ArmTime, ...]
    published: float | None
    published_iteration: float | None

    @property
    def best(self) -> ArmTime | None:
        """The fastest arm of two stages whose precision is real."""
        staged = [arm for arm in self.arms if arm.name.endswith(TWO_STAGE) and arm.kind == "real"]
        return min(staged, key=lambda arm: arm.seconds, default=None)


def find_times(reports: Sequence[Report]) -> tuple[RolloutTimes, ...]:
    """The rollouts among some reports; others tell nothing here."""
    return tuple(_times(report) for report in reports if isinstance(report, RolloutReport))


def _times(report: RolloutReport) -> RolloutTimes:
    known = TIMES.get(FAMILIES.get(report.model.family, ""))
    return RolloutTimes(
        source=report.model.source,
        family=report.model.family,
        resolution=report.model.resolution,
        hardware=report.environment.hardware,
        command=report.environment.command,
        candidates=report.candidates,
        keep=report.keep,
        arms=tuple(_arm(report, arm, arm.seconds) for arm in report.arms if arm.seconds),
        published=None if known is None else known.rollout_factor,
        published_iteration=None if known is None else known.iteration_factor,
    )


def _arm(report: RolloutReport, arm: Arm, seconds: float) -> ArmTime:
    sampling = report.samplings.get(arm.explored)
    return ArmTime(
        name=arm.name,
        kind="" if sampling is None or arm.name == PIPELINE else sampling.kind,
        seconds=seconds,
        over_precise=report.speedup(arm, BASELINE),
        over_pipeline=report.speedup(arm, PIPELINE),
    )
