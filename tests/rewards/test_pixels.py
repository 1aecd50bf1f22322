import numpy as np
import pytest
import torch

from solrl_tasks.rewards.pixels import CLIP_MEAN, CLIP_STD, enlarge, resize_and_crop, resize_and_pad

LEVEL = 1 / 255 / min(CLIP_STD)
"""One step of an 8-bit pixel, after normalising."""


def cubic(x):
    """The kernel of Keys with a = -1/2."""
    x = np.abs(x)
    near = (1.5 * x - 2.5) * x * x + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    return np.where(x < 1, near, np.where(x < 2, far, 0))


def resampled(values, size, axis):
    """Along one axis to a size: each output pixel is a mean under the kernel, stretched when shrinking."""
    values = np.moveaxis(values, axis, 0)
    count = len(values)
    scale = count / size
    stretch = max(scale, 1.0)
    out = np.empty((size, *values.shape[1:]))
    for i in range(size):
        centre = (i + 0.5) * scale
        first = max(0, int(centre - 2 * stretch + 0.5))
        last = min(count, int(centre + 2 * stretch + 0.5))
        weights = cubic((np.arange(first, last) - centre + 0.5) / stretch)
        out[i] = np.tensordot(weights / weights.sum(), values[first:last], 1)
    return np.moveaxis(out, 0, axis)


def normalised(pixels):
    return ((pixels - np.array(CLIP_MEAN)) / np.array(CLIP_STD)).transpose(2, 0, 1)


def image(height, width, seed=0):
    """Smooth, with some noise: as an image is."""
    rng = np.random.default_rng(seed)
    rows, columns = np.mgrid[0:height, 0:width]
    waves = np.stack([np.sin(rows / 7 + i) * np.cos(columns / 5 - i) for i in range(3)], axis=-1)
    return (127 + 90 * waves + rng.normal(0, 12, waves.shape)).clip(0, 255).astype(np.uint8)


SHAPES = [(64, 64), (64, 91), (91, 64), (101, 300), (20, 33), (57, 16), (32, 32), (32, 41), (33, 32)]
"""Square, wide, tall, extreme, smaller than the target, and of it; margins even and odd."""


@pytest.mark.parametrize(("height", "width"), SHAPES)
def test_shorter_side_and_middle_square_are_those_of_a_plain_reference(height, width):
    side, source = 32, image(height, width)
    shorter = min(height, width)
    tall, wide = int(side * height / shorter), int(side * width / shorter)
    # Eight bits after each pass, the horizontal one first.
    pixels = source.astype(float)
    for size, axis in ((wide, 1), (tall, 0)):
        if pixels.shape[axis] != size:
            pixels = np.floor(resampled(pixels, size, axis) + 0.5).clip(0, 255)
    top, left = round((tall - side) / 2), round((wide - side) / 2)
    expected = normalised(pixels[top : top + side, left : left + side] / 255)
    found = resize_and_crop(source[None], side)
    assert found.shape == (1, 3, side, side) and found.dtype == torch.float32
    difference = np.abs(found[0].numpy() - expected)
    assert difference.max() < 1.01 * LEVEL
    assert (difference > 0.5 * LEVEL).mean() < 0.01


@pytest.mark.parametrize(("height", "width"), SHAPES)
def test_longer_side_on_black_is_that_of_a_plain_reference(height, width):
    side, source = 32, image(height, width)
    longer = max(height, width)
    tall, wide = round(height * side / longer), round(width * side / longer)
    pixels = source / 255
    for size, axis in ((wide, 1), (tall, 0)):
        if pixels.shape[axis] != size:
            pixels = resampled(pixels, size, axis)
    canvas = np.zeros((side, side, 3))
    top, left = (side - tall) // 2, (side - wide) // 2
    canvas[top : top + tall, left : left + wide] = pixels
    found = resize_and_pad(source[None], side)
    assert found.shape == (1, 3, side, side) and found.dtype == torch.float32
    assert np.abs(found[0].numpy() - normalised(canvas)).max() < 2e-5


@pytest.mark.parametrize(("height", "width"), [(64, 64), (50, 96), (96, 50)])
def test_cropping_is_what_transformers_does_with_pil(height, width):
    """Where the margin is even: for odd ones transformers and OpenAI's CLIP differ by a pixel."""
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    side, source = 32, np.stack([image(height, width, seed) for seed in range(2)])
    processor = CLIPImageProcessorPil(size={"shortest_edge": side}, crop_size={"height": side, "width": side})
    expected = processor(images=list(source), return_tensors="pt")["pixel_values"]
    assert torch.allclose(resize_and_crop(source, side), expected, atol=1e-5)


def test_black_and_white_are_where_normalising_puts_them():
    black, white = (np.full((1, 8, 8, 3), value, dtype=np.uint8) for value in (0, 255))
    for preprocess in (resize_and_crop, resize_and_pad):
        low, high = preprocess(black, 8)[0, :, 0, 0], preprocess(white, 8)[0, :, 0, 0]
        assert torch.allclose(low, -torch.tensor(CLIP_MEAN) / torch.tensor(CLIP_STD))
        assert torch.allclose(high, (1 - torch.tensor(CLIP_MEAN)) / torch.tensor(CLIP_STD))


def test_a_strip_thinner_than_a_pixel_keeps_one():
    assert torch.isfinite(resize_and_pad(image(2, 400)[None], 32)).all()


@pytest.mark.parametrize("preprocess", [resize_and_crop, resize_and_pad])
def test_pixels_of_an_image_do_not_depend_on_the_others(preprocess):
    source = np.stack([image(45, 61, seed) for seed in range(5)])
    together = preprocess(source, 28)
    for row in range(5):
        assert torch.equal(together[row : row + 1], preprocess(source[row : row + 1], 28))


def test_images_are_enlarged_by_the_stated_filter():
    images = np.random.default_rng(5).integers(0, 256, (3, 8, 8, 3), dtype=np.uint8)
    large = enlarge(images, 24)
    assert (large.shape, large.dtype) == ((3, 24, 24, 3), np.uint8)
    # PIL rounds between its two passes.
    across = np.clip(np.round(resampled(images.astype(float), 24, 2)), 0, 255)
    expected = np.clip(np.round(resampled(across, 24, 1)), 0, 255)
    assert np.abs(large.astype(int) - expected).max() <= 1
    assert np.array_equal(enlarge(images[1:2], 24), large[1:2])
    assert enlarge(images, 8) is images
    assert enlarge(images[:0], 24).shape[0] == 0
