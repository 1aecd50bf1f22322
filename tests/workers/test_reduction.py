"""Gradients and updates must not depend on how many devices make them."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from solrl_tasks.workers import reduction
from solrl_tasks.workers.reduction import ALONE, GradientSum, places, spans
from solrl_tasks.workers.state import ROLES
from solrl_tasks.workers.tally import Tally
from solrl_tasks.workers.training import TrainingError

SHAPES = ((3, 5), (7,), (2, 2, 2))


class Room:
    """Ranks in threads of one process, who wait for each other."""

    def __init__(self, world):
        self.world = world
        self._given = [None] * world
        self._barrier = threading.Barrier(world, timeout=60)

    def member(self, rank):
        return _Member(self, rank)

    def run(self, work):
        with ThreadPoolExecutor(self.world) as pool:
            return list(pool.map(lambda rank: work(self.member(rank)), range(self.world)))


class _Member:
    def __init__(self, room, rank):
        self._room, self.rank, self.world = room, rank, room.world

    def gather(self, tensor):
        room = self._room
        room._given[self.rank] = tensor.clone()
        room._barrier.wait()
        found = [one.clone() for one in room._given]
        room._barrier.wait()
        return found


def gradients(count, left_out=()):
    generator = torch.Generator().manual_seed(count)
    made = [[torch.randn(shape, generator=generator) for shape in SHAPES] for _ in range(count)]
    return [None if number in left_out else one for number, one in enumerate(made)]


def summed(parts, ranks):
    total = GradientSum(len(parts), ranks)
    for number in total.span:
        part = parts[number]
        total.add(None if part is None else [tensor.clone() for tensor in part])
    return total.total([torch.zeros(shape) for shape in SHAPES])


@given(st.integers(0, 40), st.integers(1, 9))
def test_spans_cover_everything_once_and_evenly(count, world):
    found = spans(count, world)
    assert [number for span in found for number in span] == list(range(count))
    sizes = [len(span) for span in found]
    assert len(found) == world and max(sizes) - min(sizes) <= 1


@given(st.integers(0, 30), st.integers(0, 30))
def test_places_are_the_largest_subtrees_of_a_span(start, length):
    covered = [number for level, place in places(range(start, start + length)) for number in span_of(level, place)]
    assert covered == list(range(start, start + length))
    for level, place in places(range(start, start + length)):
        parent = span_of(level + 1, place // 2)
        assert not (parent.start >= start and parent.stop <= start + length)


def span_of(level, number):
    return range(number << level, (number + 1) << level)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 13), st.integers(2, 5), st.sets(st.integers(0, 12), max_size=6))
def test_a_sum_has_the_same_bits_for_any_number_of_ranks(count, world, left_out):
    parts = gradients(count, left_out)
    alone = summed(parts, ALONE)
    everyone = Room(world).run(lambda ranks: summed(parts, ranks))
    if alone is None:
        assert everyone == [None] * world and all(part is None for part in parts)
        return
    for total in everyone:
        assert all(torch.equal(one, other) for one, other in zip(total, alone, strict=True))
    plain = [sum(part[place].double() for part in parts if part is not None) for place in range(len(SHAPES))]
    for one, other in zip(alone, plain, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-5)


def test_buckets_change_nothing(monkeypatch):
    parts = gradients(5, {3})
    monkeypatch.setattr(reduction, "BUCKET", 4)
    alone = summed(parts, ALONE)
    for total in Room(3).run(lambda ranks: summed(parts, ranks)):
        assert all(torch.equal(one, other) for one, other in zip(total, alone, strict=True))


def tensors(state):
    named = {f"{role}/{name}": value for role in ROLES for name, value in state.role(role).weights.items()}
    return named | {f"optimizer/{name}": value for name, value in state.optimizer.items()}


def together(devices, world, job, policy):
    """The update by several devices in threads: their states and the metrics of all."""
    made = Room(world).run(lambda ranks: devices[ranks.rank].train_part(job, policy, ranks))
    return [state for state, _, _ in made], Tally.merged([tally for _, tally, _ in made]).metrics()


@pytest.fixture(scope="module")
def devices(new_device, moved_policy, train_job):
    made = [new_device() for _ in range(3)]
    for device in made:
        # Loading is for one thread at a time.
        device.train(train_job(), moved_policy)
    return made


# 9 samples: whole micro-batches, a short last one, fewer of them than ranks, and a rank without any.
@pytest.mark.parametrize(("world", "micro"), [(2, 3), (3, 2), (2, 4), (3, 5), (3, 9)])
def test_an_update_is_the_same_for_any_number_of_devices(device, devices, moved_policy, train_job, world, micro):
    job = train_job(samples=9, micro_batch=micro, optimizer_steps=2, times_per_sample=2)
    alone, result = device.train(job, moved_policy)
    states, metrics = together(devices, world, job, moved_policy)
    for state in states:
        mine, theirs = tensors(state), tensors(alone)
        assert [name for name, value in theirs.items() if not torch.equal(value, mine[name])] == []
    assert metrics == result.metrics


def test_what_is_left_out_is_so_for_any_number_of_devices(device, devices, moved_policy, train_job):
    job = train_job(samples=9, micro_batch=2)
    job = replace(job, x0=torch.cat([job.x0[:4], torch.full_like(job.x0[:1], float("nan")), job.x0[5:]]))
    alone, result = device.train(job, moved_policy)
    assert result.metrics["train/skipped_micro_batches"] == 1
    states, metrics = together(devices, 3, job, moved_policy)
    assert all(torch.equal(value, tensors(states[1])[name]) for name, value in tensors(alone).items())
    assert metrics == result.metrics


def test_where_nothing_can_be_learned_every_rank_says_so(devices, moved_policy, train_job):
    job = train_job(samples=4, micro_batch=2)
    job = replace(job, x0=torch.full_like(job.x0, float("inf")))

    def failing(ranks):
        with pytest.raises(TrainingError, match="every micro-batch"):
            devices[ranks.rank].train_part(job, moved_policy, ranks)
        return True

    assert Room(2).run(failing) == [True, True]
