"""The runs of the comparison: every objective with and without two-stage selection, every seed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from solrl_tasks.config.load import load_recipe
from solrl_tasks.config.recipe import Recipe

Selection = Literal["two-stage", "plain"]
SELECTIONS: Final[tuple[Selection, ...]] = ("two-stage", "plain")
"""Kept from many that were explored cheaply; all of as many as are trained on."""


@dataclass(frozen=True)
class Arm:
    """An objective with its recipe.

    Attributes:
        config: file name of the recipe it comes from.
        changes: dotted fields that are its own.
        rates: learning rates that are tried before the comparison, from small to large; none is that of the recipe.
    """

    config: str
    changes: Mapping[str, Any] = field(default_factory=dict)
    rates: tuple[float, ...] = ()


FREE_RATES: Final = (5e-6, 1.5e-5, 5e-5)
"""Where nothing holds the policy to the one that sampled, as in NFT's loss: at 5e-4 it is lost within 6 iterations."""
CLIPPED_RATES: Final = (5e-5, 1.5e-4, 5e-4)
HELD_RATES: Final = (1.5e-4, 5e-4, 1.5e-3)
"""Around the rate of the recipe, which was found by hand: no arm is tried at fewer rates than another."""


ARMS: Final[dict[str, Arm]] = {
    "nft": Arm("embedded.yaml", rates=HELD_RATES),
    "ram": Arm("embedded-ram.yaml", rates=FREE_RATES),
    "flow-grpo": Arm("embedded-flow-grpo.yaml", rates=CLIPPED_RATES),
    "flow-grpo-fast": Arm("embedded-flow-grpo-fast.yaml", rates=CLIPPED_RATES),
    "dancegrpo": Arm("embedded-dancegrpo.yaml", rates=CLIPPED_RATES),
    "grpo-late": Arm("embedded-grpo-late.yaml", rates=CLIPPED_RATES),
    "awm": Arm("embedded-awm.yaml", rates=FREE_RATES),
    "awm-free": Arm("embedded-awm.yaml", {"update.objective.options.kl_weight": 0.0}, FREE_RATES),
}
"""``grpo-late`` is GRPO with a window that keeps the ranks of exploration; ``awm-free`` is AWM without its anchor."""

TUNING_SEED: Final = 0
UNTRAINED: Final = ("scene-strict", "colourfulness")
"""Rewards that are measured on held-out prompts and trained on by nobody."""


@dataclass(frozen=True)
class Settings:
    """What all arms share.

    Attributes:
        optimizer_steps: of an iteration, the same for all: the recipes of the GRPO family have 2 and others 8.
        every: iterations from one held-out evaluation to the next.
        micro_batch: rows of one forward and backward pass; None leaves that of the recipes.
        execution: of engines on an accelerator; runs as short as these end before compiling would have paid.
        changes: dotted fields of all recipes, below what the arms set.
    """

    iterations: int = 30
    candidates: int = 96
    keep: int = 24
    optimizer_steps: int = 8
    every: int = 3
    micro_batch: int | None = None
    execution: str = "eager"
    changes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class PlannedRun:
    """One run: an arm, how its samples are selected, a seed, and the learning rate if not that of the recipe."""

    arm: str
    selection: Selection
    seed: int
    rate: float | None = None

    @property
    def run_id(self) -> str:
        """Its name in the store."""
        rate = "" if self.rate is None else f"-lr{self.rate:g}"
        return f"objectives-{self.arm}-{self.selection}{rate}-seed{self.seed}"


def plan_runs(arms: Sequence[str], seeds: int, rates: Mapping[str, float] | None = None) -> list[PlannedRun]:
    """All runs, seed by seed: wherever time runs out, what is done compares all arms.

    Args:
        rates: learning rates by arm; arms that are left out have that of their recipe.

    Raises:
        ValueError: there is no such arm.
    """
    known = _known(arms)
    given = rates or {}
    seeded = [(seed, arm) for seed in range(1, seeds + 1) for arm in known]
    return [PlannedRun(arm, how, seed, given.get(arm)) for seed, arm in seeded for how in SELECTIONS]


def plan_tuning(arms: Sequence[str]) -> list[PlannedRun]:
    """A run of every learning rate of every arm that has some, plain, with a seed that the comparison has not.

    Raises:
        ValueError: there is no such arm.
    """
    return [PlannedRun(arm, "plain", TUNING_SEED, rate) for arm in _known(arms) for rate in ARMS[arm].rates]


def _known(arms: Sequence[str]) -> Sequence[str]:
    unknown = [name for name in arms if name not in ARMS]
    if unknown:
        raise ValueError(f"unknown arms {', '.join(unknown)}: there is {', '.join(ARMS)}")
    return arms


def arm_recipe(run: PlannedRun, settings: Settings, configs: Path) -> Recipe:
    """The recipe of a run.

    Two-stage selection explores ``candidates`` in the recipe's precision and keeps ``keep``. Without it as many as are
    trained on are explored by the precise engine, and all of them are kept: the exploration chooses nothing there.

    Raises:
        RecipeError: the settings do not fit the recipe.
    """
    arm, two_stage = ARMS[run.arm], run.selection == "two-stage"
    quiet = {"audit.every": 0, "tracking.grid_prompts": 0, "explore.store_images": "none"}
    given = {**quiet, "evaluate.store_images": "none", **arm.changes, **settings.changes}
    base = load_recipe(configs / arm.config, given)
    explored = settings.candidates if two_stage else settings.keep
    engine = base.explore.engine.name if two_stage else base.regenerate.engine.name
    own: dict[str, Any] = {
        "name": f"objectives-{run.arm}-{run.selection}",
        "seed": run.seed,
        "iterations": settings.iterations,
        "explore.engine": _engine(engine, settings),
        "explore.candidates": explored,
        "explore.chunk": explored,
        "select.keep": settings.keep,
        "regenerate.engine": _engine(base.regenerate.engine.name, settings),
        "regenerate.chunk": settings.keep,
        "update.optimizer_steps": settings.optimizer_steps,
        "update.micro_batch": settings.micro_batch,
        "evaluate.every": settings.every,
        "evaluate.sampling.engine": _engine(base.evaluate.sampling.engine.name, settings),
        "evaluate.rewards": [{"name": name} for name in UNTRAINED if name not in {r.name for r in base.rewards}],
    }
    if run.rate is not None:
        own["update.optimizer.lr"] = run.rate
    return load_recipe(configs / arm.config, {**given, **own})


def _engine(name: str, settings: Settings) -> dict[str, Any]:
    return {"name": name, "options": {"execution": settings.execution}}
