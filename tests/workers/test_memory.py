"""What fits, where memory is pretended: the sizes that are tried, what is chosen, and what people are told."""

import weakref
from dataclasses import replace

import pytest
import torch

from solrl_tasks.config.recipe import ExtensionSpec, RewardSpec
from solrl_tasks.models.families.pipeline import PipelineFamily
from solrl_tasks.workers.jobs import Work
from solrl_tasks.workers.memory import SIZES, DeviceMemoryError, attempt, explained, halving, largest_fit, listed, told
from tests.support.lanes import HostLane

SAID = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 9.00 GiB of which 1.00 GiB is free. "
    "Of the allocated memory 5.00 GiB is allocated by PyTorch. If reserved but unallocated memory is large try setting"
)


def short(*_):
    raise torch.OutOfMemoryError(SAID)


class Linear:
    """A need of so much at rest and so much an image; notes which sizes were tried, and is short from a size on."""

    def __init__(self, rest, each, short_from=10**9):
        self.rest, self.each, self.short_from = rest, each, short_from
        self.tried = []

    def __call__(self, size):
        self.tried.append(size)
        if size >= self.short_from:
            short()
        return self.rest + self.each * size


@pytest.mark.parametrize("budget", [50, 109, 110, 120, 141, 250, 500, 1059, 1060, 10_000])
def test_the_largest_size_within_the_budget_is_found_without_trying_one_that_is_not(budget):
    need = Linear(100, 10)
    best = max((size for size in SIZES if 100 + 10 * size <= budget), default=None)
    assert largest_fit(need, budget) == best
    # Two sizes have to be known before a third can be foretold.
    assert all(100 + 10 * size <= budget for size in need.tried[2:])
    assert need.tried == list(SIZES[: len(need.tried)])


def test_a_shortage_ends_the_search_at_the_size_before():
    assert largest_fit(Linear(0, 1, short_from=30), 10**6) == 24
    assert largest_fit(Linear(0, 1, short_from=1), 10**6) is None


@pytest.mark.parametrize(("limit", "found"), [(1, None), (2, 1), (13, 12), (24, 12), (7, 6), (4, 3)])
def test_after_a_shortage_halves_are_tried_until_one_works(limit, found):
    need = Linear(0, 1, short_from=limit)
    assert halving(need, 24) == found
    assert need.tried == [12, 6, 3, 1][: len(need.tried)]


def test_an_attempt_that_fails_keeps_nothing_alive():
    kept = []

    def work():
        tensor = torch.zeros(3)
        kept.append(weakref.ref(tensor))
        short()

    assert attempt(work) is None and kept[0]() is None
    assert attempt(lambda: 3) == 3


def test_errors_of_other_kinds_are_not_taken_for_a_shortage():
    def broken(_):
        raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        largest_fit(broken, 100)
    with pytest.raises(RuntimeError, match="broken"):
        halving(broken, 8)


def test_what_torch_says_is_cut_to_what_people_need():
    said = told(torch.OutOfMemoryError(SAID))
    assert said.endswith("of which 1.00 GiB is free") and "PyTorch" not in said
    with (
        pytest.raises(DeviceMemoryError, match=r"engine x does not fit .*2\.00 GiB.*Held: vae 1\.50 GiB$"),
        explained("engine x", torch.device("cpu"), lambda: {"vae": 3 * 2**29, "text": 5}),
    ):
        short()
    assert listed({"text": 5}) == "next to nothing"


class Pretended:
    """A device of ``total`` bytes on which a transformer pass needs 100 bytes a row, and decoding after it 10."""

    def __init__(self, monkeypatch, total):
        self.total = total
        self._most = 0
        velocity, decode = PipelineFamily.velocity, PipelineFamily.decode

        def measured(family, module, x, *rest):
            self._use(100 * len(x))
            return velocity(family, module, x, *rest)

        def decoded(family, x0):
            self._use(10 * len(x0))
            return decode(family, x0)

        monkeypatch.setattr(PipelineFamily, "velocity", measured)
        monkeypatch.setattr(PipelineFamily, "decode", decoded)

    def _use(self, amount):
        if 1000 + amount > self.total:
            short()
        self._most = max(self._most, 1000 + amount)

    def held(self):
        return 1000

    def peak(self, work):
        self._most = 1000
        work()
        return self._most


