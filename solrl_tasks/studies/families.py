"""Families of arms: what a study compares, on one recipe and one device."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from solrl_tasks.config.recipe import Recipe
from solrl_tasks.engines.base import Availability, report_engines
from solrl_tasks.stages.chunks import samplings
from solrl_tasks.studies.arms import Arm, ArmError, arm_recipe, choose_arms
from solrl_tasks.workers.site import work_elsewhere

Available = Callable[[str], Availability]
"""Whether an engine runs here, by name."""
REAL_NVFP4, EMULATED_NVFP4 = "nvfp4", "nvfp4-emulated"


@dataclass(frozen=True)
class Family:
    """Arms that belong together.

    Attributes:
        name: of the study; run ids begin with it.
        base: the recipe that the arms change.
        baseline: the arm that others are compared with.
        absent: arms that cannot run here, and why.
        doubtful: those of them that a cluster elsewhere may run, which does the work: they do where they are named.
    """

    name: str
    base: Recipe
    arms: tuple[Arm, ...]
    baseline: str
    absent: Mapping[str, str] = field(default_factory=dict)
    doubtful: tuple[Arm, ...] = ()

    def choose(self, names: Sequence[str] | None) -> "Family":
        """Some of the arms, in the order of their names; all of them for None. The baseline is always one.

        Raises:
            ArmError: there is no such arm, or it cannot run here.
        """
        if names is None:
            return self
        perhaps = {arm.name for arm in self.doubtful}
        lost = [f"{name}: {self.absent[name]}" for name in names if name in self.absent and name not in perhaps]
        if lost:
            raise ArmError(f"arms that cannot run here were asked for: {'; '.join(lost)}")
        chosen = choose_arms((*self.arms, *self.doubtful), names)
        if self.baseline not in names:
            chosen = [*choose_arms(self.arms, [self.baseline]), *chosen]
        return replace(self, arms=tuple(chosen), absent={}, doubtful=())

    def left_out(self) -> list[str]:
        """A sentence for each arm that cannot run here."""
        return [f"{name} cannot run here: {why}." for name, why in self.absent.items()]


def make_family(
    name: str, base: Recipe, arms: Sequence[Arm], baseline: str, available: Available, named: Iterable[str] = ()
) -> Family:
    """A family of the arms that can run.

    Where a cluster elsewhere does the work, only its actors know what it can: an engine that the recipe or ``named``
    has is then taken at its word, and an arm with another one that this device lacks is left out until it is named.
    """
    address = work_elsewhere(base.workers)
    if address is None:
        runnable, absent = split_runnable(base, arms, available)
        return Family(name, base, runnable, baseline, absent)
    trusted = {*named, *(sampling.engine.name for sampling in samplings(base))}

    def perhaps(engine: str) -> Availability:
        return Availability(True, "as named") if engine in trusted else available(engine)

    runnable, absent = split_runnable(base, arms, perhaps)
    doubtful = tuple(arm for arm in arms if arm.name in absent)
    unsure = f"on this machine; the cluster at {address} may have it, and runs the arm where it is asked for by name"
    return Family(name, base, runnable, baseline, {arm: f"{why} ({unsure})" for arm, why in absent.items()}, doubtful)


def availability_on(device: torch.device) -> Available:
    """What runs on a device, each engine asked once."""
    known = report_engines(device)
    return lambda name: known.get(name, Availability(True, ""))


def nvfp4_engine(available: Available) -> tuple[str, str]:
    """The NVFP4 engine of this hardware, and what has to be said about it."""
    found = available(REAL_NVFP4)
    if found.ok:
        return REAL_NVFP4, f"NVFP4 in hardware: {found.reason}"
    return EMULATED_NVFP4, f"NVFP4 emulated: its numbers are NVFP4's, its seconds are not ({found.reason})"


def split_runnable(base: Recipe, arms: Sequence[Arm], available: Available) -> tuple[tuple[Arm, ...], dict[str, str]]:
    """The arms that every engine of theirs lets run here, and why the others cannot."""
    runnable, absent = [], {}
    for arm in arms:
        engines = {sampling.engine.name for sampling in samplings(arm_recipe(base, arm.changes, arm.name))}
        reasons = [f"{name}: {available(name).reason}" for name in sorted(engines) if not available(name).ok]
        if reasons:
            absent[arm.name] = "; ".join(reasons)
        else:
            runnable.append(arm)
    return tuple(runnable), absent
