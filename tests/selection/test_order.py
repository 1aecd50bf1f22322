import numpy as np
import pytest

from solrl_tasks.selection.order import best_first, scramble


def test_scramble_matches_the_published_generator():
    # First outputs of SplitMix64 seeded with 0: its state advances by the same constant that scramble adds.
    golden = 0x9E3779B97F4A7C15
    states = np.array([(i * golden) % 2**64 for i in range(3)], dtype=np.uint64)
    assert scramble(states).tolist() == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]


def test_scramble_is_injective_and_leaves_its_input_alone():
    seeds = np.arange(100_000, dtype=np.uint64)
    assert len(np.unique(scramble(seeds))) == len(seeds)
    assert np.array_equal(seeds, np.arange(100_000, dtype=np.uint64))


def test_best_first_leaves_out_what_is_not_finite():
    scores = np.array([0.0, np.nan, 2.0, np.inf, -np.inf, 1.0])
    assert best_first(scores, np.arange(6, dtype=np.uint64)).tolist() == [2, 5, 0]


def test_ties_do_not_favour_low_indices():
    rng = np.random.default_rng(0)
    first = [best_first(np.zeros(96), rng.integers(0, 2**63, 96).astype(np.uint64))[0] for _ in range(2000)]
    assert np.mean(first) == pytest.approx(47.5, abs=4 * 27.7 / 2000**0.5)


def test_mismatched_lengths_are_refused():
    with pytest.raises(ValueError, match=r"scores \(3,\) and seeds \(2,\)"):
        best_first(np.zeros(3), np.arange(2, dtype=np.uint64))
