"""Device-seconds of an arm that has the device for itself: a short run of its own."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from solrl_tasks.config.recipe import Recipe
from solrl_tasks.store.root import Store
from solrl_tasks.store.runs import RunView
from solrl_tasks.studies.arms import COSTED, Arm, ArmRun, plan_runs
from solrl_tasks.studies.execution import read_execution, stage_seconds
from solrl_tasks.tracking.summary import Summary

TIMING_SEED: Final = 900_001
"""Of all timing runs. No arm should have it: what a pool holds already would not be timed again."""
TIMED_ITERATIONS: Final = 3


def plan_timing(
    base: Recipe, arms: Sequence[Arm], iterations: int = TIMED_ITERATIONS, folder: Path = Path()
) -> list[ArmRun]:
    """A short run of every arm, without evaluations. They are to be executed one after the other, nothing beside them.

    Args:
        base: the recipe that the arms change.
        iterations: of each; the first is not timed where there are more, because it loads and compiles.
        folder: that relative prompt files are looked up in.
    """
    changes = {"evaluate.every": 0, "audit.every": 0, "iterations": iterations}
    quick = [Arm(arm.name, arm.title, {**arm.changes, **changes}, arm.counted, arm.note) for arm in arms]
    return plan_runs("timing", base, quick, [TIMING_SEED], folder)


def read_timing(store: Store, run: ArmRun) -> dict[str, float] | None:
    """Mean device-seconds of one iteration by stage; None where the run is not complete or was not alone.

    A stage that found its work done counts with what that had cost: nobody but timing runs has their seed, and they are
    all alone on the device.
    """
    view = RunView(store, run.run_id)
    summaries = {step: Summary.model_validate(one) for step, one in view.summaries().items() if step > 0}
    if len(summaries) < run.recipe.iterations or read_execution(view).processes != 1:
        return None
    timed = [one for step, one in summaries.items() if step > 1] or list(summaries.values())
    found: dict[str, float] = {}
    for stage in COSTED:
        spent = [stage_seconds(stage, one.stages[stage]) for one in timed if stage in one.stages]
        if spent:
            found[stage] = float(np.mean(spent))
    return found
