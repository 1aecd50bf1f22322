"""What was measured of whole rollouts, arm by arm."""

from typing import Literal

from pydantic import Field

from solrl_tasks.bench.arms import FULL, TWO_STAGE
from solrl_tasks.bench.reports.facts import Environment, ModelFacts
from solrl_tasks.bench.reports.sampling import Sampling
from solrl_tasks.config.base import Frozen


class Split(Frozen):
    """Seconds of a rollout's parts, each as it takes by itself.

    ``overlap`` is what runs beside something else: the parts add up to the rollout's seconds and the overlap. It is
    below 0 where the parts together take longer than each alone.
    """

    text: float
    sync: float
    denoise_explore: float
    denoise_regenerate: float
    decode: float
    score: float
    overlap: float


class Complete(Frozen):
    """One whole rollout of the first prompt, against what the scaling says of it. Text encoding is in neither."""

    seconds: float
    scaled_seconds: float

    @property
    def ratio(self) -> float:
        """Measured over scaled."""
        return self.seconds / self.scaled_seconds


class Arm(Frozen):
    """One way of making a prompt's training images, from text to scores.

    Attributes:
        explored, regenerated: the engine and steps of each stage (keys of ``RolloutReport.samplings``); an arm that
            samples everything precisely regenerates nothing.
        images: sampled in all; ``kept`` are those that training would see.
        seconds: of the whole rollout of one prompt, ``scaled`` from the chunks that were timed.
        error: why it could not be measured; its figures are then absent.
    """

    name: str
    explored: str = ""
    regenerated: str = ""
    images: int = 0
    kept: int = 0
    seconds: float | None = None
    scaled: bool = True
    split: Split | None = None
    complete: Complete | None = None
    error: str | None = None

    @property
    def images_per_second(self) -> float | None:
        """Images sampled a second."""
        return self.images / self.seconds if self.seconds else None


class RolloutReport(Frozen):
    """``solrl bench rollout``.

    Attributes:
        text_seconds: one prompt's encoding, encoders in place.
        decode_seconds, score_seconds: one chunk's, alone.
        sync_seconds: of each engine, one that follows a first.
    """

    bench: Literal["rollout"] = "rollout"
    environment: Environment
    model: ModelFacts
    candidates: int
    keep: int
    explore_steps: int
    full_steps: int
    chunk: int
    sampler: str
    reward: str
    lora: str
    text_seconds: float
    decode_seconds: float
    score_seconds: float
    sync_seconds: dict[str, float] = Field(default_factory=dict)
    samplings: dict[str, Sampling] = Field(default_factory=dict)
    arms: tuple[Arm, ...]

    def arm(self, name: str) -> Arm | None:
        """The arm of that name, if it was measured."""
        return next((arm for arm in self.arms if arm.name == name and arm.seconds), None)

    def speedup(self, arm: Arm, over: str) -> float | None:
        """How many times faster than another arm."""
        other = self.arm(over)
        return other.seconds / arm.seconds if other and other.seconds and arm.seconds else None

    def needed_bytes(self, arm: Arm) -> int | None:
        """The most that the arm allocates with no other engine beside it; None where that is not known."""
        own = [self.samplings[key] for key in (arm.explored, arm.regenerated) if key in self.samplings]
        engines = {name: held for s in own if s.memory for name, held in s.memory.engines.items()}
        peaks = [s.memory.without_engines for s in own if s.memory]
        return max(peaks) + sum(engines.get(name, 0) for name in {s.engine for s in own}) if peaks else None

    def overhead(self, engine: str) -> float | None:
        """Seconds of the two-stage rollout over those of one at ``engine`` alone, full steps, less 1."""
        both, alone = self.arm(f"{engine}{TWO_STAGE}"), self.arm(f"{engine}{FULL}")
        return both.seconds / alone.seconds - 1 if both and alone and both.seconds and alone.seconds else None
