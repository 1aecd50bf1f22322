"""Overlapped blocks: the same results in the same order, the same errors at the same place, and honest seconds."""

import threading
import time

import pytest
import torch

from solrl_tasks.workers.jobs import Shown, Work, WorkResult
from solrl_tasks.workers.pipeline import in_hand, in_turn, overlapped
from tests.support.lanes import HostLane


class Broken(Exception):
    """What goes wrong in a test."""


class Recorded:
    """Stages that do nothing but say when, and fail where they are told to."""

    def __init__(self, fail=(), pauses=None):
        self.fail = fail
        self.pauses = pauses or {}
        self.events = []
        self.spans = []
        self.threads = set()
        self._one = threading.Lock()

    def _do(self, what, work):
        began = time.perf_counter()
        time.sleep(self.pauses.get(what, 0.0))
        with self._one:
            self.events.append((what, work.token))
            if what != "prepare":
                self.spans.append((began, time.perf_counter()))
        if (what, work.token) in self.fail:
            raise Broken(f"{what} {work.token}")

    def prepare(self, work):
        self._do("prepare", work)

    def draw(self, work):
        self._do("draw", work)
        return torch.tensor([work.token]) if work.needs_sampling else None

    def sample(self, work, noise):
        assert work.needs_sampling == (noise is not None)
        self._do("sample", work)
        return None if noise is None else noise * 10

    def show(self, work, latents):
        assert threading.current_thread() is threading.main_thread()
        self._do("show", work)
        return Shown(work, latents, None, None)

    def finish(self, shown):
        self.threads.add(threading.current_thread())
        self._do("finish", shown.work)
        return WorkResult(shown.work, shown.latents, None, {}, ())

    def busy(self):
        """Seconds in which something was being done: the union of all spans."""
        total, until = 0.0, float("-inf")
        for began, ended in sorted(self.spans):
            total += max(0.0, ended - max(began, until))
            until = max(until, ended)
        return total


def works(count, **given):
    return [Work(token, 0, (0,), (), **given) for token in range(count)]


def run(stages, blocks, overlap=True):
    return overlapped(stages, blocks, HostLane()) if overlap else in_turn(stages, blocks)


def outcome(stages, blocks, overlap):
    """Tokens and values as they came, and the error that ended them."""
    found = []
    try:
        for result in run(stages, blocks, overlap):
            found.append((result.work.token, None if result.latents is None else result.latents.item()))
    except Broken as error:
        found.append(str(error))
    return found


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_results_come_in_the_order_of_blocks(count):
    assert outcome(Recorded(), works(count), True) == [(n, 10 * n) for n in range(count)]
    assert outcome(Recorded(), works(count), False) == [(n, 10 * n) for n in range(count)]


@pytest.mark.parametrize("what", ["prepare", "draw", "sample", "show", "finish"])
@pytest.mark.parametrize("where", [0, 1, 3])
def test_an_error_is_raised_after_the_results_before_it(what, where):
    expected = [(n, 10 * n) for n in range(where)] + [f"{what} {where}"]
    for overlap in (True, False):
        assert outcome(Recorded({(what, where)}), works(4), overlap) == expected


def test_of_two_errors_the_one_of_the_earlier_block_counts():
    stages = Recorded({("finish", 1), ("sample", 2)})
    assert outcome(stages, works(4), True) == [(0, 0), "finish 1"]


@pytest.mark.parametrize("where", [0, 1, 3])
def test_an_error_of_asking_for_blocks_comes_after_the_results_of_those_given(where):
    def given():
        yield from works(where)
        raise Broken("no more")

    for overlap in (True, False):
        assert outcome(Recorded(), given(), overlap) == [*[(n, 10 * n) for n in range(where)], "no more"]


def test_a_block_is_sampled_while_the_one_before_is_finished_and_its_noise_is_there_by_then():
    stages = Recorded()
    meeting = threading.Barrier(2, timeout=20)

    def meet(work, token):
        if work.token == token:
            meeting.wait()

    sample, finish = stages.sample, stages.finish
    stages.sample = lambda work, noise: (meet(work, 1), sample(work, noise))[1]
    stages.finish = lambda shown: (meet(shown.work, 0), finish(shown))[1]
    assert [result.work.token for result in run(stages, works(3))] == [0, 1, 2]
    assert stages.events.index(("draw", 1)) < stages.events.index(("finish", 0))
    assert stages.events.index(("draw", 2)) < stages.events.index(("finish", 1))
    assert threading.main_thread() not in stages.threads


def test_no_more_than_one_block_is_ahead_of_those_taken():
    stages = Recorded()
    results = run(stages, works(9))
    for taken in range(5):
        assert next(results).work.token == taken
        sampled = {token for what, token in stages.events if what == "sample"}
        assert len(sampled) == taken + 2
    results.close()


def test_one_after_the_other_looks_at_no_block_before_the_one_before_it_is_taken():
    stages = Recorded()
    results = run(stages, works(3), overlap=False)
    next(results)
    assert {token for _, token in stages.events} == {0}
    next(results)
    assert [what for what, token in stages.events if token == 1] == ["prepare", "draw", "sample", "show", "finish"]
    assert stages.threads == {threading.main_thread()}


