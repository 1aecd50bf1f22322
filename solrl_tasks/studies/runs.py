"""What the runs of arms came to, from what they committed."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from solrl_tasks.config.recipe import Recipe
from solrl_tasks.store.root import Store
from solrl_tasks.store.runs import RunView
from solrl_tasks.studies.arms import Arm, ArmRun
from solrl_tasks.studies.execution import read_execution, stage_seconds
from solrl_tasks.studies.modelled import DEFAULT_HARDWARE, Modelled, model_flops, model_iteration
from solrl_tasks.studies.timing import read_timing
from solrl_tasks.tracking.summary import Summary


@dataclass(frozen=True)
class ArmRecord:
    """A run of an arm as it was committed.

    Attributes:
        recipe: as recorded, its chunks settled.
        summaries: of all committed steps, in order; step 0 is the untrained model.
        modelled: seconds of one iteration on stated hardware.
        processes: the most that shared the device while a step was computed; measured seconds of more than one are
            inflated. None where nobody noted it.
        timing: device-seconds of one iteration by stage, measured while nothing else ran; None where that was not done.
        hardware: that computed the run; empty where it is not known.
    """

    arm: Arm
    seed: int
    run_id: str
    recipe: Recipe
    summaries: tuple[Summary, ...]
    modelled: Modelled
    processes: int | None
    timing: Mapping[str, float] | None
    hardware: str

    @property
    def reward(self) -> str:
        """Name of the first trained reward."""
        return self.recipe.rewards[0].name

    @property
    def shared(self) -> bool:
        """Whether its measured seconds were taken, or may have been, while other processes used the device."""
        return self.processes != 1

    @property
    def last_step(self) -> int:
        """The last committed iteration; -1 before the first summary."""
        return max((one.step for one in self.summaries), default=-1)

    @cached_property
    def evaluated(self) -> dict[int, Summary]:
        """Steps with a held-out evaluation of the trained reward, in order."""
        return {one.step: one for one in self.summaries if f"eval/{self.reward}" in one.metrics}

    def curve(self, name: str = "") -> tuple[list[int], list[float]]:
        """Evaluated steps and a metric at each, NaN where it is absent; the trained reward by default."""
        name = name or f"eval/{self.reward}"
        return list(self.evaluated), [one.metrics.get(name, float("nan")) for one in self.evaluated.values()]

    def device_seconds(self, step: int) -> dict[str, float]:
        """Device-seconds of an iteration by stage, whoever paid for them; empty for a step that is not committed."""
        found = next((one for one in self.summaries if one.step == step), None)
        return {} if found is None else {name: stage_seconds(name, cost) for name, cost in found.stages.items()}

    def measured_seconds(self, step: int) -> float:
        """Device-seconds of the arm's counted stages in an iteration."""
        return sum(seconds for name, seconds in self.device_seconds(step).items() if name in self.arm.counted)

    def timed_seconds(self) -> float | None:
        """Device-seconds of the counted stages of one iteration that had the device for itself; None if not timed."""
        if self.timing is None:
            return None
        return sum(seconds for name, seconds in self.timing.items() if name in self.arm.counted)

    def modelled_seconds(self) -> float | None:
        """Modelled seconds of the counted stages of one iteration; None where hardware lacks a precision."""
        return self.modelled.seconds(self.arm.counted)


def read_runs(
    store: Store, runs: Sequence[ArmRun], hardware: str = DEFAULT_HARDWARE, timings: Iterable[ArmRun] = ()
) -> list[ArmRecord]:
    """What runs have committed; those that were not begun are left out.

    Args:
        hardware: whose rates modelled seconds stand for.
        timings: runs that had the device for themselves, as ``timing.plan_timing`` makes them.

    Raises:
        ValueError: nothing is known of the hardware.
    """
    timed = {run.arm.name: read_timing(store, run) for run in timings}
    records = []
    for run in runs:
        view = RunView(store, run.run_id)
        config = view.recorded()
        if config is None:
            continue
        recipe = Recipe.model_validate(config)
        execution = read_execution(view)
        records.append(
            ArmRecord(
                arm=run.arm,
                seed=run.seed,
                run_id=run.run_id,
                recipe=recipe,
                summaries=tuple(Summary.model_validate(one) for one in view.summaries().values()),
                modelled=model_iteration(recipe, model_flops(store, recipe), hardware),
                processes=execution.processes,
                timing=timed.get(run.arm.name),
                hardware=execution.hardware,
            )
        )
    return records


def missing_runs(records: Sequence[ArmRecord], runs: Sequence[ArmRun]) -> list[str]:
    """Ids of the runs that are not complete."""
    done = {record.run_id for record in records if record.last_step >= record.recipe.iterations}
    return [run.run_id for run in runs if run.run_id not in done]
