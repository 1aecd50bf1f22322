"""Runs whose objective learns from noisy paths: kept, found again, verified, and exactly resumed."""

import random
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from solrl_tasks.stages import session as sessions
from solrl_tasks.stages.iteration import run_all, run_step
from solrl_tasks.stages.session import open_session, prepare
from solrl_tasks.store.root import Store
from solrl_tasks.store.runs import view_run
from solrl_tasks.store.samples import Samples
from solrl_tasks.workers.inline import InlineWorker
from solrl_tasks.workers.numerics import default_device
from tests.support.contents import run_contents
from tests.support.killing import (
    Kill,
    check_kill_left_no_damage,
    check_little_was_redone,
    leftovers,
    random_kills,
    run_child,
)
from tests.support.micro import micro_recipe, write_prompts
from tests.support.wholeness import check_whole

UPDATE = {
    "update__objective": {"name": "grpo", "options": {"window": {"size": 2, "start": 0, "stop": 3}, "clip": 0.01}},
    "update__old": {"schedule": "copy"},
    "update__times_per_sample": 2,
    "regenerate__steps": 4,
    "regenerate__sampler": "euler",
}


@pytest.fixture(scope="module")
def recipe(micro_model, tmp_path_factory):
    return micro_recipe(micro_model, write_prompts(tmp_path_factory.mktemp("prompts")), iterations=1, **UPDATE)


@pytest.fixture(scope="module")
def worker(recipe):
    return InlineWorker(recipe.model, default_device())


@pytest.fixture(scope="module")
def finished(recipe, worker, tmp_path_factory):
    root = tmp_path_factory.mktemp("finished") / "store"
    finish(root, recipe, worker)
    return root, run_contents(root, "run")


def finish(root, recipe, worker, run_id="run"):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sessions, "InlineWorker", lambda *_: worker)
        with open_session(root, run_id, recipe) as session:
            return list(run_all(session))


def kept(root, name):
    return root / view_run(Store(root), "run").summary(1)["refs"][name]["path"]


def samples_of(root, name):
    return Samples.load(Store(root), kept(root, name).name)


def test_paths_are_kept_with_the_samples_and_end_in_them(finished, recipe):
    samples = samples_of(finished[0], "regenerate")
    paths, latents = samples.paths(), samples.latents()
    assert samples.states == 3
    assert paths.shape == (2, 4, 3, *samples.latent_shape)
    assert np.isfinite(paths).all()
    assert not np.array_equal(paths[:, :, -1], latents)
    # An audit looks at the same paths, and keeps none of them.
    assert samples_of(finished[0], "audit").states == 0
    metrics = view_run(Store(finished[0]), "run").summary(1)["metrics"]
    assert metrics["train/step_noise"] == pytest.approx(1.0, abs=0.1)
    assert {"train/ratio_gap", "train/clipped", "rank/audit_spearman"} <= set(metrics)


def test_audited_images_are_those_that_are_trained_on(finished):
    trained, audited = (samples_of(finished[0], name) for name in ("regenerate", "audit"))
    row = trained.indices[0]
    np.testing.assert_allclose(audited.latents()[0][row], trained.latents()[0], rtol=1e-3, atol=1e-4)


def test_what_is_kept_is_used_again_and_other_noise_is_sampled_anew(finished, recipe, worker, tmp_path):
    root = Path(shutil.copytree(finished[0], tmp_path / "store"))
    before = worker.counters.forwards
    again = recipe.model_copy(update={"name": "again"})
    finish(root, again, worker, "again")
    assert worker.counters.forwards == before
    moved = again.model_dump(mode="json")
    moved["update"]["objective"]["options"]["eta"] = 0.5
    summaries = finish(root, type(recipe).model_validate(moved), worker, "other")
    assert summaries[1].refs["explore"].key == kept(root, "explore").name
    assert summaries[1].refs["regenerate"].key != kept(root, "regenerate").name