def test_the_first_sampled_block_has_the_device_to_itself():
    stages = Recorded(pauses={"finish": 0.05})
    blocks = [*works(1, latents=torch.zeros(1)), *[Work(n, 0, (0,), ()) for n in (1, 2)]]
    assert [result.work.token for result in run(stages, blocks)] == [0, 1, 2]
    assert stages.events.index(("finish", 0)) < stages.events.index(("sample", 1))
    assert stages.events.index(("sample", 2)) < stages.events.index(("finish", 1))


@pytest.mark.parametrize("how", ["close", "throw", "collect", "error"])
def test_a_rollout_that_ends_early_leaves_nothing_running(how):
    before = set(threading.enumerate())
    stages = Recorded({("finish", 1)} if how == "error" else (), pauses={"finish": 0.05})
    lane, settled = HostLane(), []
    lane.settle = lambda: settled.append(True)
    results = overlapped(stages, works(5), lane)
    next(results)
    if how == "close":
        results.close()
    elif how == "collect":
        del results
    elif how == "throw":
        with pytest.raises(KeyboardInterrupt):
            results.throw(KeyboardInterrupt())
    else:
        with pytest.raises(Broken):
            next(results)
    assert set(threading.enumerate()) == before and settled == [True]
    done = list(stages.events)
    time.sleep(0.1)
    assert stages.events == done


@pytest.mark.parametrize("pauses", [{"sample": 0.02, "finish": 0.01}, {"sample": 0.01, "finish": 0.03}], ids=str)
@pytest.mark.parametrize("taking", [0.0, 0.05])
def test_seconds_add_up_to_the_time_in_which_something_was_done(pauses, taking):
    for overlap in (True, False):
        stages = Recorded(pauses=pauses)
        started = time.perf_counter()
        seconds = []
        for result in run(stages, works(5), overlap):
            seconds.append(result.seconds)
            time.sleep(taking)
        elapsed = time.perf_counter() - started
        assert all(s > 0 for s in seconds)
        # Waiting for whoever takes the results, five times 0.05 s, would be far outside.
        assert stages.busy() - 0.005 <= sum(seconds) <= stages.busy() + 0.08
        assert sum(seconds) <= elapsed


def test_loading_is_not_charged_to_a_block():
    (result,) = run(Recorded(pauses={"prepare": 0.2}), works(1))
    assert result.seconds < 0.1


class Dealt:
    """Blocks given as results are taken, so many in hand at most, by somebody who has to be asked three times."""

    def __init__(self, blocks, in_hand):
        self.left, self.in_hand, self.taken, self.given, self.dry = list(blocks), in_hand, 0, 0, 0
        self.asked = 3

    def __iter__(self):
        while self.left:
            if self.given - self.taken < self.in_hand and self.asked >= 3:
                self.given += 1
                yield self.left.pop(0)
            elif self.given - self.taken < self.in_hand:
                self.asked += 1
                yield None
            else:
                self.dry += 1
                assert self.dry < 2000, (
                    "nothing comes any more: the next block waits for a result, and that for a block"
                )
                time.sleep(0.001)
                yield None

    def take(self, result):
        self.taken += 1
        self.asked = 0
        return result.work.token, result.latents.item()


@pytest.mark.parametrize("overlap", [True, False])
@pytest.mark.parametrize("given", [1, 2, 3, 4])
def test_results_do_not_wait_for_blocks_that_are_given_when_they_are_taken(given, overlap):
    dealt = Dealt(works(6), given)
    found = [dealt.take(result) for result in run(Recorded(pauses={"finish": 0.01}), dealt, overlap)]
    assert found == [(n, 10 * n) for n in range(6)]


@pytest.mark.parametrize("what", ["prepare", "draw", "sample", "show", "finish"])
def test_an_error_is_raised_after_the_results_before_it_where_blocks_are_dealt(what):
    for given in (1, 2, 3):
        dealt, found = Dealt(works(5), given), []
        with pytest.raises(Broken, match=f"{what} 3"):
            for result in run(Recorded({(what, 3)}), dealt):
                found.append(dealt.take(result)[0])
        assert found == [0, 1, 2]


def test_with_enough_in_hand_noise_is_drawn_before_the_thread_is_taken_by_the_end_of_the_block_before():
    """The next block is waited for while another is finished; here that is not finished before."""
    count = 6
    stages, dealt = Recorded(), Dealt(works(count), in_hand(torch.device("cuda")))
    there = [threading.Event() for _ in range(count)]
    prepare, finish = stages.prepare, stages.finish
    stages.prepare = lambda work: (there[work.token].set(), prepare(work))[1]

    def finished(shown):
        there[min(shown.work.token + 2, count - 1)].wait(2.0)
        return finish(shown)

    stages.finish = finished
    for result in run(stages, dealt):
        dealt.take(result)
    for n in range(2, count):
        assert stages.events.index(("draw", n)) < stages.events.index(("finish", n - 1))
