"""What the runs of an arm came to: held-out trained reward at the end, from the start, and against other arms."""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from solrl_tasks.analysis.estimates import Estimate, paired_difference
from solrl_tasks.analysis.progress import mean_curve
from solrl_tasks.studies.results.comparison import evaluations
from solrl_tasks.studies.results.findings import TAIL
from solrl_tasks.studies.runs import ArmRecord

END: Final = f"mean of the last {TAIL} evaluations of a run, that of the untrained model aside"
"""What an end is, in words."""


def curve(records: Sequence[ArmRecord], iterations: int) -> tuple[list[int], list[Estimate]]:
    """Iterations that all runs were evaluated after, and means over runs there."""
    steps = evaluations(records, iterations)
    name = f"eval/{records[0].reward}"
    return steps, mean_curve([[record.evaluated[step].metrics[name] for step in steps] for record in records])


def end(record: ArmRecord, iterations: int) -> float:
    """Of one run: see ``END``."""
    steps = [step for step in evaluations([record], iterations) if step > 0]
    name = f"eval/{record.reward}"
    return float(np.mean([record.evaluated[step].metrics[name] for step in steps[-TAIL:]]))


def ends(records: Sequence[ArmRecord], iterations: int) -> NDArray[np.float64]:
    """Of each run, ``[R]``."""
    return np.array([end(record, iterations) for record in records])


def start(records: Sequence[ArmRecord]) -> float:
    """Of the untrained model, a mean over runs."""
    return float(np.mean([record.evaluated[0].metrics[f"eval/{record.reward}"] for record in records]))


def gain(records: Sequence[ArmRecord], iterations: int) -> Estimate:
    """Ends over starts, run by run."""
    starts = [record.evaluated[0].metrics[f"eval/{record.reward}"] for record in records]
    return paired_difference(ends(records, iterations), np.array(starts))


def difference(after: Sequence[ArmRecord], before: Sequence[ArmRecord], iterations: int) -> Estimate:
    """Of the ends, over seeds that both have."""
    mine, theirs = ({record.seed: end(record, iterations) for record in group} for group in (after, before))
    common = sorted(mine.keys() & theirs.keys())
    return paired_difference(np.array([mine[seed] for seed in common]), np.array([theirs[seed] for seed in common]))
