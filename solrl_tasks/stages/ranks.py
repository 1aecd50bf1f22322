"""What an iteration can know about ranks, under the names of its metrics."""

import math

import numpy as np
from numpy.typing import NDArray

from solrl_tasks.analysis.estimates import Estimate, mean_estimate
from solrl_tasks.analysis.ranks import kept_contrast, kept_inflated, whole_groups

Floats = NDArray[np.float64]


def kept_metrics(
    proxy: Floats, precise: Floats, indices: NDArray[np.int64], alarm_rho: float
) -> dict[str, float | Estimate]:
    """Ranks on the kept seeds alone, every iteration, and the alarm.

    Args:
        proxy: [P, N] rewards of all candidates.
        precise: [P, K] rewards of the kept ones.
        indices: [P, K] which they are; -1 in left-out groups.
        alarm_rho: the alarm is raised where the mean correlation falls below it. Kept seeds inflate correlation, so a
            low value is bad news, and a high one no proof.

    Returns:
        ``rank/kept_spearman``, ``rank/kept_kendall``, ``rank/kept_contrast`` and ``rank/alarm`` (0 or 1).
    """
    kept = indices[:, 0] >= 0
    picked = np.take_along_axis(proxy, np.maximum(indices, 0), axis=1)[kept]
    ranks = kept_inflated(picked, precise[kept])
    rho = ranks["spearman"].mean
    return {
        **{f"rank/kept_{name}": estimate for name, estimate in ranks.items()},
        "rank/kept_contrast": mean_estimate(kept_contrast(precise[kept])),
        "rank/alarm": float(math.isfinite(rho) and rho < alarm_rho),
    }


def audit_metrics(proxy: Floats, precise: Floats, keep: int) -> dict[str, float | Estimate]:
    """Ranks over whole regenerated groups, [A, N] both: what the proxy is really worth."""
    return {f"rank/audit_{name}": estimate for name, estimate in whole_groups(proxy, precise, keep).items()}
