"""Limits of what actors may take: what is slow and alive is left alone."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from solrl_tasks.workers import ray_limits, ray_update
from solrl_tasks.workers.jobs import Work
from solrl_tasks.workers.ray_cluster import WorkersError
from solrl_tasks.workers.ray_crew import Actor
from solrl_tasks.workers.ray_limits import FIRST, FLOOR, TIMES, HungError, Limits, Stopwatch, described, kind_of
from solrl_tasks.workers.ray_update import silent_or_behind


def test_a_limit_is_generous_until_it_knows_better_and_never_tight():
    limits = Limits()
    assert limits.of("block", True) == limits.of("block", False) == FIRST
    assert limits.of("update", True, unknown=5 * FIRST) == 5 * FIRST
    for seconds in (1.0, 2.0, 3.0):
        limits.learn("block", seconds)
    assert limits.of("block", False) == FLOOR and limits.of("block", True) == FIRST
    assert limits.of("other", False) == FIRST
    limits.learn("slow", 1000.0)
    assert limits.of("slow", False) == limits.of("slow", True) == TIMES * 1000
    assert limits.of("slow", False, size=3.0) == TIMES * 3000


def test_a_number_holds_for_everything_and_never_for_nothing():
    for fresh in (True, False):
        assert Limits(7.0).of("block", fresh, 9.0, FIRST) == 7.0
        assert Limits("never").of("block", fresh) is None
    assert "workers.stall is 7.0" in Limits(7.0).explained(7.0)


def test_time_in_which_nobody_looked_is_not_held_against_an_actor(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(ray_limits.time, "monotonic", lambda: now[0])
    watch = Stopwatch()
    for _ in range(3):
        now[0] += 1.0
        watch.look()
    now[0] += 10_000.0
    assert watch.look() < 20 and watch.elapsed == 10_003.0


def test_blocks_are_of_a_kind_that_take_about_as_long(rollout_job):
    work = Work("a", 0, (0, 1, 2, 3), rollout_job.rewards)
    kind = kind_of(rollout_job, work)
    assert kind == kind_of(replace(rollout_job, exploration_seed=3), replace(work, token="b", row=1))
    scored = replace(work, images=np.zeros((4, 8, 8, 3), np.uint8))
    others = [kind_of(replace(rollout_job, steps=9), work), kind_of(rollout_job, scored)]
    assert len({kind, *others}) == 3
    assert described(work) == "a block (prompt 0, candidates 0 to 3)"


@pytest.mark.parametrize(
    ("met", "silent", "faulty"),
    [((4, 5, 5), (), [0]), ((5, 5, 5), (), []), ((-1, 5), (), [0]), ((5, 5), (2,), [2]), ((4, 5), (2,), [2])],
)
def test_who_makes_the_others_wait_is_behind_or_silent(met, silent, faulty):
    actors = [Actor(None, f"actor-{number}") for number in range(3)]
    reached = [(actors[number], count) for number, count in enumerate(met)]
    assert silent_or_behind(reached, [actors[number] for number in silent]) == [actors[number] for number in faulty]


class Crew:
    """Of one actor, which is there each time it is asked for."""

    def __init__(self):
        self.limits, self.actor = Limits(), Actor(None, "actor-0")

    def everyone(self):
        return [self.actor]


def test_an_update_that_hangs_again_and_again_is_an_error_that_says_what_to_do(monkeypatch):
    tried = []

    def hang(*_):
        tried.append(1)
        raise HungError(f"try {len(tried)}; at fault: actor-0")

    monkeypatch.setattr(ray_update, "_attempt", hang)
    with pytest.raises(WorkersError, match=r"hung 3 times .*last time try 3; at fault: actor-0.*same run id"):
        ray_update.train_together(Crew(), 8, None, None)
    assert len(tried) == ray_update.HANGS


def test_what_updates_take_is_learnt_for_each_sample_and_not_from_an_actors_first(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(ray_limits.time, "monotonic", lambda: now[0])

    def take(*_):
        now[0] += 4000.0
        return [SimpleNamespace(digest="a policy", roles=frozenset())] * len(crew.everyone())

    monkeypatch.setattr(ray_update, "_attempt", take)
    monkeypatch.setattr(ray_update, "_joined", lambda *_: (None, None))
    crew = Crew()
    ray_update.train_together(crew, 8, None, None)
    assert crew.limits.of("update", False, 8, 9e9) == 9e9, "it loaded and compiled"
    ray_update.train_together(crew, 8, None, None)
    assert crew.limits.of("update", False, 2) == TIMES * 1000.0
    assert crew.actor.holds == {"a policy"}
