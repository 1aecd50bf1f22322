"""How fast the lagged copies of a policy follow the trained one: ``lagged <- d lagged + (1 - d) current``."""

from typing import Literal

Schedule = Literal["copy", "ramp", "delayed", "constant", "by_iteration"]


def old_decay(schedule: Schedule, step: int, decay: float = 0.0, iteration: int = 0) -> float:
    """The d of the old (sampling) policy after an iteration; types 0, 1 and 2 of DiffusionNFT, a
    constant, and RAM's.

    Args:
        schedule: ``copy`` is 0; ``ramp`` is ``min(0.001 step, 0.5)``; ``delayed`` is 0 for 75 steps, then
            ``min(0.0075 (step - 75), 0.999)``; ``constant`` is ``decay``; ``by_iteration`` is
            ``min(0.01 iteration, 0.9)``.
        step: optimizer steps done so far.
        decay: used by ``constant`` only.
        iteration: iterations done so far, read by ``by_iteration`` only.

    Raises:
        ValueError: the schedule is unknown or the step is negative.
    """
    if step < 0:
        raise ValueError(f"optimizer steps done cannot be negative, found {step}")
    match schedule:
        case "copy":
            return 0.0
        case "ramp":
            return min(0.001 * step, 0.5)
        case "delayed":
            return 0.0 if step < 75 else min(0.0075 * (step - 75), 0.999)
        case "constant":
            return decay
        case "by_iteration":
            return min(0.01 * iteration, 0.9)
    raise ValueError(f"unknown old-policy schedule {schedule!r}: there is copy, ramp, delayed, constant, by_iteration")


def ema_decay(step: int, limit: float = 0.9) -> float:
    """The d of the evaluation average after optimizer step s: ``min((1 + s) / (10 + s), limit)``.

    Steps count from 1. It starts low, so that the average does not hang on to the untrained policy.
    """
    return min((1 + step) / (10 + step), limit)
