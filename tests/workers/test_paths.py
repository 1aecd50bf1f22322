"""Noisy paths from the rollout to the update."""

from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch

from solrl_tasks.config.recipe import ExtensionSpec, ModelSpec, RewardSpec, UpdateSpec
from solrl_tasks.config.stochastic import Stochastic, Window
from solrl_tasks.rewards.brightness import Brightness
from solrl_tasks.sampling.prompts import Prompt, PromptSet
from solrl_tasks.sampling.sde.base import transitions
from solrl_tasks.sampling.sde.walk import step_noise, window_starts
from solrl_tasks.workers import training
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


def adjoint_job(device, **update):
    noise = Stochastic(step="memoryless", eta=1.0, window=Window(size=4, start=0, stop=4))
    job = train_job(device, noise)
    objective = {"objective": {"name": "adjoint-matching", "options": {"multiplier": 3.0}}, **update}
    spec = UpdateSpec.model_validate({**job.update.model_dump(), **objective})
    rewards = (RewardSpec(name="brightness", weight=2.0), RewardSpec(name="colourfulness", weight=0.0))
    return replace(job, update=spec, rewards=rewards, metadata=({},) * 8)


def test_adjoints_are_the_derivative_of_the_reward_along_the_path(device, first_policy):
    # The path is walked again from its second state, with the noise that it had: minus 3 x 2 x brightness of its end.
    job = adjoint_job(device, micro_batch=3)
    trainer = device._trainer(first_policy.current)
    objective, _ = trainer._begin(job, first_policy)
    conditioning = device.resident.embeddings.get(job.distinct_texts)
    task = training._Task(job, objective, trainer._lesson(job, objective), conditioning)
    task.lesson.carry_back(partial(trainer._adjoints, task, device._gradient(job)), task.samples())
    rows = [row for row in task.lesson.rows(0) if row[0] == 5]
    found = task.lesson.batch(rows, 0)
    grid, family = device.family.sigmas(STEPS), device.family
    steps, states = transitions(job.paths.noise, grid), job.paths.states[5]
    prompts = conditioning.take([job.text_rows[5]])
    start = x = states[1:2].clone().requires_grad_()
    for i in range(1, STEPS):
        mean = steps[i].x * x + steps[i].v * family.velocity(family.transformer, x, grid[i], prompts)
        x = mean + (states[i + 1][None] - mean).detach() if i < STEPS - 1 else mean
    pixels = (family.pixels(x) / 2 + 0.5).clamp(0, 1)
    (expected,) = torch.autograd.grad(-6.0 * Brightness().differentiable(pixels, [""], [{}]).sum(), start)
    # The first two rows share the adjoint of the second state.
    torch.testing.assert_close(found.adjoint[1], expected[0], rtol=1e-3, atol=1e-6)
    assert torch.equal(found.adjoint[0], found.adjoint[1])
    levels = found.t[1:]
    torch.testing.assert_close(found.half_variance[1:], levels / (1 - levels))
    assert float(found.half_variance[0]) == pytest.approx(grid[1] ** 2 / (1 - grid[1]), rel=1e-5)


def test_adjoint_matching_raises_its_reward():
    # On the model in the repository: of the random one, pixels answer to small changes in any direction.
    device = Device(ModelSpec(), CPU)
    objective = {"name": "adjoint-matching", "options": {"multiplier": 10.0}}
    update = {"optimizer_steps": 10, "times_per_sample": 4, "optimizer": {"lr": 3e-4}, "objective": objective}
    job = adjoint_job(device, **update)
    state, result = device.train(job, device.initial_policy(8, 16.0, "all", 0))
    assert result.metrics["train/adjoint_square"] > 0
    for noise in (None, job.paths.noise):
        plain = job_of(noise, rewards=(RewardSpec(name="brightness"),))
        before, after = (sampled(device, replace(plain, lora=lora)) for lora in (None, state.current))
        assert after.rewards["brightness@1"].mean() > before.rewards["brightness@1"].mean() + 0.02


def test_adjoints_need_the_gradient_of_rewards(device, first_policy):
    job = adjoint_job(device)
    conditioning = device.resident.embeddings.get(job.distinct_texts)
    with pytest.raises(ValueError, match=r"adjoint-matching.*gradient"):
        device._trainer(first_policy.current).update(job, first_policy, conditioning)
