"""Rollouts through the thread, with padding, and with prompts encoded ahead: the same bits as plain ones."""

from dataclasses import replace

import pytest
import torch

from solrl_tasks.config.recipe import ExtensionSpec, RewardSpec
from solrl_tasks.models.families.pipeline import PipelineFamily
from solrl_tasks.workers.device import Device
from solrl_tasks.workers.jobs import Work
from tests.support.lanes import HostLane

CHUNK = 4
REWARD = RewardSpec(name="colourfulness", timeout=60.0)
PIXELS = ExtensionSpec(name="pixels")


def block(row, number, size=CHUNK, **given):
    candidates = tuple(range(number * CHUNK, number * CHUNK + size))
    return Work((row, number), row, candidates, (REWARD,), features=(PIXELS,), **given)


def everything(results):
    """Every value of every block, as bytes."""
    return [
        (
            result.work.token,
            None if result.latents is None else result.latents.numpy().tobytes(),
            result.images.tobytes(),
            {name: values.tobytes() for name, values in (*result.rewards.items(), *result.features.items())},
            result.failures,
        )
        for result in results
    ]


@pytest.fixture
def threaded(device, monkeypatch):
    """The device with its second thread, as on CUDA."""
    monkeypatch.setattr(device, "lane", HostLane())
    return device


@pytest.mark.parametrize("engine", ["bf16", "nvfp4-emulated"])
def test_beside_or_one_after_the_other_gives_the_same_bits(device, rollout_job, moved_policy, monkeypatch, engine):
    job = replace(rollout_job, engine=ExtensionSpec(name=engine), lora=moved_policy.old)
    (kept,) = device.rollout(job, [block(2, 5)])
    spoiled = kept.latents.clone()
    spoiled[1] = float("nan")
    blocks = [
        block(0, 0),
        block(0, 1, images=kept.images),
        block(1, 0),
        block(1, 1, latents=spoiled),
        block(2, 0, size=3),
        block(0, 2),
    ]
    plain = everything(device.rollout(job, blocks))
    monkeypatch.setattr(device, "lane", HostLane())
    before = replace(device.counters)
    assert everything(device.rollout(job, blocks)) == plain
    assert device.counters.forwards - before.forwards == (3 * CHUNK + 3) * job.steps
    assert device.counters.decoded - before.decoded == 4 * CHUNK + 3
    assert device.counters.scored - before.scored == 5 * CHUNK + 3


def test_a_reward_that_fails_for_good_stops_a_threaded_rollout_where_it_would_stop_a_plain_one(
    device, threaded, rollout_job
):
    def too_few(images, prompts, metadata):
        too_few.calls += 1
        return [0.5] * (len(images) - (too_few.calls > 1))

    too_few.version, too_few.calls = "1", 0
    reward = RewardSpec(name="tests.support.rewards:darkness")
    blocks = [replace(block(0, number), rewards=(reward,)) for number in range(3)]
    device.resident.reward(reward)._scorer = too_few
    taken = []
    try:
        with pytest.raises(RuntimeError, match="returned 3 scores for 4 images"):
            taken.extend(result.work.token for result in threaded.rollout(rollout_job, blocks))
    finally:
        device.resident.rewards.clear()
    assert taken == [(0, 0)]


def test_short_blocks_are_padded_by_their_last_row_where_shapes_are_static(device, rollout_job, monkeypatch):
    job = replace(rollout_job, chunk=7)
    engine = device.engine(job.engine)
    (plain,) = device.rollout(job, [block(0, 0)])
    seen = []
    velocity = PipelineFamily.velocity

    def watched(self, module, x, sigma, conditioning):
        seen.append((len(x), len(sigma), len(conditioning)))
        torch.testing.assert_close(x[CHUNK:], x[CHUNK - 1 : CHUNK].expand(3, *x.shape[1:]))
        return velocity(self, module, x, sigma, conditioning)

    monkeypatch.setattr(PipelineFamily, "velocity", watched)
    monkeypatch.setattr(type(engine), "static_shapes", True)
    before = replace(device.counters)
    (padded,) = device.rollout(job, [block(0, 0)])
    assert seen == [(7, 7, 7)] * job.steps
    assert device.counters.forwards - before.forwards == CHUNK * job.steps
    assert device.counters.padded - before.padded == 3 * job.steps
    assert padded.latents.shape == plain.latents.shape and padded.images.shape == plain.images.shape
    torch.testing.assert_close(padded.latents, plain.latents, rtol=1e-4, atol=1e-4)


def test_whole_blocks_are_never_padded(device, rollout_job, monkeypatch):
    monkeypatch.setattr(type(device.engine(rollout_job.engine)), "static_shapes", True)
    before = device.counters.padded
    list(device.rollout(rollout_job, [block(0, 0)]))
    assert device.counters.padded == before


def test_only_prompts_that_will_be_sampled_are_encoded_before_the_first_block_and_each_text_once(
    new_device, rollout_job, monkeypatch
):
    device: Device = new_device()
    asked = []
    encode = PipelineFamily.encode_text

    def watched(self, text, *rest, **named):
        asked.append(text)
        return encode(self, text, *rest, **named)

    monkeypatch.setattr(PipelineFamily, "encode_text", watched)
    texts = [prompt.text for prompt in rollout_job.prompts.prompts]
    first, second = rollout_job.prompts.subset([0, 2]), rollout_job
    results = device.rollout(replace(second, rows=(0, 2)), [block(0, 0), block(2, 0), block(0, 1)])
    next(results)
    assert asked == [texts[0], texts[2]]
    assert len(list(results)) == 2
    list(device.rollout(replace(rollout_job, prompts=first), [block(0, 0), block(1, 0)]))
    assert asked == [texts[0], texts[2]]


def test_encoded_prompts_outlive_the_device(device, micro_model, rollout_job, tmp_path, monkeypatch):
    cache = tmp_path / "embeddings"
    plain = everything(device.rollout(rollout_job, [block(0, 0), block(1, 0)]))
    first = Device(device.model, device.device, cache)
    assert everything(first.rollout(rollout_job, [block(0, 0), block(1, 0)])) == plain
    assert len(list(cache.rglob("*.safetensors"))) == len(rollout_job.prompts)

    def absent(*_, **__):
        raise AssertionError("no text encoder is needed")

    monkeypatch.setattr(PipelineFamily, "encode_text", absent)
    later = Device(device.model, device.device, cache)
    assert everything(later.rollout(rollout_job, [block(0, 0), block(1, 0)])) == plain


def test_other_weights_between_two_blocks_do_not_reach_the_second(device, rollout_job, moved_policy):
    job = replace(rollout_job, lora=moved_policy.old)
    plain = everything(device.rollout(job, [block(0, 0), block(1, 0)]))
    results = device.rollout(job, [block(0, 0), block(1, 0)])
    found = [next(results)]
    device.sync(job.engine, moved_policy.current)
    assert everything([*found, *results]) == plain
