"""Exploring at a lower resolution: the same seeds, keys of their own, and rewards of images as large as the model's."""

import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from solrl_tasks.config.recipe import ExploreSpec, ModelSpec, Recipe, RewardSpec
from solrl_tasks.engines.bf16 import Bf16Engine
from solrl_tasks.rewards.base import reward_id
from solrl_tasks.rewards.pixels import enlarge
from solrl_tasks.rewards.scoring import make_reward
from solrl_tasks.sampling.identity import initial_noise, pool_noise
from solrl_tasks.stages import thumbnails
from solrl_tasks.stages.explore import explore
from solrl_tasks.stages.iteration import policy_after, run_all
from solrl_tasks.stages.plan import plan_explore, plan_regenerate
from solrl_tasks.stages.rescore import rescore
from solrl_tasks.stages.resolutions import UnsuitableError, allowed_resolutions, lowered
from solrl_tasks.stages.session import open_session
from solrl_tasks.stages.specs import BASE, pool_spec
from solrl_tasks.store.keys import key
from solrl_tasks.workers.inline import InlineWorker
from solrl_tasks.workers.numerics import default_device
from solrl_tasks.workers.rollout import Rollout
from solrl_tasks.workers.site import LocalSite
from tests.support.contents import run_contents
from tests.support.killing import Kill, check_little_was_redone, run_child
from tests.support.micro import micro_recipe, write_prompts
from tests.support.rewards import darkness
from tests.support.tiny import FAMILIES, tiny_spec

SIDE, SMALL = 32, 16
"""Of the micro model's images, and of those that are explored."""
DARKNESS = RewardSpec(name="tests.support.rewards:darkness")


def spec_of(recipe=None, **explore):
    """The spec of a pool, on a CPU, of a model of no files."""
    worker = SimpleNamespace(site=LocalSite(torch.device("cpu")))
    session = SimpleNamespace(recipe=recipe or Recipe(), worker=worker, base_digest="b" * 64)
    return pool_spec(session, BASE, "p" * 64, 1234, ExploreSpec(chunk=24, **explore))


# Keys


def test_pools_of_the_models_resolution_keep_the_key_that_they_had_before_there_was_another():
    for same in ({}, {"resolution": None}, {"resolution": 64}):
        assert key(spec_of(**same)) == "b30d7361b8c641c519c457c2"


def test_a_lower_resolution_and_where_its_noise_comes_from_are_in_the_key():
    spec = spec_of(resolution=32)
    assert spec["conditioning"]["resolution"] == 32
    assert spec["lowered"] == {"from": 64, "noise": "mean-v1", "scored": "bicubic-v1"}
    whole = spec_of(Recipe(model=ModelSpec(resolution=32)))
    assert len({key(whole), key(spec), key(spec_of(resolution=16)), key(spec_of())}) == 4


def test_numerics_are_those_of_the_resolution(monkeypatch):
    from solrl_tasks.models import dtypes
    from solrl_tasks.workers import numerics

    for module in (dtypes, numerics):
        monkeypatch.setattr(module, "device_class", lambda device: "sm_90")
    recipe = Recipe(model=ModelSpec(resolution=512))
    decode = {side: spec_of(recipe, resolution=side)["numerics"]["decode"] for side in (None, 256, 128)}
    assert decode == {None: "compiled", 256: "compiled", 128: "eager"}


# What is allowed


@pytest.mark.parametrize("name", FAMILIES)
def test_allowed_are_whole_parts_that_the_family_has_latents_for(name):
    cells = {"sana": 8}.get(name, 16)
    sides = [side for side in (96, 48, 32, 24, 16) if side % cells == 0]
    assert allowed_resolutions(tiny_spec(name, resolution=96)) == sides
    assert allowed_resolutions(tiny_spec(name, resolution=32)) == [32, 16]


def test_sana_needs_parts_of_its_own_cells(monkeypatch):
    from solrl_tasks.models.families.sana import Sana

    monkeypatch.setattr(Sana, "_cell", classmethod(lambda cls, vae: 32))
    assert allowed_resolutions(tiny_spec("sana", resolution=1024)) == [1024, 512, 256, 128, 64, 32]


@pytest.mark.parametrize("side", [24, 20, 33, 64])
def test_another_is_refused_with_those_that_are_allowed(side, recipe_of, tmp_path):
    recipe = recipe_of(explore__resolution=side)
    with pytest.raises(UnsuitableError, match=rf"explore\.resolution is {side}, .* 32 it can be 32, 16"):
        open_session(tmp_path / "store", "run", recipe).__enter__()
    assert not (tmp_path / "store").exists()


def test_the_grid_that_is_checked_is_that_of_the_resolution(micro_model, tmp_path, monkeypatch):
    from solrl_tasks.models.families.flux import Flux

    asked = []
    grid_of = Flux.grid_of

    def watched(spec, steps):
        asked.append((spec.resolution, steps))
        return grid_of(spec, steps)

    monkeypatch.setattr(Flux, "grid_of", watched)
    changes = {"explore__sampler": "dpm2", "regenerate__sampler": "dpm2", "explore__resolution": SMALL}
    with open_session(tmp_path / "store", "run", micro_recipe(micro_model, write_prompts(tmp_path), **changes)):
        assert asked == [(SMALL, 2), (SIDE, 3), (SIDE, 2)]


# Noise


def test_a_block_is_sampled_from_the_pooled_noise_of_its_seeds(opened):
    with opened("run", explore__resolution=SMALL) as session:
        job = plan_explore(session, 1, policy_after(session, 0))
        device = session.worker._device
        rollout = job.rollout(session, [])
        work = SimpleNamespace(needs_sampling=True, row=1, candidates=(5, 2))
        noise = Rollout(device.resident, rollout).draw(work)
        whole = initial_noise(rollout.seeds(1, [5, 2]), device.family.latent_shape)
        assert torch.equal(noise, pool_noise(whole, 2)) and noise.shape[-2:] == (2, 2)
        plain = replace(rollout, resolution=None)
        assert torch.equal(Rollout(device.resident, plain).draw(work), whole)


