import numpy as np
import pytest

from solrl_tasks.objectives.times import draw_times

GRID = [1.0, 0.96, 0.91, 0.86, 0.79, 0.71, 0.60, 0.46, 0.28, 0.009]


def test_grid_subset_draws_without_replacement():
    random = np.random.default_rng(0)
    counts = dict.fromkeys(GRID, 0)
    for _ in range(3000):
        times = draw_times("grid_subset", 6, GRID, random).tolist()
        assert len(set(times)) == 6
        for t in times:
            counts[t] += 1
    assert np.array(list(counts.values())) / 3000 == pytest.approx(0.6, abs=0.04)


def test_the_whole_grid_can_be_asked_for_but_not_more():
    random = np.random.default_rng(0)
    assert sorted(draw_times("grid_subset", 10, GRID, random)) == sorted(GRID)
    with pytest.raises(ValueError, match="11 noise levels a sample are asked for, but the sampler's grid has 10"):
        draw_times("grid_subset", 11, GRID, random)


def test_sqrt_density():
    # T20: mean 2/3, P(t > 0.9) = 0.19.
    times = draw_times("sqrt", 200_000, (), np.random.default_rng(0))
    assert times.mean() == pytest.approx(2 / 3, abs=0.002)
    assert (times > 0.9).mean() == pytest.approx(0.19, abs=0.003)


def test_uniform_density_never_gives_zero():
    times = draw_times("uniform", 200_000, (), np.random.default_rng(0))
    assert times.mean() == pytest.approx(0.5, abs=0.003)
    assert 0 < times.min() < times.max() <= 1


def test_an_unknown_density_is_refused():
    with pytest.raises(ValueError, match="there is grid_subset, uniform, sqrt"):
        draw_times("cosine", 1, GRID, np.random.default_rng(0))
