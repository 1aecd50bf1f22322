"""Whole runs of every family on its tiny pipeline, and what its training must satisfy."""

import numpy as np
import pytest
import torch

from solrl_tasks.models.lora import LoraState, init_lora
from solrl_tasks.models.roles import PolicyModel
from solrl_tasks.sampling.identity import initial_noise
from solrl_tasks.stages.iteration import run_all
from solrl_tasks.stages.session import open_session
from tests.support.contents import run_contents
from tests.support.micro import micro_recipe, write_prompts
from tests.support.tiny import FAMILIES, load, tiny_spec

EACH = pytest.mark.parametrize("name", FAMILIES)


def recipe_of(name, folder, **overrides):
    changes = {"model__family": name, "model__text_encoders": "release", **overrides}
    return micro_recipe(f"random:tiny-{name}", write_prompts(folder), **changes)


@EACH
@pytest.mark.parametrize("guidance", [1.0, 2.0], ids=["plain", "guided"])
def test_a_run_trains_and_measures(name, guidance, tmp_path):
    recipe = recipe_of(name, tmp_path, iterations=1, model__guidance_scale=guidance, audit__every=1)
    with open_session(tmp_path / "store", "run", recipe) as session:
        summaries = list(run_all(session))
        last = summaries[-1].metrics
        assert [summary.step for summary in summaries] == [0, 1]
        for metric in ("reward/proxy", "rank/kept_spearman", "rank/audit_spearman", "train/loss", "train/grad_norm"):
            assert np.isfinite(last[metric])
        assert last["train/grad_norm"] > 0
        assert session.worker.counters.loads == 1
    embeddings = list((tmp_path / "store").rglob("embeddings/**/*.safetensors"))
    assert len(embeddings) >= 2
    with open_session(tmp_path / "store", "run", recipe) as session:
        assert list(run_all(session)) == summaries
        assert session.worker.counters.loads == 0


@EACH
def test_two_runs_are_equal_byte_for_byte(name, tmp_path):
    for store in ("one", "two"):
        with open_session(tmp_path / store, "run", recipe_of(name, tmp_path, iterations=1)) as session:
            list(run_all(session))
    assert run_contents(tmp_path / "one", "run") == run_contents(tmp_path / "two", "run")


def test_dpm2_on_the_grid_of_sd3_is_refused_before_a_run_begins(tmp_path):
    recipe = recipe_of("sd3", tmp_path, explore__sampler="dpm2", explore__steps=6)
    with pytest.raises(ValueError, match=r"dpm2 on this sigma grid.*set model\.shift"):
        open_session(tmp_path / "store", "run", recipe).__enter__()
    assert not (tmp_path / "store").exists()
    once = recipe_of("sd3", tmp_path, explore__sampler="dpm2", explore__steps=6, model__shift=3.0)
    with open_session(tmp_path / "store", "run", once):
        pass


def gradients(family, paths, checkpointed):
    policy = PolicyModel(family.transformer, 4, 8.0, paths)
    policy.checkpoint(checkpointed)
    generator = torch.Generator().manual_seed(0)
    zero = init_lora(family.transformer, paths, 4, 8.0, 0)
    weights = {k: 0.2 * torch.randn(v.shape, generator=generator) for k, v in zero.weights.items()}
    policy.load("current", LoraState(4, 8.0, weights))
    x = initial_noise([1, 2], family.latent_shape)
    conditioning = family.encode(["a red circle", "two blue squares"])
    velocity = family.velocity(policy.module, x, torch.tensor([0.9, 0.3]), conditioning)
    velocity.square().sum().backward()
    return velocity.detach(), {name: parameter.grad for name, parameter in policy.trainable()}


@EACH
def test_checkpointing_changes_no_gradient(name):
    family = load(tiny_spec(name, dtype="float32"))
    paths = family.lora_targets("all")
    (plain, expected), (again, found) = (gradients(family, paths, enabled) for enabled in (False, True))
    assert torch.equal(plain, again)
    assert found.keys() == expected.keys()
    for key, gradient in expected.items():
        torch.testing.assert_close(found[key], gradient, rtol=1e-6, atol=1e-7)
    assert not getattr(family.transformer, "gradient_checkpointing", False)
    moved = {key.rpartition(".")[0] for key, gradient in found.items() if gradient is not None and gradient.any()}
    # The last block of SD3 drops the text stream, so its queries lead nowhere.
    idle = {"transformer_blocks.1.attn.add_q_proj"} if name == "sd3" else set()
    assert set(paths) - moved == idle
