"""Which noise levels a sample is trained at."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from solrl_tasks.config.words import counted
from solrl_tasks.objectives.base import TimeDensity


def draw_times(
    density: TimeDensity, count: int, grid: Sequence[float], random: np.random.Generator
) -> NDArray[np.float64]:
    """Noise levels of one sample.

    Args:
        density: ``grid_subset`` draws from ``grid`` without replacement (DiffusionNFT); ``uniform`` draws
            from (0, 1]; ``sqrt`` has density 2t on (0, 1], ``t = sqrt(u)`` (RAM).
        count: how many.
        grid: the sampler's noise levels, without the final 0; read by ``grid_subset`` only.

    Returns:
        ``[count]`` float64 in (0, 1].

    Raises:
        ValueError: the density is unknown, or the grid has fewer levels than are asked for.
    """
    match density:
        case "grid_subset":
            if not 1 <= count <= len(grid):
                raise ValueError(
                    f"{counted(count, 'noise level')} a sample are asked for, but the sampler's grid has {len(grid)}"
                )
            return random.choice(np.asarray(grid, dtype=np.float64), size=count, replace=False)
        case "uniform":
            return 1.0 - random.random(count)
        case "sqrt":
            return np.sqrt(1.0 - random.random(count))
    raise ValueError(f"unknown time density {density!r}: there is grid_subset, uniform, sqrt")
