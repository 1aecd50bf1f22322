"""Sigma grids: shape, the stored table, and agreement with the pipeline's scheduler."""

import json
from pathlib import Path

import pytest
from diffusers import FlowMatchEulerDiscreteScheduler
from hypothesis import given
from hypothesis import strategies as st

from solrl_tasks.config.extensions import find_extension, list_extensions
from solrl_tasks.config.recipe import ModelSpec
from solrl_tasks.sampling import sigmas

TABLES = {path.stem: json.loads(path.read_text()) for path in (Path(__file__).parent / "tables").glob("*.json")}
"""By family: name of a grid, number of steps, levels."""
GRIDS = {
    "linear": sigmas.linear,
    "shift 3": lambda steps: sigmas.shifted(steps, 3.0),
    "shift 3 twice": lambda steps: sigmas.shifted_twice(steps, 3.0),
    "flow shift 3": lambda steps: sigmas.flow(steps, 3.0),
    "dynamic 1024 tokens": lambda steps: sigmas.shifted(steps, sigmas.dynamic_shift(1024)),
    "dynamic 4096 tokens": lambda steps: sigmas.shifted(steps, sigmas.dynamic_shift(4096)),
}


@given(st.integers(1, 200), st.floats(0.01, 100))
def test_every_grid_falls_strictly_from_one_to_zero(steps, shift):
    grid = sigmas.shifted(steps, shift)
    assert len(grid) == steps + 1
    assert grid[0] == pytest.approx(1.0)
    sigmas.check(grid)
    for other in (sigmas.shifted_twice, sigmas.flow, sigmas.to_smallest):
        assert len(other(steps, shift)) == steps + 1
        sigmas.check(other(steps, shift))


@pytest.mark.parametrize(("family", "name"), [(family, name) for family, table in TABLES.items() for name in table])
def test_the_stored_tables_still_hold(family, name):
    for steps, stored in TABLES[family][name].items():
        assert GRIDS[name](int(steps)) == pytest.approx(stored, rel=0, abs=1e-15)


def test_the_tables_cover_every_grid_and_family():
    assert {name for table in TABLES.values() for name in table} == set(GRIDS)
    assert set(TABLES) == set(list_extensions("family"))


OWN = {
    "flux": ("random:flux.1-dev", 512, "dynamic 1024 tokens"),
    "sd3": ("random:sd3.5-large", 1024, "shift 3 twice"),
    "sana": ("random:sana-1.6b", 1024, "flow shift 3"),
}


@pytest.mark.parametrize("family", TABLES)
def test_families_walk_their_table(family):
    source, resolution, name = OWN[family]
    spec = ModelSpec(family=family, source=source, resolution=resolution)
    for steps, stored in TABLES[family][name].items():
        assert find_extension("family", family).grid_of(spec, int(steps)) == pytest.approx(stored, rel=0, abs=1e-15)


@pytest.mark.parametrize("steps", [1, 4, 6, 10, 28, 50])
@pytest.mark.parametrize(
    ("grid", "config", "mu"),
    [
        (sigmas.linear, {"shift": 1.0}, None),
        (lambda n: sigmas.shifted(n, 3.0), {"shift": 3.0}, None),
        (GRIDS["dynamic 1024 tokens"], {"use_dynamic_shifting": True}, 0.5 + 0.65 * 768 / 3840),
        (
            lambda n: sigmas.shifted(n, sigmas.dynamic_shift(4096, shift_type="linear")),
            {"use_dynamic_shifting": True, "time_shift_type": "linear"},
            1.15,
        ),
    ],
)
def test_grids_equal_the_scheduler(grid, config, mu, steps):
    scheduler = FlowMatchEulerDiscreteScheduler(**config)
    scheduler.set_timesteps(sigmas=[(steps - i) / steps for i in range(steps)], mu=mu)
    assert grid(steps) == pytest.approx(scheduler.sigmas.tolist(), abs=2e-7)


@pytest.mark.parametrize(
    "grid", [[], [1.0], [1.0, 0.5], [1.0, 0.5, 0.5, 0.0], [0.5, 1.0, 0.0], [1.5, 0.0], [float("nan"), 0.0]]
)
def test_grids_that_cannot_be_walked_are_refused(grid):
    with pytest.raises(ValueError, match="falls strictly"):
        sigmas.check(grid)


def test_impossible_shifts_are_refused():
    with pytest.raises(ValueError, match="at least one step"):
        sigmas.linear(0)
    with pytest.raises(ValueError, match="positive shift"):
        sigmas.shifted(4, 0.0)
    with pytest.raises(ValueError, match="exponential and linear"):
        sigmas.dynamic_shift(256, shift_type="cubic")
