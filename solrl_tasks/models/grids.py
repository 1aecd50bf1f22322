"""A pipeline's own sigma grid, from the configuration of its scheduler."""

from collections.abc import Callable
from typing import Any

from solrl_tasks.models.families.base import FamilyError
from solrl_tasks.sampling import sigmas

Grid = Callable[[int], list[float]]
"""Number of steps to that many levels and 0."""

_SHIFTS = {
    "base_shift": "base_shift",
    "max_shift": "max_shift",
    "base_tokens": "base_image_seq_len",
    "max_tokens": "max_image_seq_len",
    "shift_type": "time_shift_type",
}
_EULER_DEFAULTS: dict[str, Any] = {
    "shift": 1.0,
    "use_dynamic_shifting": False,
    "base_shift": 0.5,
    "max_shift": 1.15,
    "base_image_seq_len": 256,
    "max_image_seq_len": 4096,
    "time_shift_type": "exponential",
    "num_train_timesteps": 1000,
}
_SOLVER_DEFAULTS: dict[str, Any] = {
    "use_flow_sigmas": False,
    "prediction_type": "epsilon",
    "final_sigmas_type": "zero",
    "num_train_timesteps": 1000,
    "flow_shift": 1.0,
}
_SOLVER_NEEDS: dict[str, Any] = {
    "use_flow_sigmas": True,
    "prediction_type": "flow_prediction",
    "final_sigmas_type": "zero",
    "num_train_timesteps": 1000,
}
_SOLVER_OFF = {f"use_{what}" for what in ("dynamic_shifting", "karras_sigmas", "lu_lambdas", "beta_sigmas")}
_SOLVER_OFF |= {"use_exponential_sigmas"}


def scheduler_grid(scheduler: dict[str, Any], image_tokens: int, *, given_levels: bool) -> Grid:
    """The grid of the pipeline's own scheduler.

    Args:
        scheduler: its configuration.
        image_tokens: of a latent, which decide a shift by resolution.
        given_levels: whether the pipeline hands the scheduler equal steps to shift (FLUX), or only their number.

    Raises:
        FamilyError: the scheduler is set to something that our grids do not have.
    """
    kind = scheduler.get("_class_name")
    if kind == "FlowMatchEulerDiscreteScheduler":
        return _flow_match(scheduler, image_tokens, given_levels)
    if kind == "DPMSolverMultistepScheduler":
        return _solver(scheduler)
    raise FamilyError(f"scheduler_config.json is of a {kind}, whose sigma grid is not known: set model.shift")


def _flow_match(scheduler: dict[str, Any], image_tokens: int, given_levels: bool) -> Grid:
    others = {k: v for k, v in scheduler.items() if k not in _EULER_DEFAULTS and not k.startswith("_") and v}
    if others:
        raise FamilyError(f"scheduler_config.json sets {others}, which our sigma grids do not have: remove it")
    config = _EULER_DEFAULTS | {name: value for name, value in scheduler.items() if name in _EULER_DEFAULTS}
    shift = float(config["shift"])
    if not config["use_dynamic_shifting"]:
        return lambda steps: sigmas.shifted(steps, shift) if given_levels else sigmas.shifted_twice(steps, shift)
    moved = sigmas.dynamic_shift(image_tokens, **{ours: config[theirs] for ours, theirs in _SHIFTS.items()})
    return lambda steps: sigmas.shifted(steps, moved) if given_levels else sigmas.to_smallest(steps, moved)


def _solver(scheduler: dict[str, Any]) -> Grid:
    config = _SOLVER_DEFAULTS | scheduler
    wrong = {name: config[name] for name, wanted in _SOLVER_NEEDS.items() if config[name] != wanted}
    wrong |= {name: True for name in sorted(_SOLVER_OFF) if config.get(name)}
    if wrong:
        raise FamilyError(f"scheduler_config.json sets {wrong}, which our sigma grids do not have: set model.shift")
    shift = float(config["flow_shift"])
    return lambda steps: sigmas.flow(steps, shift)
