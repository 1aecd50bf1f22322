"""What an objective asks of the rest of a recipe."""

from typing import Any

from solrl_tasks.config.extensions import build
from solrl_tasks.config.recipe import Recipe
from solrl_tasks.config.stochastic import Stochastic
from solrl_tasks.config.words import counted
from solrl_tasks.objectives.base import Objective, asked_noise
from solrl_tasks.rewards.gradients import require_differentiable


def objective_of(recipe: Recipe) -> Objective[Any]:
    """The recipe's objective."""
    spec = recipe.update.objective
    objective: Objective[Any] = build("objective", spec.name, dict(spec.options))
    return objective


def noise_of(recipe: Recipe, iteration: int) -> Stochastic | None:
    """Where the objective wants noise in the paths of an iteration (from 1); None is nowhere."""
    return asked_noise(objective_of(recipe), recipe.regenerate.steps, iteration)


def check_learning(recipe: Recipe) -> None:
    """Refuse what an objective cannot learn from.

    Raises:
        ValueError: the message names the fields.
    """
    objective, update = objective_of(recipe), recipe.update
    noise = asked_noise(objective, recipe.regenerate.steps, 1)
    if objective.needs == "adjoints":
        for spec in recipe.rewards:
            if spec.weight:
                require_differentiable(spec, update.objective.name)
    if noise is not None:
        _check_paths(recipe, noise)
        if objective.needs == "trajectories":
            _check_sampling_policy(recipe)
    elif objective.times == "grid_subset" and update.times_per_sample > recipe.regenerate.steps:
        raise ValueError(
            f"update.times_per_sample is {update.times_per_sample}, but regenerate.steps ({recipe.regenerate.steps}) "
            "has no more noise levels to draw from without repeating one: lower it"
        )
    if update.advantage == "pool" and update.advantage_mean == "leave_one_out":
        raise ValueError(
            "update.advantage_mean is leave_one_out, which is the mean of the other kept samples, but update.advantage "
            "is pool: set one of them back"
        )


def _check_paths(recipe: Recipe, noise: Stochastic) -> None:
    update, name = recipe.update, recipe.update.objective.name
    if recipe.regenerate.sampler != "euler":
        raise ValueError(
            f"regenerate.sampler is {recipe.regenerate.sampler}, but {name} learns from paths, whose steps without "
            "noise are those of euler: set regenerate.sampler to euler (explore.sampler is free)"
        )
    if update.times_per_sample > noise.window.size:
        raise ValueError(
            f"update.times_per_sample is {update.times_per_sample}, but only {counted(noise.window.size, 'step')} of "
            "a path have "
            f"noise and can be trained: lower it, or widen the window of {name}"
        )


def _check_sampling_policy(recipe: Recipe) -> None:
    update, name = recipe.update, recipe.update.objective.name
    if update.old.schedule != "copy":
        raise ValueError(
            f"update.old.schedule is {update.old.schedule}, but {name} compares the policy with the one that sampled: "
            "set update.old.schedule to copy, so that each iteration begins with the policy that made its samples"
        )
