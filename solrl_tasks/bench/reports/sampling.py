"""What sampling with one engine takes, in time and in memory."""

import statistics
from typing import Literal

from solrl_tasks.bench.profile import Profile
from solrl_tasks.config.base import Frozen

Kind = Literal["real", "emulated"]


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
