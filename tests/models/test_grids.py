"""Sigma grids against the schedulers of diffusers that they stand for."""

import json

import diffusers
import numpy as np
import pytest

from solrl_tasks.config.extensions import find_extension
from solrl_tasks.models.families.base import FamilyError
from solrl_tasks.models.grids import scheduler_grid
from solrl_tasks.models.sources import ARCHITECTURES, fetch
from tests.support.tiny import (
    EACH,
    FULL,
    full_spec,
    load,
    tiny_spec,
)


def scheduler_of(spec):
    config = json.loads((fetch(spec) / "scheduler" / "scheduler_config.json").read_text())
    return getattr(diffusers, config["_class_name"]).from_config(config)


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
@pytest.mark.parametrize("steps", [1, 2, 6, 10, 40])
@pytest.mark.parametrize("source", FULL)
def test_grids_equal_the_scheduler_of_the_pipeline(source, steps):
    spec = full_spec(source)
    scheduler = scheduler_of(spec)
    arguments = {"num_inference_steps": steps}
    if spec.family == "flux":
        arguments = {"sigmas": np.linspace(1.0, 1 / steps, steps)}
        if scheduler.config.use_dynamic_shifting:
            arguments["mu"] = 0.5 + 0.65 * (1024 - 256) / (4096 - 256)
    scheduler.set_timesteps(**arguments)
    grid = find_extension("family", spec.family).grid_of(spec, steps)
    assert grid == pytest.approx(scheduler.sigmas.tolist(), abs=3e-7)


def test_a_resolution_dependent_shift_of_sd3_equals_the_scheduler(tmp_path):
    changed = json.loads((ARCHITECTURES / "tiny-sd3" / "scheduler" / "scheduler_config.json").read_text())
    changed |= {"use_dynamic_shifting": True, "base_image_seq_len": 2, "base_shift": 0.5, "max_shift": 1.15}
    scheduler = diffusers.FlowMatchEulerDiscreteScheduler.from_config(changed)
    scheduler.set_timesteps(10, mu=0.5 + 0.65 * (4 - 2) / (4096 - 2))
    assert scheduler_grid(changed, 4, given_levels=False)(10) == pytest.approx(scheduler.sigmas.tolist(), abs=3e-7)


@EACH
def test_a_shift_of_ones_own_replaces_the_grid(name):
    assert load(tiny_spec(name, shift=1.0)).sigmas(4) == [1.0, 0.75, 0.5, 0.25, 0.0]
    assert load(tiny_spec(name, shift=3.0)).sigmas(2) == [1.0, 0.75, 0.0]


@pytest.mark.parametrize(
    ("scheduler", "message"),
    [
        ({"_class_name": "EulerDiscreteScheduler"}, "EulerDiscreteScheduler, whose sigma grid is not known"),
        ({"_class_name": "FlowMatchEulerDiscreteScheduler", "use_karras_sigmas": True}, "use_karras_sigmas"),
        ({"_class_name": "DPMSolverMultistepScheduler", "prediction_type": "flow_prediction"}, "use_flow_sigmas"),
        (
            {
                "_class_name": "DPMSolverMultistepScheduler",
                "prediction_type": "flow_prediction",
                "use_flow_sigmas": True,
                "use_beta_sigmas": True,
            },
            "use_beta_sigmas",
        ),
    ],
)
def test_schedulers_with_other_grids_are_refused(scheduler, message):
    with pytest.raises(FamilyError, match=message):
        scheduler_grid(scheduler, 4, given_levels=False)
