"""A device with the micro model, loaded once, and jobs for it."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from solrl_tasks.config.recipe import ExtensionSpec, ModelSpec, RewardSpec, UpdateSpec
from solrl_tasks.sampling.prompts import Prompt, PromptSet
from solrl_tasks.workers.device import Device
from solrl_tasks.workers.jobs import RolloutJob, TrainJob
from solrl_tasks.workers.state import PolicyState

TEXTS = ("a red circle", "two blue squares", "a green star above a red circle")


@pytest.fixture(scope="session")
def new_device(micro_model: Path) -> Callable[[], Device]:
    """Makes devices that have loaded nothing yet."""
    return lambda: Device(ModelSpec(source=str(micro_model), resolution=32), torch.device("cpu"))


@pytest.fixture(scope="session")
def device(new_device: Callable[[], Device]) -> Device:
    """One for all tests: it keeps its models for life, so tests must not depend on who used it before."""
    return new_device()


@pytest.fixture(scope="session")
def first_policy(device: Device) -> PolicyState:
    """A policy that changes nothing yet."""
    return device.initial_policy(4, 8.0, "all", 0)


@pytest.fixture(scope="session")
def moved_policy(first_policy: PolicyState) -> PolicyState:
    """A policy whose roles all differ, with an optimizer that has made three steps."""
    return PolicyState(
        current=_moved(first_policy, 1),
        old=_moved(first_policy, 2),
        ema=_moved(first_policy, 3),
        optimizer={
            f"{name}.{moment}": _random(list(weights.shape), 4).abs() * 1e-3
            for name, weights in first_policy.current.weights.items()
            for moment in ("exp_avg", "exp_avg_sq")
        },
        iteration=1,
        optimizer_step=3,
    )


@pytest.fixture(scope="session")
def train_job(device: Device) -> Callable[..., TrainJob]:
    """Makes jobs of ``samples`` samples; the rest are fields of the update."""

    def make(samples: int = 8, iteration: int = 1, **update: Any) -> TrainJob:
        generator = np.random.default_rng(samples)
        keys = PromptSet(tuple(Prompt(text) for text in TEXTS)).keys
        rows = [index % 2 for index in range(samples)]
        optimizer = {"lr": 1e-2, "eps": 1e-3, "grad_clip": 1e6, **update.pop("optimizer", {})}
        spec = {"optimizer_steps": 1, "micro_batch": 8, **update, "optimizer": optimizer}
        return TrainJob(
            x0=torch.from_numpy(generator.standard_normal((samples, *device.family.latent_shape), dtype=np.float32)),
            advantage=generator.standard_normal(samples),
            texts=tuple(TEXTS[row] for row in rows),
            prompt_keys=tuple(keys[row] for row in rows),
            candidates=tuple(range(samples)),
            steps=4,
            update=UpdateSpec.model_validate(spec),
            run_seed=5,
            iteration=iteration,
        )

    return make


@pytest.fixture(scope="session")
def rollout_job() -> RolloutJob:
    """Two emulated NVFP4 steps from the base."""
    return RolloutJob(
        engine=ExtensionSpec(name="nvfp4-emulated"),
        lora=None,
        sampler="euler",
        steps=2,
        prompts=PromptSet(tuple(Prompt(text) for text in TEXTS)),
        exploration_seed=11,
        rewards=(RewardSpec(name="colourfulness"),),
        chunk=4,
    )


def _moved(policy: PolicyState, seed: int) -> Any:
    lora = policy.current
    weights = {name: value + 0.1 * _random(list(value.shape), seed) for name, value in lora.weights.items()}
    return replace(lora, weights=weights)


def _random(shape: list[int], seed: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape, dtype=np.float32))
