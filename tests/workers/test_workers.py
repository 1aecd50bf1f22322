"""What spreads work over actors, without any."""

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from solrl_tasks.config.load import RecipeError, parse_recipe
from solrl_tasks.config.recipe import Recipe, WorkersSpec
from solrl_tasks.stages.outcome import shown_actors
from solrl_tasks.workers import ray_cluster
from solrl_tasks.workers.jobs import Work, WorkResult
from solrl_tasks.workers.ray_cluster import Cluster, ClusterLostError, answers
from solrl_tasks.workers.ray_crew import reason
from solrl_tasks.workers.ray_rollout import Waiting
from solrl_tasks.workers.transport import (
    borrowed,
    pack_job,
    pack_result,
    pack_state,
    pack_work,
    unpack_job,
    unpack_result,
    unpack_state,
    unpack_work,
)


def work(token, **more):
    return Work(token=token, row=0, candidates=(0, 1), rewards=(), **more)


def test_where_work_is_done_is_in_no_record():
    recipe = Recipe.model_validate({"workers": {"kind": "ray", "actors": 4}})
    assert recipe.workers.actors == 4
    assert "workers" not in recipe.model_dump(mode="json") and "workers" not in recipe.model_dump_json()
    assert Recipe.model_validate({"workers": "ray"}).workers == WorkersSpec(kind="ray")
    longer = parse_recipe({"workers": "inline"}, {"workers.kind": "ray", "workers.actors": 2}, "here")
    assert longer.workers == WorkersSpec(kind="ray", actors=2)
    with pytest.raises(RecipeError, match=r"workers\.kind.*'inline' or 'ray'"):
        parse_recipe({"workers": "elsewhere"}, {}, "here")
    with pytest.raises(ValidationError):
        WorkersSpec(actors=0)


def test_blocks_that_come_back_go_first_and_nothing_is_asked_for_too_soon():
    asked = []

    def source():
        for number in range(5):
            asked.append(number)
            yield work(number)

    waiting = Waiting(source())
    assert waiting.fill(2) == 2 and asked == [0, 1]
    assert [waiting.take(), waiting.take()] == [0, 1]
    assert waiting.fill(1) == 1 and waiting.take() == 2
    waiting.give_back([1, 0])
    assert waiting.fill(9) == 4
    assert [waiting.take() for _ in range(4)] == [0, 1, 3, 4]
    assert waiting.fill(1) == 0 and [waiting.works[n].token for n in range(5)] == list(range(5))


def test_an_error_of_the_source_waits_for_what_came_before_it():
    def source():
        yield work(0)
        raise OSError("the store is gone")

    waiting = Waiting(source())
    assert waiting.fill(3) == 1
    assert str(waiting.error) == "the store is gone"
    waiting.drop()
    assert waiting.fill(1) == 0


def test_what_is_carried_comes_out_as_it_went_in(moved_policy, train_job):
    shares = [pack_state(moved_policy, share, 3) for share in range(3)]
    assert min(len(share.arrays) for share in shares) > 0
    state = unpack_state(*shares)
    assert state.current.digest == moved_policy.current.digest and state.ema.digest == moved_policy.ema.digest
    assert state.optimizer.keys() == moved_policy.optimizer.keys()
    assert all(torch.equal(value, state.optimizer[name]) for name, value in moved_policy.optimizer.items())
    assert (state.iteration, state.optimizer_step) == (1, 3)
    with pytest.raises(ValueError, match="tensors came with"):
        unpack_state(*shares[:2])
    job = train_job()
    carried = unpack_job(pack_job(job))
    assert torch.equal(carried.x0, job.x0) and carried.texts == job.texts and carried.paths is None
    latents = torch.randn(2, 3)
    packed, beside = pack_work(work("mine", latents=latents), 7)
    assert packed.token == 7 and packed.latents is None
    assert torch.equal(unpack_work(packed, beside).latents, latents)


def test_a_result_is_that_of_the_work_that_was_asked_for():
    asked = work("mine")
    images, latents = np.zeros((2, 4, 4, 3), np.uint8), torch.ones(2, 3)
    made = WorkResult(work(7), latents, images, {"r@1": np.ones(2, np.float32)}, ("one failed",), 2.0)
    found = unpack_result(pack_result(made), asked, "actor-1")
    assert found.work is asked and found.actor == "actor-1" and found.seconds == 2.0
    assert torch.equal(found.latents, latents) and found.failures == ("one failed",)
    assert not np.shares_memory(found.images, images)


def test_lent_memory_is_not_copied_and_nothing_warns():
    values = np.ones(4, np.float32)
    values.setflags(write=False)
    assert borrowed(values).data_ptr() == values.ctypes.data


def test_a_cluster_counts_as_lost_when_it_is_silent_for_long_enough(monkeypatch, free_ports):
    address = f"127.0.0.1:{free_ports[0]}"
    assert not answers(address) and not answers("auto")
    now = [100.0]
    monkeypatch.setattr(ray_cluster.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(ray_cluster, "answers", lambda address: False)
    cluster = Cluster(address, True)
    cluster.check()
    now[0] += ray_cluster.GRACE - 1
    cluster.check()
    monkeypatch.setattr(ray_cluster, "answers", lambda address: True)
    now[0] += 2
    cluster.check()
    monkeypatch.setattr(ray_cluster, "answers", lambda address: False)
    now[0] += 2
    cluster.check()
    now[0] += ray_cluster.GRACE + 1
    with pytest.raises(ClusterLostError, match=rf"{address} \(that this run started\) is lost.*same run id"):
        cluster.check()


def test_a_death_is_told_without_advice():
    said = "The actor died. Worker exit detail: It was killed. Some common causes include: (1) something"
    assert reason(RuntimeError(said)) == "It was killed."


def test_how_busy_actors_were_is_shown_where_there_are_several():
    assert shown_actors({"": 3.0}) == shown_actors({}) == ""
    assert shown_actors({"actor-0": 3.0, "actor-1": 4.25}) == "; 2 actors busy 3.0 to 4.2 s"
