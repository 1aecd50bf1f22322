import numpy as np
import pytest

from solrl_tasks.rewards.colourfulness import Colourfulness


def colourfulness(*images):
    stack = np.stack(images)
    return Colourfulness()(stack, [""] * len(stack), [{}] * len(stack))


def plain(*rgb):
    return np.broadcast_to(np.array(rgb, dtype=np.uint8), (8, 8, 3))


def noise(seed):
    return np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)


def test_grey_is_colourless_and_colour_is_not():
    ramp = np.repeat(np.arange(64, dtype=np.uint8).reshape(8, 8, 1), 3, axis=2)
    black, grey, red = colourfulness(plain(0, 0, 0), ramp, plain(255, 0, 0))
    assert (black, grey) == (0.0, 0.0)
    # A plain red has no spread: 0.3 sqrt(1 + 1/4).
    assert red == pytest.approx(0.3 * 1.25**0.5)


def test_known_value_of_a_two_colour_image():
    half = np.concatenate([plain(255, 0, 0), plain(0, 255, 0)])
    # rg is +-1 and yb is 1/2 everywhere: spread 1, mean 1/2.
    assert colourfulness(half) == pytest.approx([1.15])


def test_scores_stay_in_the_declared_range_and_do_not_depend_on_the_batch():
    images = [noise(seed) for seed in range(5)]
    together = colourfulness(*images)
    assert together == [colourfulness(image)[0] for image in images]
    low, high = Colourfulness.range
    assert all(low <= value <= high for value in together)


def test_the_upper_bound_is_sharp_enough_to_be_useful():
    extremes = [
        np.where((np.arange(64).reshape(8, 8, 1) < share), plain(255, 0, 0), plain(0, 255, 0)).astype(np.uint8)
        for share in range(65)
    ]
    best = max(colourfulness(*extremes))
    assert 0.9 * Colourfulness.range[1] < best <= Colourfulness.range[1]
