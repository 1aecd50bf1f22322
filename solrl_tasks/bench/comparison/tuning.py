"""Learning rates of the arms, each chosen by short runs before the comparison."""

import math
from collections.abc import Sequence

from solrl_tasks.analysis.estimates import Figure
from solrl_tasks.bench.comparison.report import RunRecord
from solrl_tasks.config.base import Frozen

ENDS = 2
"""Evaluations whose mean is the end of a run: one alone has the noise of the last update in it."""


class ArmRates(Frozen):
    """What was tried for an arm.

    Attributes:
        tried: end of the run by learning rate, in ascending order of rates; NaN where none was measured.
        iterations: of each run.
        chosen: the rate whose end is highest, or None where nothing was measured.
    """

    arm: str
    tried: tuple[tuple[float, Figure], ...]
    iterations: int
    chosen: float | None

    @property
    def at_edge(self) -> bool:
        """Whether the best may lie beyond what was tried."""
        return self.chosen in (self.tried[0][0], self.tried[-1][0])


def choose_rates(records: Sequence[RunRecord], iterations: int) -> tuple[ArmRates, ...]:
    """The learning rate of each arm, from its tuning runs that have come to their end.

    The end of a run is the mean held-out reward of its last two evaluations. Runs that are not done count as not
    measured: a rate that was stopped early would be compared at another point.
    """
    chosen = []
    for arm in dict.fromkeys(record.run.arm for record in records):
        of_arm = [record for record in records if record.run.arm == arm and record.run.rate is not None]
        ends = sorted((record.run.rate or math.nan, _end(record, iterations)) for record in of_arm)
        known = [(end, rate) for rate, end in ends if math.isfinite(end)]
        best = max(known)[1] if known else None
        chosen.append(ArmRates(arm=arm, tried=tuple(ends), iterations=iterations, chosen=best))
    return tuple(chosen)


def _end(record: RunRecord, iterations: int) -> float:
    steps = sorted(record.measured)
    if not steps or record.summaries[-1].step < iterations:
        return math.nan
    values = record.curve(steps[-ENDS:])
    return sum(values) / len(values)
