import io

import numpy as np
import pytest
from PIL import Image

from solrl_tasks.tracking.grid import SIDE, Cell, GridRow, GridText, grid_bytes, make_grid

TEXT = GridText("demo · iteration 3", "scene", ("NVFP4 emulated", "6 steps"), ("BF16", "10 steps"))


def colour(value, size=64):
    return np.full((size, size, 3), value, np.uint8)


def cell(value, size=64, reward=0.5):
    return Cell(colour((value, 10, 20), size), colour((value, 200, 220), size), 0.4, reward)


def row(prompt="a red circle", best=3, worst=2, size=64):
    return GridRow(prompt, tuple(cell(i, size) for i in range(best)), tuple(cell(99 + i, size) for i in range(worst)))


def test_same_input_makes_the_same_bytes():
    rows = [row(), row("two blue squares")]
    assert grid_bytes(make_grid(rows, TEXT)) == grid_bytes(make_grid(rows, TEXT))


def test_the_file_is_a_png_of_the_grid():
    grid = make_grid([row()], TEXT)
    with Image.open(io.BytesIO(grid_bytes(grid))) as read:
        assert (read.format, read.size) == ("PNG", grid.size)
        assert np.array_equal(np.asarray(read), np.asarray(grid))


def test_every_image_is_shown_whole_and_enlarged():
    grid = np.asarray(make_grid([row()], TEXT)).reshape(-1, 3)
    values, counts = np.unique(grid, axis=0, return_counts=True)
    found = {tuple(int(v) for v in value): int(count) for value, count in zip(values, counts, strict=True)}
    for value in (0, 1, 2, 99, 100):
        assert found[value, 10, 20] >= SIDE**2
        assert found[value, 200, 220] >= SIDE**2


def test_enlarging_keeps_pixels_crisp():
    checker = (np.indices((64, 64)).sum(0) % 2 * 255).astype(np.uint8)[..., None].repeat(3, 2)
    image = np.asarray(make_grid([GridRow("x", (Cell(checker, checker, 0.1, 0.2),), ())], GridText("")))
    big = np.kron(checker[..., 0], np.ones((2, 2), np.uint8))
    windows = np.lib.stride_tricks.sliding_window_view(image[..., 0], (SIDE, SIDE))
    assert any(np.array_equal(windows[y, x], big) for y, x in np.argwhere(windows[:, :, 0, 0] == big[0, 0])[:40000])


@pytest.mark.parametrize("size", [16, 64, 100, 512])
def test_any_image_size_fits(size):
    assert make_grid([row(size=size)], TEXT).size == make_grid([row()], TEXT).size


def test_missing_images_and_invalid_rewards_are_drawn():
    odd = GridRow("a", (Cell(None, None, 0.1, float("nan")), cell(3, reward=float("inf"))), ())
    assert make_grid([odd], TEXT).size == make_grid([row(best=2, worst=0)], TEXT).size


def test_prompts_of_any_length_and_lines_fit():
    long = row("a very long prompt " * 40 + "\n\tend")
    assert make_grid([long], TEXT).size == make_grid([row("x" * 900)], TEXT).size


def test_nothing_to_show_is_an_error():
    with pytest.raises(ValueError, match="at least one"):
        make_grid([], TEXT)
    with pytest.raises(ValueError, match="at least one"):
        make_grid([GridRow("a", (), ())], TEXT)
