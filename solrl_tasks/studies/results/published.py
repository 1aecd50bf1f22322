"""What was published on the method: figures that ours stand beside.

All of arXiv 2604.06916, of models that are hundreds to thousands of times larger than the embedded one, and without
error bars. We did not have its full text: the tables were read from its project page and from notes of readers.
What the authors said to reviewers alone is marked so.
"""

from dataclasses import dataclass
from typing import Final

PAPER: Final = "arXiv 2604.06916"


@dataclass(frozen=True)
class Times:
    """Seconds of an iteration on eight B200, 96 candidates a prompt: sampling all precisely, and in two stages."""

    rollout: float
    two_stage: float
    training: float

    @property
    def rollout_factor(self) -> float:
        """How many times faster the rollout is."""
        return self.rollout / self.two_stage

    @property
    def iteration_factor(self) -> float:
        """How many times faster the iteration is."""
        return (self.rollout + self.training) / (self.two_stage + self.training)


@dataclass(frozen=True)
class Ends:
    """Held-out HPSv2 of training on rollouts in BF16 and in NVFP4, at the end; of the latter the highest too."""

    precise: float
    direct: float
    direct_peak: float


@dataclass(frozen=True)
class Ranks:
    """NVFP4 against BF16 over the seeds of a prompt, all rewards and models together.

    Attributes:
        best: share of matches at the top by k; what counts as a match is not stated in what we have read.
    """

    spearman: float
    kendall: float
    best: dict[int, float]


STEPS: Final[dict[int, float]] = {2: 0.3587, 4: 0.3650, 6: 0.3686, 8: 0.3659}
"""Table 2: HPSv2 at the end by explore steps."""
CANDIDATES: Final[dict[int, float]] = {24: 0.3569, 48: 0.3622, 72: 0.3663, 96: 0.3686}
"""Table 3: HPSv2 at the end by candidates a prompt, of which 24 are kept."""
PARITY: Final[dict[str, tuple[float, float]]] = {
    "FLUX.1": (0.3699, 0.3688),
    "SD3.5-Large": (0.3803, 0.3762),
    "SANA": (0.3682, 0.3686),
}
"""Table 6: HPSv2 after equal iterations, of sampling all candidates in BF16 at full steps, and of Sol-RL."""
DIRECT: Final = Ends(precise=0.3705, direct=0.357, direct_peak=0.3595)
"""Figure 3b, read off the picture."""
SPEEDUPS: Final[dict[str, dict[float, float]]] = {
    "SANA": {0.25: 1.6, 0.5: 1.9, 0.75: 2.2, 1.0: 2.42},
    "FLUX.1": {0.25: 1.6, 0.5: 1.9, 0.75: 2.3, 1.0: 3.00},
    "SD3.5-Large": {0.25: 2.1, 0.5: 2.8, 0.75: 3.7, 1.0: 4.64},
}
"""GPU-hours of DiffusionNFT over those of Sol-RL to shares of the former's final ImageReward. At 100 % they are in the
paper; the others the authors gave to reviewers."""
TIMES: Final[dict[str, Times]] = {
    "FLUX.1": Times(rollout=184, two_stage=79, training=90),
    "SD3.5-Large": Times(rollout=451, two_stage=187, training=240),
    "SANA": Times(rollout=65, two_stage=46, training=30),
}
"""Table 5."""
RANKS: Final = Ranks(spearman=0.927, kendall=0.798, best={4: 0.969, 8: 0.950, 12: 0.933})
"""Table 8, overall."""
