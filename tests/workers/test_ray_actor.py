"""An actor without a cluster, its blocks overlapped as beside a GPU."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from solrl_tasks.workers.ray_actor import DeviceActor
from solrl_tasks.workers.transport import pack_work
from tests.support.lanes import HostLane
from tests.workers.test_rollout import block

SECONDS = 20.0


@pytest.fixture
def actor(device):
    """As Ray makes it, with the device of the other tests and a second thread for it."""
    actor = DeviceActor(device.model, None, 1, {})
    actor._device = device
    return actor


@pytest.fixture
def calls():
    """Threads, as Ray's, in which calls of an actor wait for their answer."""
    with ThreadPoolExecutor(8) as pool:
        yield pool


@pytest.mark.parametrize("in_hand", [1, 2, 3])
def test_results_come_while_the_actor_has_no_more_blocks(device, actor, calls, rollout_job, monkeypatch, in_hand):
    """Who gives blocks waits for results: a result that waits for the next block never comes."""
    blocks = [block(row, number) for number in range(2) for row in range(3)]
    plain = [result.images.tobytes() for result in device.rollout(rollout_job, blocks)]
    monkeypatch.setattr(device, "lane", HostLane())

    def give(work):
        return calls.submit(actor.block, 0, rollout_job, "base", None, *pack_work(work, 0))

    flight = [give(work) for work in blocks[:in_hand]]
    found = []
    try:
        for work in [*blocks[in_hand:], *[None] * in_hand]:
            found.append(flight.pop(0).result(SECONDS).images.tobytes())
            if work is not None:
                flight.append(give(work))
        # And what is no block is done meanwhile.
        assert calls.submit(actor.counters).result(SECONDS)["scored"] > 0
    finally:
        calls.submit(actor.close, 0).result(SECONDS)
    assert found == plain
