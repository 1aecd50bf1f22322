"""A device: what it samples depends on what is asked, and on nothing that it did before."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from solrl_tasks.config.recipe import ExtensionSpec, RewardSpec
from solrl_tasks.sampling.identity import candidate_seed, initial_noise
from solrl_tasks.workers.device import Device
from solrl_tasks.workers.jobs import Work

ENGINES = {
    "bf16": ExtensionSpec(name="bf16"),
    "nvfp4": ExtensionSpec(name="nvfp4-emulated"),
    "nvfp4-row": ExtensionSpec(name="nvfp4-emulated", options={"activation_scale": "row"}),
}
CHUNK = 4


def work(row, candidates, **given):
    return Work((row, tuple(candidates)), row, tuple(candidates), (RewardSpec(name="colourfulness"),), **given)


def blocks(*places):
    """Blocks (row, number) of CHUNK candidates."""
    return [work(row, range(number * CHUNK, (number + 1) * CHUNK)) for row, number in places]


def results(device, job, works):
    """Latents, images and rewards by block."""
    return {
        result.work.token: (result.latents.numpy(), result.images, result.rewards["colourfulness@1"])
        for result in device.rollout(job, works)
    }


def assert_same(found, expected):
    for token, arrays in found.items():
        for mine, theirs in zip(arrays, expected[token], strict=True):
            assert mine.tobytes() == theirs.tobytes(), token


@pytest.fixture(params=ENGINES)
def job(request, rollout_job):
    return replace(rollout_job, engine=ENGINES[request.param])


def test_a_block_does_not_depend_on_the_others_or_their_order(device, job):
    everything = results(device, job, blocks((0, 0), (0, 1), (1, 0), (2, 0)))
    assert_same(results(device, job, blocks((2, 0), (0, 1), (1, 0), (0, 0))), everything)
    assert_same(results(device, job, blocks((0, 1))), everything)


def test_a_prompt_is_its_key_and_not_its_place(device, job):
    everything = results(device, job, blocks((2, 0), (1, 0)))
    part = replace(job, prompts=job.prompts.subset([2, 1]))
    moved = results(device, part, blocks((0, 0), (1, 0)))
    assert_same({(2 - token[0], token[1]): arrays for token, arrays in moved.items()}, everything)


def test_one_scale_a_row_frees_an_image_from_its_batch_mates(device, rollout_job):
    for name, free in (("bf16", True), ("nvfp4-row", True), ("nvfp4", False)):
        job = replace(rollout_job, engine=ENGINES[name])
        (one,) = results(device, job, [work(0, [0, 1, 2, 3])]).values()
        (two,) = results(device, job, [work(0, [9, 1, 7, 8])]).values()
        assert one[0][0].tobytes() != two[0][0].tobytes()
        assert (one[0][1].tobytes() == two[0][1].tobytes()) == free, name


def test_the_same_candidate_starts_from_the_same_noise_everywhere(device, rollout_job, monkeypatch):
    starts = []
    velocity = device.family.velocity

    def watched(module, x, sigma, conditioning):
        if float(sigma[0]) == 1.0:
            starts.append(x.clone())
        return velocity(module, x, sigma, conditioning)

    monkeypatch.setattr(device.family, "velocity", watched)
    results(device, rollout_job, [work(0, [0, 1, 2, 3])])
    results(device, replace(rollout_job, engine=ENGINES["bf16"], steps=3), [work(0, [2, 5])])
    results(device, replace(rollout_job, exploration_seed=12), [work(0, [2, 5])])
    results(device, rollout_job, [work(1, [2, 5])])
    assert torch.equal(starts[0][2], starts[1][0])
    others = [starts[0][0], starts[0][1], starts[1][1], starts[2][0], starts[3][0]]
    assert all(not torch.equal(starts[0][2], other) for other in others)
    seed = candidate_seed(11, rollout_job.prompts.keys[0], 2)
    assert torch.equal(starts[0][2], initial_noise([seed], device.family.latent_shape)[0])


def test_sampling_neither_reads_nor_moves_the_global_generator(device, job):
    torch.manual_seed(1)
    one = results(device, job, blocks((0, 0)))
    torch.manual_seed(2)
    before = torch.get_rng_state()
    assert_same(results(device, job, blocks((0, 0))), one)
    assert torch.equal(torch.get_rng_state(), before)


def test_an_engine_is_what_its_policy_is_after_any_number_of_syncs(device, new_device, job, moved_policy):
    states = [moved_policy.current, moved_policy.old, None]
    base = {name: value.clone() for name, value in device.family.transformer.state_dict().items()}
    for turn in range(20):
        device.sync(job.engine, states[turn % 3])
    for state in (moved_policy.current, None):
        asked = replace(job, lora=state)
        fresh: Device = new_device()
        assert_same(results(device, asked, blocks((0, 0))), results(fresh, asked, blocks((0, 0))))
    assert all(torch.equal(value, base[name]) for name, value in device.family.transformer.state_dict().items())


def test_a_policy_that_is_held_already_is_not_synced_again(new_device, rollout_job, moved_policy):
    device = new_device()
    job = replace(rollout_job, lora=moved_policy.old)
    results(device, job, blocks((0, 0), (1, 0)))
    results(device, job, blocks((0, 1)))
    assert (device.counters.loads, device.counters.syncs) == (1, 1)
    assert device.counters.forwards == 3 * CHUNK * job.steps
    assert device.counters.decoded == device.counters.scored == 3 * CHUNK


def test_training_and_sampling_do_not_disturb_each_other(device, new_device, rollout_job, moved_policy, train_job):
    job = replace(rollout_job, lora=moved_policy.old)
    before = results(device, job, blocks((0, 0)))
    device.train(train_job(), moved_policy)
    assert_same(results(device, job, blocks((0, 0))), before)
    assert_same(results(new_device(), job, blocks((0, 0))), before)


def test_blocks_that_bring_images_or_latents_are_only_scored(new_device, device, rollout_job):
    (sampled,) = results(device, rollout_job, blocks((0, 0))).values()
    scorer = new_device()
    kept = work(0, range(CHUNK), images=sampled[1])
    (result,) = scorer.rollout(rollout_job, [kept])
    assert result.latents is None and np.array_equal(result.rewards["colourfulness@1"], sampled[2])
    assert (scorer.counters.loads, scorer.counters.scored) == (0, CHUNK)
    (result,) = scorer.rollout(rollout_job, [work(0, range(CHUNK), latents=torch.from_numpy(sampled[0]))])
    assert np.array_equal(result.images, sampled[1])
    assert np.array_equal(result.rewards["colourfulness@1"], sampled[2])
    assert scorer.counters.forwards == 0


def test_latents_that_are_not_finite_make_invalid_images_that_are_named(device, rollout_job):
    (sampled,) = results(device, rollout_job, blocks((0, 0))).values()
    latents = torch.from_numpy(sampled[0].copy())
    latents[2, 0, 0, 0] = float("nan")
    (result,) = device.rollout(rollout_job, [work(0, range(CHUNK), latents=latents)])
    assert np.isnan(result.rewards["colourfulness@1"]).tolist() == [False, False, True, False]
    assert result.failures == ("image 2 of the block has non-finite pixels",)
