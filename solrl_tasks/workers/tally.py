"""What the micro-batches of an update came to."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from torch import Tensor

Place = tuple[int, int]
"""Optimizer step of the update and number of the micro-batch in it, both from 0."""


@dataclass
class Tally:
    """Sums by micro-batch, so that those of several devices can be put together in the order of one.

    Attributes:
        rows: by place; 0 where the loss was not finite.
        sums: by place, of each metric over its rows, float64.
        gradient_norms: of each optimizer step, before clipping.
        decay: of the old policy, at the end.
        step: optimizer steps of the policy so far.
    """

    rows: dict[Place, int] = field(default_factory=dict)
    sums: dict[Place, dict[str, float]] = field(default_factory=dict)
    gradient_norms: list[float] = field(default_factory=list)
    decay: float = 0.0
    step: int = 0

    def add(self, place: Place, rows: int, values: Mapping[str, Tensor]) -> None:
        """A micro-batch; ``values`` are [rows] each."""
        self.rows[place] = rows
        self.sums[place] = {name: float(value.detach().double().sum()) for name, value in values.items()}

    def skip(self, place: Place) -> None:
        """A micro-batch that taught nothing."""
        self.rows[place] = 0

    @classmethod
    def merged(cls, tallies: Sequence["Tally"]) -> Self:
        """Of all devices of an update; what they have in common is the first's."""
        first = tallies[0]
        whole = cls(gradient_norms=first.gradient_norms, decay=first.decay, step=first.step)
        for tally in tallies:
            whole.rows |= tally.rows
            whole.sums |= tally.sums
        return whole

    def metrics(self) -> dict[str, float]:
        """Metrics of the whole update, by name."""
        totals: dict[str, float] = {}
        for place in sorted(self.sums):
            for name, value in self.sums[place].items():
                totals[name] = totals.get(name, 0.0) + value
        rows = max(sum(self.rows.values()), 1)
        means = {f"train/{name}": total / rows for name, total in totals.items()}
        return {
            **means,
            "train/grad_norm": sum(self.gradient_norms) / len(self.gradient_norms),
            "train/skipped_micro_batches": float(sum(rows == 0 for rows in self.rows.values())),
            "train/old_decay": self.decay,
            "train/optimizer_steps": float(self.step),
        }