def flip(path):
    data = bytearray(path.read_bytes())
    data[-1 - len(data) // 50] ^= 0x10
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("damage", [Path.unlink, flip], ids=["deleted", "flipped"])
@pytest.mark.parametrize("part", ["values/c/0/0/0/0/0/0", "ledger/c/1/0/0", "values/zarr.json"])
def test_damaged_paths_are_found_and_made_again(part, damage, finished, recipe, worker, tmp_path):
    root = Path(shutil.copytree(finished[0], tmp_path / "store"))
    damage(kept(root, "regenerate") / "data.zarr/paths" / part)
    finish(root, recipe, worker)
    assert run_contents(root, "run") == finished[1]
    check_whole(root, "run", recipe)


@pytest.fixture(scope="module")
def whole(recipe, tmp_path_factory):
    root = tmp_path_factory.mktemp("whole") / "store"
    return run_child(root, "run", recipe), run_contents(root, "run")


PLACES = [
    Kill(r"1/regenerate/forward", 3),
    Kill(r"1/regenerate/replace .*/paths/values/c/0/0", after=True),
    Kill(r"1/regenerate/replace .*/paths/ledger/c/0/0"),
    Kill(r"1/regenerate/replace .*/paths/ledger/c/1/0", after=True),  # paths marked, latents not
    Kill(r"1/regenerate/replace .*/latents/values/c/1/0", after=True),
    Kill(r"1/update/forward", 2),
    Kill(r"1/update/optimizer step", 1, after=True),
    Kill(r"1/update/rename policies/KEY"),
]


def test_killed_at_place_after_place_it_ends_the_same(recipe, whole, tmp_path):
    root = tmp_path / "store"
    attempts = []
    for kill in PLACES:
        attempts.append(run_child(root, "run", recipe, kill))
        assert attempts[-1].killed, f"no such event: {kill}"
        assert re.match(kill.pattern, attempts[-1].events[-1])
        check_kill_left_no_damage(root, attempts[-1])
    attempts.append(run_child(root, "run", recipe))
    assert run_contents(root, "run") == whole[1]
    assert leftovers(root) == []
    check_little_was_redone(attempts, whole[0], recipe)


@pytest.mark.slow
def test_killed_at_random_it_ends_the_same(recipe, tmp_path):
    random_kills(tmp_path, recipe, 8, random.Random(5), print)


ADJOINT = {
    "rewards": [{"name": "brightness"}],
    "select__rule": "random_keep",
    "update__objective": {"name": "adjoint-matching", "options": {"multiplier": 50}},
    "update__times_per_sample": 2,
    "regenerate__sampler": "euler",
    "audit__every": 0,
}


def test_adjoint_matching_runs_and_resumes(micro_model, tmp_path):
    recipe = micro_recipe(micro_model, write_prompts(tmp_path), **ADJOINT)
    with open_session(tmp_path / "store", "run", recipe) as session:
        found = [run_step(session, step) for step in (0, 1, 2)]
    assert {"train/adjoint_square", "train/reference_gap"} <= set(found[2].metrics)
    before = run_contents(tmp_path / "store", "run")
    shutil.rmtree(tmp_path / "store" / found[1].refs["update"].path)
    with open_session(tmp_path / "store", "run", recipe) as session:
        list(run_all(session))
    assert run_contents(tmp_path / "store", "run") == before


def test_adjoint_matching_with_a_reward_without_gradient_is_refused(micro_model, tmp_path):
    recipe = micro_recipe(micro_model, write_prompts(tmp_path), **{**ADJOINT, "rewards": [{"name": "colourfulness"}]})
    with pytest.raises(ValueError, match=r"colourfulness is not differentiable.*brightness"):
        prepare(recipe)


def test_a_sliding_window_samples_other_steps_in_other_iterations(micro_model, tmp_path):
    options = {"step": "cps", "eta": 0.8, "log_prob": "distance", "window": {"size": 1, "every": 1}}
    changes = {**UPDATE, "update__objective": {"name": "grpo", "options": options}, "update__times_per_sample": 1}
    recipe = micro_recipe(micro_model, write_prompts(tmp_path), audit__every=0, evaluate__every=0, **changes)
    with open_session(tmp_path / "store", "run", recipe) as session:
        found = [run_step(session, step) for step in (1, 2)]
    specs = [Samples.load(Store(tmp_path / "store"), one.refs["regenerate"]).spec["noise"] for one in found]
    assert [spec["window"]["start"] for spec in specs] == [0, 1]
    assert specs[0]["step"] == "cps@1"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"regenerate__sampler": "dpm2"}, r"regenerate\.sampler is dpm2, but grpo"),
        ({"update__times_per_sample": 3}, r"update\.times_per_sample is 3, but only 2 steps"),
        ({"update__old": {"schedule": "ramp"}}, r"update\.old\.schedule is ramp"),
        ({"regenerate__steps": 3}, r"does not fit into 3 steps.*regenerate\.steps"),
        ({"update__advantage": "pool", "update__advantage_mean": "leave_one_out"}, r"update\.advantage_mean"),
    ],
)
def test_a_recipe_that_cannot_learn_from_paths_is_refused(changes, message, micro_model, tmp_path):
    recipe = micro_recipe(micro_model, write_prompts(tmp_path), **{**UPDATE, **changes})
    with pytest.raises(ValueError, match=message):
        prepare(recipe)
