"""Rewards of kept samples as advantages."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from solrl_tasks.config.words import counted

Statistics = Literal["kept", "pool"]
Baseline = Literal["group", "leave_one_out"]
Spread = Literal["all", "group"]
STD_FLOOR = 1e-4


@dataclass(frozen=True)
class Advantages:
    """Advantages of P prompts with K kept samples each.

    Attributes:
        values: ``[P, K]`` float64, NaN where the sample takes no part in the update.
        mean: ``[P]`` the mean of each group, NaN where a group has none.
        std: ``[P]`` the spread that a group's advantages are divided by (after adding 1e-4); NaN where nothing is left.
        excluded: samples of kept groups that were left out because their reward is not finite.
    """

    values: NDArray[np.float64]
    mean: NDArray[np.float64]
    std: NDArray[np.float64]
    excluded: int

    @property
    def used(self) -> NDArray[np.bool_]:
        """``[P, K]`` true where the sample takes part in the update."""
        return np.isfinite(self.values)


def advantages(
    rewards: NDArray[np.floating],
    kept: NDArray[np.bool_],
    stats: Statistics = "kept",
    pool_rewards: NDArray[np.floating] | None = None,
    mean: Baseline = "group",
    std: Spread = "all",
) -> Advantages:
    """``A = (reward - mean of its group) / (std of all rewards + 1e-4)`` in float64.

    As in Flow-GRPO, DiffusionNFT and Sol-RL: the std is the population std of the raw rewards of all kept
    groups together, not of each group. Invalid rewards are left out before any statistic. Groups are rows,
    never decoded prompts.

    With ``stats="pool"`` mean and std come from the pool's rewards of the same prompts, which selection has
    not widened: advantages of best-and-worst samples are then about 1.7 times larger, and a proxy that is off
    by a constant shifts them all.

    With ``std="group"`` each group is divided by its own (as DanceGRPO does), so that all prompts weigh alike, also
    those whose images hardly differ. With ``mean="leave_one_out"`` a sample is compared with the others of its group:
    its advantage is K / (K - 1) times as large, and a sample that is alone in its group has none.

    Args:
        rewards: ``[P, K]`` rewards of the regenerated samples; non-finite where invalid.
        kept: ``[P]`` false for groups left out by selection; their rewards are not looked at.
        stats: whose mean and std are used.
        pool_rewards: ``[P, N]`` rewards of all candidates, for ``stats="pool"``.
        mean: what a reward is compared with.
        std: what the difference is divided by.

    Raises:
        ValueError: shapes do not fit, the pool's rewards are missing, or ``leave_one_out`` is asked of them.
    """
    raw = np.asarray(rewards, dtype=np.float64)
    if raw.ndim != 2 or kept.shape != raw.shape[:1]:
        raise ValueError(f"rewards must be [P, K] and kept [P], found {raw.shape} and {kept.shape}")
    valid = _masked(raw, kept)
    source = valid if stats == "kept" else _pool(pool_rewards, kept)
    means = _group_mean(source)
    spread = np.full(len(source), _std(source)) if std == "all" else _group_std(source)
    difference = valid - means[:, None]
    if mean == "leave_one_out":
        difference = difference * _without_itself(valid, stats)
    values = difference / (spread[:, None] + STD_FLOOR)
    return Advantages(values, means, spread, int((np.isnan(valid) & kept[:, None]).sum()))


def _without_itself(valid: NDArray[np.float64], stats: Statistics) -> NDArray[np.float64]:
    """By what r - mean of all is to be multiplied to become r - mean of the others, [P, 1]."""
    if stats == "pool":
        raise ValueError('the mean "leave_one_out" is of the kept samples: it does not go with pool statistics')
    count = (~np.isnan(valid)).sum(axis=1, keepdims=True)
    return np.where(count > 1, count / np.maximum(count - 1, 1), np.nan)


def _pool(rewards: NDArray[np.floating] | None, kept: NDArray[np.bool_]) -> NDArray[np.float64]:
    if rewards is None:
        raise ValueError('advantage statistics "pool" need the rewards of the whole pool: pass pool_rewards')
    if rewards.ndim != 2 or rewards.shape[:1] != kept.shape:
        raise ValueError(
            f"pool_rewards must be [P, N] with the {counted(len(kept), 'prompt')} of kept, found {rewards.shape}"
        )
    return _masked(np.asarray(rewards, dtype=np.float64), kept)


def _masked(rewards: NDArray[np.float64], kept: NDArray[np.bool_]) -> NDArray[np.float64]:
    return np.where(np.isfinite(rewards) & kept[:, None], rewards, np.nan)


def _group_mean(rewards: NDArray[np.float64]) -> NDArray[np.float64]:
    found = ~np.isnan(rewards)
    count = found.sum(axis=1)
    total = np.where(found, rewards, 0.0).sum(axis=1)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def _std(rewards: NDArray[np.float64]) -> float:
    found = rewards[~np.isnan(rewards)]
    return float(found.std()) if len(found) else float("nan")


def _group_std(rewards: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.array([_std(row) for row in rewards], dtype=np.float64)
