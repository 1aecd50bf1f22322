"""What training a large network needs, on tiny ones of every family."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from solrl_tasks.config.recipe import UpdateSpec
from solrl_tasks.models.roles import PolicyModel
from solrl_tasks.sampling.identity import initial_noise
from solrl_tasks.sampling.prompts import Prompt, PromptSet
from solrl_tasks.workers import training
from solrl_tasks.workers.device import Device
from solrl_tasks.workers.jobs import TrainJob
from solrl_tasks.workers.lessons import Endpoints
from solrl_tasks.workers.numerics import describe_numerics
from solrl_tasks.workers.state import ROLES, initial_state
from tests.support.tiny import CPU, FAMILIES, tiny_spec

TEXTS = ("a red circle", "two blue squares under it")


@pytest.fixture(scope="module", params=FAMILIES)
def family_device(request):
    return Device(tiny_spec(request.param), CPU)


def moved(device, rank=4):
    """A policy whose adapters change something."""
    state = device.initial_policy(rank, 8.0, "all", 0)
    generator = np.random.default_rng(1)
    weights = {
        name: value + 0.02 * torch.from_numpy(generator.standard_normal(value.shape, dtype=np.float32))
        for name, value in state.current.weights.items()
    }
    return initial_state(replace(state.current, weights=weights))


def job_for(device, samples=5, **update):
    keys = PromptSet(tuple(Prompt(text) for text in TEXTS)).keys
    rows = [index % 2 for index in range(samples)]
    return TrainJob(
        x0=initial_noise(range(samples), device.family.latent_shape),
        advantage=np.linspace(-1.0, 1.0, samples),
        texts=tuple(TEXTS[row] for row in rows),
        prompt_keys=tuple(keys[row] for row in rows),
        candidates=tuple(range(samples)),
        steps=4,
        update=UpdateSpec.model_validate({"optimizer_steps": 2, "micro_batch": 2, "times_per_sample": 2, **update}),
        run_seed=5,
        iteration=1,
    )


def values(state):
    named = {f"{role}/{name}": value for role in ROLES for name, value in state.role(role).weights.items()}
    return named | state.optimizer


def kept_for_backward(device, job, policy):
    """Bytes that a micro-batch keeps from its forward to its backward pass."""
    sizes = {}

    def keep(tensor):
        # Parameters are kept in any case.
        if not isinstance(tensor, torch.nn.Parameter):
            sizes[tensor.data_ptr()] = tensor.nbytes
        return tensor

    trainer = device._trainer(policy.current)
    conditioning = device.resident.embeddings.get(job.distinct_texts)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        objective, _ = trainer._begin(job, policy)
        task = training._Task(job, objective, trainer._lesson(job, objective), conditioning)
        with torch.enable_grad():
            trainer._losses(task, task.lesson.rows(0)[:2], (0, 0))
    return sum(sizes.values())


def test_checkpointing_changes_no_bit_and_keeps_less(family_device):
    policy = moved(family_device)
    plain = job_for(family_device)
    lean = job_for(family_device, gradient_checkpointing=True)
    expected, whole = family_device.train(plain, policy)
    found, again = family_device.train(lean, policy)
    assert whole.metrics == again.metrics and whole.metrics["train/grad_norm"] > 0
    assert [name for name, value in values(expected).items() if not torch.equal(value, values(found)[name])] == []
    assert kept_for_backward(family_device, lean, policy) < 0.6 * kept_for_backward(family_device, plain, policy)
    # It is the job's own: the next one without it keeps everything again.
    back, _ = family_device.train(plain, policy)
    assert all(torch.equal(value, values(back)[name]) for name, value in values(expected).items())


def test_blocks_are_computed_again_with_the_policy_that_is_trained(family_device, monkeypatch):
    roles = []
    activate = PolicyModel._activate
    monkeypatch.setattr(PolicyModel, "_activate", lambda self, role: (roles.append(role), activate(self, role))[1])
    backward = torch.autograd.backward

    def watched(*arguments, **named):
        assert roles[-1] == "current"
        return backward(*arguments, **named)

    monkeypatch.setattr(torch.autograd, "backward", watched)
    family_device.train(job_for(family_device, gradient_checkpointing=True), moved(family_device))
    assert {"old", "current"} <= set(roles)


def test_prompts_are_held_once_a_text_and_noise_once_a_micro_batch(family_device, monkeypatch):
    rows, most = [], 0
    update = training.Trainer._update
    monkeypatch.setattr(
        training.Trainer,
        "_update",
        lambda self, job, policy, c, *more: (rows.append(len(c)), update(self, job, policy, c, *more))[1],
    )
    noises = Endpoints._noises

    def counted(self, part, inner):
        nonlocal most
        most = max(most, len(part))
        return noises(self, part, inner)

    monkeypatch.setattr(Endpoints, "_noises", counted)
    family_device.train(job_for(family_device, samples=7), moved(family_device))
    assert rows == [len(TEXTS)] and most == 2


def test_a_bfloat16_network_is_trained_in_float32_weights_by_float32_losses(family_device):
    precise = family_device
    coarse = Device(precise.model.model_copy(update={"dtype": "bfloat16"}), CPU)
    job = job_for(precise, optimizer_steps=1)
    (expected, whole), (found, rounded) = precise.train(job, moved(precise)), coarse.train(job, moved(precise))
    assert {value.dtype for value in values(found).values()} == {torch.float32}
    assert rounded.metrics["train/loss"] == pytest.approx(whole.metrics["train/loss"], rel=0.1)
    one, other = (
        torch.cat([v.flatten() for n, v in sorted(state.optimizer.items()) if n.endswith("exp_avg")])
        for state in (expected, found)
    )
    assert torch.nn.functional.cosine_similarity(one, other, dim=0) > 0.9
    # Float32 carries more than bfloat16 would: something of the gradient lies below its last bit.
    assert not torch.equal(other, other.bfloat16().float())


def test_the_precision_of_training_is_in_its_key():
    described = {
        dtype: describe_numerics(tiny_spec("flux", dtype=dtype), None, CPU) for dtype in ("auto", "float32", "bfloat16")
    }
    assert described["auto"] == described["float32"] and described["float32"]["autocast"] == "off"
    assert described["bfloat16"]["autocast"] == "bfloat16"


@pytest.mark.parametrize(("residual", "both"), [("conditional", 0), ("guided", 1)])
def test_only_the_roles_that_ask_for_guidance_have_it_in_training(residual, both, monkeypatch):
    device = Device(tiny_spec("sd3", guidance_scale=3.0), CPU)
    objective = {"name": "ram", "options": {"residual": residual}}
    job = job_for(device, objective=objective, micro_batch=8)
    policy = moved(device)
    rows = []
    velocity = type(device.family).velocity

    def counted(self, module, x, sigma, conditioning):
        rows.append(self.spec.guidance_scale)
        return velocity(self, module, x, sigma, conditioning)

    monkeypatch.setattr(type(device.family), "velocity", counted)
    device.train(job, policy)
    assert rows.count(3.0) == 4 * both  # two micro-batches in each of two optimizer steps
    assert rows.count(1.0) == 4 * (3 - both)