@pytest.mark.parametrize(("total", "found"), [(1_300, 1), (2_100, 8), (4_000, 24), (50_000, 96)])
def test_a_device_finds_what_fits_without_counting_it(device, rollout_job, monkeypatch, total, found):
    meter = Pretended(monkeypatch, total)
    before = replace(device.counters)
    assert 1000 + 100 * found <= 0.9 * total
    assert device.fitting_chunk(rollout_job, [ExtensionSpec(name="bf16")], meter) == found
    assert replace(device.counters, syncs=0, loads=0) == replace(before, syncs=0, loads=0)


def test_a_device_too_small_for_one_image_says_so(device, rollout_job, monkeypatch):
    with pytest.raises(DeviceMemoryError, match=r"not even one image of 32 px .* model\.resolution"):
        device.fitting_chunk(rollout_job, (), Pretended(monkeypatch, 1_050))


@pytest.mark.parametrize("threaded", [False, True])
def test_a_rollout_that_runs_short_names_the_chunk_that_fits(device, rollout_job, monkeypatch, threaded):
    monkeypatch.setattr(device, "lane", HostLane() if threaded else None)
    Pretended(monkeypatch, 1_850)
    job = replace(rollout_job, chunk=12, field="explore.chunk")
    blocks = [
        Work(n, 0, tuple(range(n * 12, n * 12 + size)), (RewardSpec(name="colourfulness"),))
        for n, size in [(0, 4), (1, 12)]
    ]
    taken = []
    with pytest.raises(
        DeviceMemoryError, match=r"explore\.chunk is 12: .*Tried to allocate.*6 fit: set explore\.chunk to 6"
    ):
        taken.extend(result.work.token for result in device.rollout(job, blocks))
    assert taken == [0]


def test_where_not_even_one_image_fits_a_rollout_says_that(device, rollout_job, monkeypatch):
    Pretended(monkeypatch, 1_050)
    with pytest.raises(DeviceMemoryError, match=r"chunk is 4: .*Not even one fits: free the device"):
        list(device.rollout(rollout_job, [Work(0, 0, (0, 1, 2, 3), ())]))


def test_prompts_that_cannot_be_encoded_are_not_too_many_images(new_device, rollout_job, monkeypatch):
    """A smaller chunk would be no help."""
    device = new_device()

    def short(*_):
        raise torch.OutOfMemoryError(SAID)

    monkeypatch.setattr(type(device.family), "encode_text", short)
    with pytest.raises(DeviceMemoryError, match=r"^encoding prompts does not fit.*Tried to allocate.*Held") as caught:
        list(device.rollout(rollout_job, [Work(0, 0, (0, 1, 2, 3), ())]))
    assert "chunk" not in str(caught.value)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_an_update_that_runs_short_names_the_micro_batch_that_fits(
    device, new_device, moved_policy, train_job, monkeypatch, checkpointing
):
    job = train_job(micro_batch=8, gradient_checkpointing=checkpointing)
    with monkeypatch.context() as patch:
        Pretended(patch, 1_650)
        with pytest.raises(
            DeviceMemoryError, match=r"update\.micro_batch is 8: .*4 fit: set update\.micro_batch to 4"
        ) as caught:
            device.train(job, moved_policy)
    assert ("gradient_checkpointing to true" in str(caught.value)) != checkpointing
    # Nothing of the attempts is left in the weights or gradients.
    after, fresh = device.train(job, moved_policy)[0], new_device().train(job, moved_policy)[0]
    assert after.current.digest == fresh.current.digest


def test_memory_is_reported_by_holder(new_device, rollout_job, moved_policy, train_job):
    device = new_device()
    assert device.memory() == {"trainer": 0}
    list(device.rollout(rollout_job, [Work(0, 0, (0, 1), (RewardSpec(name="colourfulness"),))]))
    device.train(train_job(), moved_policy)
    report = device.memory()
    base = sum(p.nbytes for p in device.family.transformer.parameters())
    assert report["transformer"] >= base and report["vae"] > 0 and report["engine nvfp4-emulated"] > 0
    adapters = sum(weights.nbytes for weights in moved_policy.current.weights.values())
    assert report["trainer"] == 2 * adapters
