"""Noisy paths from the rollout to the update."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from solrl_tasks.config.recipe import ExtensionSpec, RewardSpec, UpdateSpec
from solrl_tasks.config.stochastic import Stochastic, Window
from solrl_tasks.sampling.prompts import Prompt, PromptSet
from solrl_tasks.sampling.sde.base import transitions
from solrl_tasks.sampling.sde.walk import step_noise, window_starts
from solrl_tasks.workers.device import Device
from solrl_tasks.workers.jobs import Paths, RolloutJob, TrainJob, Work
from tests.support.tiny import CPU, tiny_spec

STEPS = 5
ALL = Stochastic(step="flow-sde", eta=0.7, window=Window(size=4, start=0, stop=4))
DRAWN = Stochastic(step="dance", eta=0.3, window=Window(size=2, start=0, stop=4))
PROMPTS = PromptSet((Prompt("a red circle"), Prompt("two blue squares")))


def job_of(noise, **changes):
    job = RolloutJob(
        engine=ExtensionSpec(name="bf16"),
        lora=None,
        sampler="euler",
        steps=STEPS,
        prompts=PROMPTS,
        exploration_seed=11,
        rewards=(RewardSpec(name="colourfulness"),),
        chunk=4,
        noise=noise,
    )
    return replace(job, **changes)


def sampled(device, job, row=0, candidates=(0, 1, 2, 3)):
    (result,) = device.rollout(job, [Work("block", row, candidates, job.rewards)])
    return result


def train_job(device, noise=ALL, objective=None, rows=(0, 1), **update):
    """What a rollout made of two prompts, with drawn advantages."""
    job = job_of(noise)
    results = [sampled(device, job, row) for row in rows]
    seeds = [seed for row in rows for seed in job.seeds(row, (0, 1, 2, 3))]
    options = {"step": noise.step, "eta": noise.eta, "window": noise.window.model_dump(), **(objective or {})}
    spec = {
        "objective": {"name": "grpo", "options": options},
        "times_per_sample": noise.window.size,
        "micro_batch": 8,
        "old": {"schedule": "copy"},
        **update,
    }
    return TrainJob(
        x0=torch.cat([result.latents for result in results]),
        advantage=np.random.default_rng(0).standard_normal(4 * len(rows)),
        texts=tuple(PROMPTS[row].text for row in rows for _ in range(4)),
        prompt_keys=tuple(PROMPTS.keys[row] for row in rows for _ in range(4)),
        candidates=(0, 1, 2, 3) * len(rows),
        steps=STEPS,
        update=UpdateSpec.model_validate(spec),
        run_seed=5,
        iteration=1,
        paths=Paths(noise, torch.cat([r.paths for r in results]), tuple(window_starts(noise.window, seeds))),
    )


@pytest.mark.parametrize("noise", [ALL, DRAWN], ids=["all", "drawn"])
def test_a_rollout_keeps_the_states_of_its_noisy_steps(device, noise):
    job = job_of(noise)
    result = sampled(device, job)
    assert result.paths.shape == (4, noise.window.size + 1, *device.family.latent_shape)
    seeds = job.seeds(0, (0, 1, 2, 3))
    fresh = step_noise(noise.window, seeds, device.family.latent_shape)
    grid = device.family.sigmas(STEPS)
    steps, conditioning = transitions(noise, grid), device.resident.embeddings.get([PROMPTS[0].text])
    module = device.engine(job.engine).module
    for row, start in enumerate(window_starts(noise.window, seeds)):
        for j, (before, after) in enumerate(pairwise(result.paths[row])):
            one = steps[start + j]
            with torch.no_grad():
                v = device.family.velocity(module, before[None], grid[start + j], conditioning)[0]
            expected = one.x * before + one.v * v + one.std * fresh[start + j, row]
            torch.testing.assert_close(after, expected, rtol=1e-4, atol=1e-4)


def test_a_path_belongs_to_its_candidate_and_not_to_its_block(device):
    job = job_of(DRAWN)
    together, alone = sampled(device, job), sampled(device, job, candidates=(2,))
    torch.testing.assert_close(together.paths[2:3], alone.paths, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(together.latents[2:3], alone.latents, rtol=1e-4, atol=1e-5)


def test_without_noise_the_images_are_those_of_euler(device):
    still = Stochastic(step="flow-sde", eta=0.0, window=Window(size=2, start=1, stop=3))
    noisy, plain = sampled(device, job_of(still)), sampled(device, job_of(None))
    assert torch.equal(noisy.latents, plain.latents)
    assert plain.paths is None


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def tiny(request):
    return Device(tiny_spec("flux", dtype=request.param), CPU)


@pytest.mark.parametrize("options", [{}, {"guard": "full"}], ids=["plain", "guard"])
@pytest.mark.parametrize("noise", [ALL, DRAWN], ids=["all", "drawn"])
def test_the_ratio_is_exactly_one_before_the_first_step_whatever_sampled(tiny, noise, options):
    job = train_job(tiny, noise, options)
    state, result = tiny.train(job, tiny.initial_policy(4, 8.0, "all", 0))
    assert result.metrics["train/ratio_gap"] == 0.0
    assert result.metrics["train/clipped"] == 0.0
    assert result.metrics["train/grad_norm"] > 0.0
    assert not state.current.is_zero
    # The noise that explains the steps is the noise that was drawn, but for the engine's rounding.
    assert result.metrics["train/step_noise"] == pytest.approx(1.0, abs=0.1)


def test_the_forward_pass_that_is_compared_is_the_same_in_every_optimizer_step(tiny):
    # A learning rate that moves nothing: the second step compares new forward passes with the first ones.
    job = train_job(tiny, optimizer_steps=2, micro_batch=3, optimizer={"lr": 1e-30})
    _, result = tiny.train(job, tiny.initial_policy(4, 8.0, "all", 0))
    assert result.metrics["train/ratio_gap"] == 0.0
    moving = train_job(tiny, optimizer_steps=2, micro_batch=3, optimizer={"lr": 1e-2})
    _, result = tiny.train(moving, tiny.initial_policy(4, 8.0, "all", 0))
    assert result.metrics["train/ratio_gap"] > 0.0


def test_the_loss_of_the_first_step_is_minus_the_mean_advantage(device, first_policy):
    job = train_job(device)
    _, result = device.train(job, first_policy)
    assert result.metrics["train/loss"] == pytest.approx(-job.advantage.mean(), abs=1e-6)


def test_some_of_the_steps_are_trained_and_the_same_in_every_optimizer_step(device, first_policy):
    job = train_job(device, times_per_sample=2, optimizer_steps=2, optimizer={"lr": 1e-30})
    _, result = device.train(job, first_policy)
    assert result.metrics["train/ratio_gap"] == 0.0


def test_micro_batches_do_not_change_the_policy(device, first_policy):
    whole, _ = device.train(train_job(device, micro_batch=32), first_policy)
    parts, _ = device.train(train_job(device, micro_batch=5), first_policy)
    for name, moment in whole.optimizer.items():
        torch.testing.assert_close(parts.optimizer[name], moment, rtol=1e-3, atol=1e-7)


def test_samples_without_paths_are_refused(device, first_policy):
    with pytest.raises(ValueError, match=r"grpo.*learns from paths"):
        device.train(replace(train_job(device), paths=None), first_policy)
