"""How fast a two-stage rollout can be at all: arithmetic on operations and step times."""

from dataclasses import dataclass
from typing import Final

IDEAL_FACTORS: Final[dict[str, float]] = {"fp8": 2.0, "nvfp4": 4.0}
"""How much faster than BF16 the matrix units multiply, by the vendor's figures for dense operands."""


@dataclass(frozen=True)
class RolloutShape:
    """How many images of a prompt are sampled, and in how many steps.

    Attributes:
        candidates: explored seeds of a prompt.
        keep: seeds sampled again.
        explore_steps, full_steps: solver steps of the cheap and of the precise sampling.
    """

    candidates: int = 96
    keep: int = 24
    explore_steps: int = 6
    full_steps: int = 10

    @property
    def baseline_steps(self) -> int:
        """Image-steps where every candidate is sampled precisely."""
        return self.candidates * self.full_steps

    @property
    def explored_steps(self) -> int:
        """Image-steps of the exploration."""
        return self.candidates * self.explore_steps

    @property
    def regenerated_steps(self) -> int:
        """Image-steps of the regeneration."""
        return self.keep * self.full_steps


def rollout_speedup(shape: RolloutShape, base: float, cheap: float) -> float:
    """Every candidate precisely, over exploring cheaply and sampling the kept again.

    ``N F tb / (N E tq + K F tb)`` with N candidates, K kept, E and F steps; 96/24/6/10 makes it
    ``960 tb / (576 tq + 240 tb)``.

    Args:
        base: time of one image and step of the precise engine, in any unit.
        cheap: of the engine that explores, in the same unit; 0 gives the limit of a free exploration.
    """
    spent = shape.explored_steps * cheap + shape.regenerated_steps * base
    return shape.baseline_steps * base / spent


def step_speedup(total: float, quantisable: float, factor: float) -> float:
    """Amdahl's law for one step: only the quantisable operations are ``factor`` times faster.

    Args:
        total, quantisable: operations of one image and step.
    """
    return total / (quantisable / factor + total - quantisable)


def ideal_rollout_speedup(shape: RolloutShape, total: float, quantisable: float, factor: float) -> float:
    """``rollout_speedup`` where the quantisable operations of the exploration are ``factor`` times faster."""
    return rollout_speedup(shape, 1.0, 1.0 / step_speedup(total, quantisable, factor))


def floor_seconds(total: float, quantisable: float, base_rate: float, cheap_rate: float) -> float:
    """Seconds that one image and step take where every operation runs at the rate that its precision reaches.

    Args:
        base_rate: operations a second of what is not quantised; ``cheap_rate`` of what is.
    """
    return quantisable / cheap_rate + (total - quantisable) / base_rate
