"""Seeds, noise and draws depend on names alone."""

import hashlib
import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from solrl_tasks.sampling import identity


def digest(tensor):
    return hashlib.sha256(np.ascontiguousarray(tensor.numpy())).hexdigest()[:32]


def test_seeds_are_those_of_every_earlier_release():
    # Pools written by earlier releases hold rewards of these seeds: a change needs a new SEED_SCHEME.
    assert identity.SEED_SCHEME == "sha256-philox-v1"
    assert identity.exploration_seed(42, 0) == 1363487072084108195
    assert identity.candidate_seed(7, "abc-0", 95) == 12565530211448537674


def test_noise_is_that_of_every_earlier_release():
    noise = identity.initial_noise([0, 1, 2**64 - 1], (4, 2, 3))
    assert digest(noise) == "933a0c17e2779320a0f09f9cf6059e97"
    assert digest(identity.training_noise(1, 2, 3, "abc-0", 4, (2, 5))) == "dd62c8967c98fd7d742a0ba32ad36dd7"
    assert identity.stream("a", 1).integers(0, 1000, 4).tolist() == [276, 285, 391, 372]


def test_noise_is_standard_normal_float32():
    noise = identity.initial_noise(range(200), (50, 50))
    assert noise.dtype == torch.float32
    assert noise.mean().item() == pytest.approx(0.0, abs=5e-3)
    assert noise.std().item() == pytest.approx(1.0, abs=5e-3)


def test_noise_does_not_depend_on_batch_order_or_global_state():
    seeds = [5, 2**63, 17, 0]
    together = identity.initial_noise(seeds, (3, 4))
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    alone = torch.cat([identity.initial_noise([seed], (3, 4)) for seed in reversed(seeds)]).flip(0)
    assert torch.equal(together, alone)
    assert len({digest(row) for row in together}) == 4


def test_every_part_of_a_name_counts():
    seeds = {
        identity.candidate_seed(1, "a-0", 0),
        identity.candidate_seed(2, "a-0", 0),
        identity.candidate_seed(1, "a-1", 0),
        identity.candidate_seed(1, "a-0", 1),
        identity.exploration_seed(1, 0),
        identity.exploration_seed(0, 1),
    }
    assert len(seeds) == 6
    assert all(0 <= seed < 2**64 for seed in seeds)
    assert identity.stream("1").random() != identity.stream(1).random()
    assert identity.stream("a", "b").random() != identity.stream("ab").random()


@given(st.integers(1, 40), st.data())
def test_an_iteration_repeats_no_prompt_and_an_epoch_shows_each_once(total, data):
    count = data.draw(st.integers(1, total))
    drawn = [identity.draw_prompts(total, count, 3, iteration) for iteration in range(3 * total // count + 2)]
    assert all(len(set(rows)) == count for rows in drawn)
    flat = [row for rows in drawn for row in rows]
    for epoch in range(3):
        assert sorted(flat[epoch * total : (epoch + 1) * total]) == list(range(total))


def test_draws_differ_between_runs_and_epochs():
    first = identity.draw_prompts(100, 100, 0, 0)
    assert first != identity.draw_prompts(100, 100, 1, 0)
    assert first != identity.draw_prompts(100, 100, 0, 1)
    assert first == identity.draw_prompts(100, 100, 0, 0)
    assert first != list(range(100))


@pytest.mark.parametrize("count", [0, 5])
def test_more_prompts_than_there_are_is_refused(count):
    with pytest.raises(ValueError, match="there are 4"):
        identity.draw_prompts(4, count, 0, 0)


@given(st.integers(1, 4), st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=3, unique=True))
def test_pooled_noise_is_that_of_the_seed_at_the_coarser_scale(factor, seeds):
    whole = identity.initial_noise(seeds, (2, 3 * factor, 5 * factor))
    pooled = identity.pool_noise(whole, factor)
    means = whole.double().reshape(len(seeds), 2, 3, factor, 5, factor).mean(dim=(3, 5))
    torch.testing.assert_close(pooled.double(), means * factor, rtol=0, atol=1e-6)
    assert pooled.dtype == torch.float32 and pooled.is_contiguous()
    alone = torch.cat([identity.pool_noise(identity.initial_noise([s], whole.shape[1:]), factor) for s in seeds])
    assert torch.equal(alone, pooled)


@pytest.mark.parametrize("factor", [2, 3, 4])
def test_pooled_noise_is_standard_normal_and_its_values_independent(factor):
    seeds = [identity.candidate_seed(1, "abc-0", index) for index in range(200)]
    pooled = identity.pool_noise(identity.initial_noise(seeds, (4, 12 * factor, 12 * factor)), factor)
    flat = pooled.reshape(-1)
    assert flat.mean().item() == pytest.approx(0.0, abs=0.015)
    assert flat.var().item() == pytest.approx(1.0, abs=0.02)
    assert flat.pow(4).mean().item() == pytest.approx(3.0, abs=0.15)
    for neighbours in (pooled[..., 1:] * pooled[..., :-1], pooled[..., 1:, :] * pooled[..., :-1, :]):
        assert neighbours.mean().item() == pytest.approx(0.0, abs=0.02)
    assert (pooled[:, 1:] * pooled[:, :-1]).mean().item() == pytest.approx(0.0, abs=0.02)


def test_pooled_noise_is_that_of_every_earlier_release():
    assert identity.POOLING == "mean-v1"
    pooled = identity.pool_noise(identity.initial_noise([0, 1, 2**64 - 1], (4, 6, 6)), 3)
    assert digest(pooled) == "e8554d3168e8e8df6016a7ac69bd0826"


def test_pooling_by_one_changes_nothing_and_by_no_part_of_the_sides_is_refused():
    noise = identity.initial_noise([3], (2, 4, 6))
    assert torch.equal(identity.pool_noise(noise, 1), noise)
    for factor in (0, 4, 3):
        with pytest.raises(ValueError, match=f"4 x 6 cells cannot be pooled {factor} by {factor}"):
            identity.pool_noise(noise, factor)