def fill(session):
    """Explores the first iteration; returns the job and the open pool."""
    job = plan_explore(session, 1, policy_after(session, 0))
    explore(session, job)
    return job, job.open(session)


def everything(job, pool):
    images = [pool.images(row, range(job.candidates)) for row in range(2)]
    return pool.rewards(job.reward_ids()[0], job.candidates), np.stack(images)


def test_blocks_do_not_depend_on_what_else_is_computed(opened):
    with opened("few", explore__resolution=SMALL, explore__candidates=4) as session:
        few = everything(*fill(session))
    with opened("more", explore__resolution=SMALL) as session:
        job, pool = fill(session)
        assert session.worker.counters.forwards == 2 * 4 * 2
        more = everything(job, pool)
    assert all(np.array_equal(a, b[:, :4]) for a, b in zip(few, more, strict=True))


# Images and rewards


def test_images_are_kept_as_sampled_and_scored_as_large_as_the_models(opened, monkeypatch):
    seen = []
    monkeypatch.setattr("tests.support.rewards.darkness", watching(seen))
    with opened("run", explore__resolution=SMALL, rewards=[DARKNESS.model_dump()]) as session:
        job, pool = fill(session)
        rewards, images = everything(job, pool)
    assert images.shape == (2, 8, SMALL, SMALL, 3)
    assert {image.shape[1:] for image in seen} == {(SIDE, SIDE, 3)}
    large = np.stack([enlarge(row, SIDE) for row in images])
    assert rewards == pytest.approx(1 - large.mean(axis=(2, 3, 4)) / 255, rel=1e-5)


def watching(seen):
    def watched(images, prompts, metadata):
        seen.append(images)
        return darkness(images, prompts, metadata)

    watched.version = "1"
    return watched


def test_a_reward_that_is_added_later_sees_what_it_would_have_seen(opened):
    both = [{"name": "colourfulness"}, DARKNESS.model_dump()]
    with opened("run", explore__resolution=SMALL) as session:
        _, pool = fill(session)
    rescore(pool, DARKNESS, InlineWorker(ModelSpec(), default_device()), default_device())
    later = pool.rewards(reward_id(make_reward(DARKNESS)), 8)
    shutil.rmtree(pool._folder.path)
    with opened("other", explore__resolution=SMALL, rewards=both) as session:
        _, again = fill(session)
        assert session.worker.counters.forwards
    assert again.key == pool.key
    assert np.array_equal(again.rewards(reward_id(make_reward(DARKNESS)), 8), later)


def test_pictures_are_kept_by_their_own_size(opened, monkeypatch):
    monkeypatch.setattr(thumbnails, "SIDE", SMALL)
    with opened("run", explore__resolution=SMALL, explore__store_images="thumbnails") as session:
        job = plan_explore(session, 1, policy_after(session, 0))
        samples = plan_regenerate(session, job, np.tile(np.arange(4), (2, 1)))
        assert (job.keep, samples.keep) == ("lossless", "thumbnails")
    with opened("whole", explore__store_images="thumbnails") as session:
        assert plan_explore(session, 1, policy_after(session, 0)).keep == "thumbnails"


# Whole runs


@pytest.mark.parametrize("name", FAMILIES)
def test_a_run_trains_and_measures(name, tmp_path):
    changes = {"model__family": name, "model__resolution": 64, "explore__resolution": SIDE, "audit__every": 1}
    recipe = micro_recipe(f"random:tiny-{name}", write_prompts(tmp_path), iterations=1, **changes)
    assert lowered(recipe.model, recipe.explore) == SIDE
    with open_session(tmp_path / "store", "run", recipe) as session:
        last = list(run_all(session))[-1]
        assert session.worker.counters.loads == 1
    for metric in ("reward/proxy", "rank/kept_spearman", "rank/audit_spearman", "train/loss"):
        assert np.isfinite(last.metrics[metric])
    assert "grid.png" in last.images
    with open_session(tmp_path / "store", "run", recipe) as session:
        assert list(run_all(session))[-1] == last
        assert session.worker.counters.loads == 0


def test_a_compiled_engine_takes_both_sizes(opened, monkeypatch):
    monkeypatch.setattr(Bf16Engine, "backend", "eager")
    compiled = {"name": "bf16", "options": {"execution": "compiled"}}
    changes = {f"{stage}__engine": compiled for stage in ("explore", "regenerate")}
    with opened("run", iterations=1, explore__resolution=SMALL, **changes) as session:
        list(run_all(session))


def test_killed_while_it_explores_it_ends_the_same(micro_model, tmp_path):
    recipe = micro_recipe(micro_model, write_prompts(tmp_path), iterations=1, explore__resolution=SMALL)
    whole = run_child(tmp_path / "whole", "run", recipe)
    places = [
        Kill(r"1/explore/forward", 2),
        Kill(r"1/explore/score"),
        Kill(r"1/explore/replace .*/rewards/.*/values/c/0/1", after=True),
        Kill(r"1/regenerate/forward", 3),
    ]
    attempts = [run_child(tmp_path / "store", "run", recipe, kill) for kill in places]
    assert all(attempt.killed for attempt in attempts)
    attempts.append(run_child(tmp_path / "store", "run", recipe))
    assert run_contents(tmp_path / "store", "run") == run_contents(tmp_path / "whole", "run")
    check_little_was_redone(attempts, whole, recipe)
