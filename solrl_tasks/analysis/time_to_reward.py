"""How much sooner than a baseline an arm comes to a reward: levels, costs to reach them, speed-ups and their spread."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from solrl_tasks.analysis.curves import Curves
from solrl_tasks.analysis.plateau import find_plateau
from solrl_tasks.analysis.reach import Reached, reach
from solrl_tasks.analysis.speed_up import Pair, SpeedUp
from solrl_tasks.config.base import Frozen

SHARES: Final = (0.25, 0.5, 0.75, 1.0)
"""Of the baseline's gain, at which arms are compared."""


class AtShare(Frozen):
    """An arm at one share of the baseline's gain.

    Attributes:
        unresolved: the noise of the arm's or the baseline's curve there is larger than the step from this threshold to
            the next below (or the baseline's gain is not resolved from 0), so that the figures tell nothing.
    """

    share: float
    level: float
    step: float
    arm: Reached
    baseline: Reached
    speedup: SpeedUp
    unresolved: bool


def time_to_reward(arm: Curves, baseline: Curves, shares: Sequence[float] = SHARES) -> tuple[AtShare, ...]:
    """What an arm and the baseline spend until they are at shares of the baseline's gain.

    Args:
        shares: increasing, above 0.

    Raises:
        ValueError: the shares are not so, no seed is in both arms, or there are too few evaluations.
    """
    if not shares or min(shares) <= 0 or np.any(np.diff(shares) <= 0):
        raise ValueError(f"shares must be above 0 and increase, found {tuple(shares)}")
    plateau, pair = find_plateau(baseline), Pair(arm, baseline)
    found, below = [], 0.0
    for share in shares:
        level, step = plateau.threshold(share), (share - below) * (plateau.level - plateau.start)
        mine, theirs = reach(arm, level), reach(baseline, level)
        # Never true of NaN: with one seed the noise is unknown, and nothing is resolved.
        clear = plateau.resolved and mine.noise <= step and theirs.noise <= step
        found.append(
            AtShare(
                share=share,
                level=level,
                step=step,
                arm=mine,
                baseline=theirs,
                speedup=pair.speed_up(plateau, share),
                unresolved=not clear,
            )
        )
        below = share
    return tuple(found)
