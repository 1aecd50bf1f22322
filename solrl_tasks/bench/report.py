"""What a measurement leaves behind: plain records, as JSON and as metrics."""

import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from solrl_tasks.bench.arms import FULL, PIPELINE, PRECISE, TWO_STAGE
from solrl_tasks.bench.flops import ModelFlops
from solrl_tasks.bench.profile import Profile
from solrl_tasks.config.base import Frozen

Kind = Literal["real", "emulated"]


class ReportError(ValueError):
    """A file that is no report of a measurement; the message names it."""


class Environment(Frozen):
    """Where and how a measurement was made.

    Attributes:
        hardware: in the words of the driver.
        device_class: ``cpu``, or ``sm_90`` and the like.
        driver: its version; empty on a CPU.
        libraries: versions by name, the interpreter's among them.
        command: as it was typed.
        started: UTC, ISO 8601.
    """

    hardware: str
    device_class: str
    driver: str
    threads: int
    libraries: dict[str, str]
    command: str
    started: str


class ModelFacts(Frozen):
    """Which network was measured, and at what size. ``flops`` are of one image and step."""

    family: str
    source: str
    resolution: int
    dtypes: dict[str, str]
    flops: ModelFlops


class Memory(Frozen):
    """Bytes on the device while chunks were sampled.

    Attributes:
        peak: the most that was allocated.
        engines: what the twin of each engine held beyond the base, those of other arms included.
    """

    peak: int
    engines: dict[str, int]

    @property
    def without_engines(self) -> int:
        """The peak less what all twins held."""
        return self.peak - sum(self.engines.values())


class Sampling(Frozen):
    """Chunks sampled, decoded and scored by one engine at one number of steps.

    Attributes:
        chunk: images computed together.
        first_seconds: the first call, compilation included.
        one_seconds: one chunk from noise to scores, warm; ``chunks_seconds`` the same of ``chunks`` chunks, whose
            decoding and scoring may overlap with the denoising of the next.
        denoise_seconds: one chunk's denoising alone, by each repeat, on the device's own clock.
        memory: None on a CPU.
        profile: of the network for two steps, where it was asked for.
    """

    engine: str
    kind: Kind
    compute: str
    execution: str
    steps: int
    chunk: int
    first_seconds: float
    one_seconds: float
    chunks: int
    chunks_seconds: float
    denoise_seconds: tuple[float, ...]
    memory: Memory | None
    profile: Profile | None = None

    @property
    def steady_seconds(self) -> float:
        """What one more chunk costs."""
        steady = (self.chunks_seconds - self.one_seconds) / (self.chunks - 1)
        # On a noisy machine one chunk can take longer than its share of many.
        return max(steady, 0.0)

    @property
    def denoise(self) -> float:
        """Median seconds of a chunk's denoising alone."""
        return statistics.median(self.denoise_seconds)

    @property
    def image_step_seconds(self) -> float:
        """Seconds of the network for one image and step."""
        return self.denoise / (self.chunk * self.steps)

    def seconds_of(self, chunks: int) -> float:
        """A rollout of so many chunks: the first with its tail, each other at the steady rate."""
        return self.one_seconds + (chunks - 1) * self.steady_seconds if chunks else 0.0


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


class UpdateReport(Frozen):
    """``solrl bench update``.

    Attributes:
        rows: samples times noise levels of one optimizer step.
        first_seconds: the first update, everything cold; ``seconds`` the warm ones.
        peak_bytes: the most that was allocated; None on a CPU.
    """

    bench: Literal["update"] = "update"
    environment: Environment
    model: ModelFacts
    samples: int
    rows: int
    micro_batch: int
    gradient_checkpointing: bool
    lora: str
    first_seconds: float
    seconds: tuple[float, ...]
    peak_bytes: int | None
    memory: dict[str, int] = Field(default_factory=dict)

    @property
    def row_seconds(self) -> float:
        """Median seconds of one sample at one noise level."""
        return statistics.median(self.seconds) / self.rows


class EngineSync(Frozen):
    """What one engine does to take new weights.

    Attributes:
        first_seconds: the first sync, which fills every layer; ``seconds`` those that follow, each for another LoRA.
        hash_seconds: of it, finding out which policy the LoRA is, by hashing its weights on the host.
        tensors: layers that a later sync writes; ``replaced`` those that compute at the engine's precision.
        new_graphs: graphs compiled by forwards after the swaps; 0 is right.
        bytes: what the twin owns beyond the base.
    """

    engine: str
    kind: Kind
    execution: str
    first_seconds: float
    first_tensors: int
    seconds: tuple[float, ...]
    hash_seconds: float
    tensors: int
    replaced: int
    graphs: int
    new_graphs: int
    bytes: int
    error: str | None = None

    @property
    def later(self) -> float:
        """Median of the later syncs."""
        return statistics.median(self.seconds)


class SyncBenchReport(Frozen):
    """``solrl bench sync``; ``failed`` has the reason of every engine that could not be measured."""

    bench: Literal["sync"] = "sync"
    environment: Environment
    model: ModelFacts
    lora: str
    engines: tuple[EngineSync, ...]
    failed: dict[str, str] = Field(default_factory=dict)


class StageShare(Frozen):
    """Seconds of one stage: on the wall, and on the device."""

    seconds: float
    device_seconds: float


class IterationCost(Frozen):
    """One iteration, from the commit of the one before to its own.

    Attributes:
        seconds: wall time, publishing of the one before included.
    """

    step: int
    seconds: float
    stages: dict[str, StageShare]

    @property
    def device_seconds(self) -> float:
        """All stages' work on the device."""
        return sum(stage.device_seconds for stage in self.stages.values())

    @property
    def orchestration_seconds(self) -> float:
        """Everything else: store, Prefect, MLflow, selection, pictures, checks."""
        return self.seconds - self.device_seconds

    @property
    def orchestration_share(self) -> float:
        """Of the iteration's wall time."""
        return self.orchestration_seconds / self.seconds


class IterationReport(Frozen):
    """``solrl bench iteration``.

    Attributes:
        warm_up: iterations at the beginning that load and compile; they are not in the averages.
        servers: what the run spoke to.
    """

    bench: Literal["iteration"] = "iteration"
    environment: Environment
    recipe: dict[str, Any]
    servers: dict[str, str]
    warm_up: int
    iterations: tuple[IterationCost, ...]
    peak_bytes: int | None

    @property
    def warm(self) -> tuple[IterationCost, ...]:
        """The iterations that count."""
        return self.iterations[self.warm_up :]

    @property
    def fixed_seconds(self) -> float:
        """Mean seconds of a warm iteration that are no stage's device work."""
        return sum(cost.orchestration_seconds for cost in self.warm) / len(self.warm)

    @property
    def share(self) -> float:
        """Of the warm iterations' wall time."""
        return sum(c.orchestration_seconds for c in self.warm) / sum(c.seconds for c in self.warm)


class CeilingReport(Frozen):
    """``solrl bench ceiling``: arithmetic, no measurement."""

    bench: Literal["ceiling"] = "ceiling"
    environment: Environment
    models: tuple[ModelFacts, ...]
    candidates: int
    keep: int
    explore_steps: int
    full_steps: int


Report = Annotated[
    RolloutReport | UpdateReport | SyncBenchReport | IterationReport | CeilingReport, Field(discriminator="bench")
]
_ADAPTER: TypeAdapter[Report] = TypeAdapter(Report)


def write_report(report: Report, path: Path) -> None:
    """Write a report as JSON; the folder is made if absent."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(report.model_dump_json(indent=2) + "\n", encoding="utf-8")


def read_report(path: Path) -> Report:
    """Read a report.

    Raises:
        ReportError: the file is absent, or holds something else.
    """
    try:
        return _ADAPTER.validate_json(path.read_bytes())
    except OSError as error:
        raise ReportError(f"{path} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        fault = error.errors()[0]
        where = ".".join(str(part) for part in fault["loc"]) or "file"
        raise ReportError(
            f"{path} is no report of this version of `solrl bench`: {where}: {fault['msg']}; measure again"
        ) from error


def metrics_of(report: Report) -> dict[str, float]:
    """Every figure of a report as flat metrics, ``a/b/c``, for a tracker; what is absent is left out."""
    tree = json.loads(report.model_dump_json(exclude={"environment", "recipe"}))
    figures = dict(_figures("", tree))
    if isinstance(report, IterationReport):
        figures |= {"fixed_seconds": report.fixed_seconds, "orchestration_share": report.share}
    if isinstance(report, RolloutReport):
        for arm in report.arms:
            for over in (f"{PRECISE}{FULL}", PIPELINE):
                value = report.speedup(arm, over)
                figures |= {} if value is None else {f"arms/{arm.name}/speedup_over_{over}": value}
    return figures


def _figures(prefix: str, value: Any) -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _figures(f"{prefix}/{name}" if prefix else name, item)
    elif isinstance(value, list):
        for position, item in enumerate(value):
            own = item.get("name", item.get("engine", item.get("step"))) if isinstance(item, dict) else None
            yield from _figures(f"{prefix}/{position if own is None else own}", item)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield prefix, float(value)
