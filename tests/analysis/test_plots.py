import io
import math
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from solrl_tasks.analysis.plots import Series, _dress, heat_map, rank_curve, reward_curve, theory_lines

RUNS = [
    Series("seed 42", [0, 1, 2, 3], [0.30, 0.33, 0.37, 0.40], [0.01, 0.01, 0.02, 0.02]),
    Series("seed 43", [0, 1, 2, 3], [0.30, 0.31, math.nan, 0.39]),
]


def pixels(png):
    with Image.open(io.BytesIO(png)) as image:
        return np.asarray(image.convert("RGB")).astype(int)


@pytest.mark.parametrize(
    "draw", [lambda kind: reward_curve(RUNS, "r", kind=kind), lambda kind: rank_curve(RUNS, kind=kind)]
)
@pytest.mark.parametrize("kind", ["png", "svg"])
def test_same_numbers_make_the_same_bytes(draw, kind):
    assert draw(kind) == draw(kind)


def test_every_series_and_the_band_of_its_error_are_drawn():
    bare = [Series(line.label, line.x, line.y) for line in RUNS]
    blue, red = (31, 95, 174), (194, 84, 45)
    with_band, without = pixels(reward_curve(RUNS, "r")), pixels(reward_curve(bare, "r"))
    for colour in (blue, red):
        assert (with_band == colour).all(-1).sum() > 100
    pale = lambda image: ((image[..., 2] - image[..., 0] > 20) & (image[..., 0] > 200)).sum()  # noqa: E731
    assert pale(with_band) > 10 * pale(without)


def test_svg_is_well_formed():
    assert ElementTree.fromstring(rank_curve(RUNS, kind="svg")).tag.endswith("svg")


def test_drawing_leaves_matplotlib_as_it_was():
    before = dict(matplotlib.rcParams)
    reward_curve(RUNS, "r")
    assert dict(matplotlib.rcParams) == before
    code = "import sys, solrl_tasks.analysis.plots; assert 'matplotlib.pyplot' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_one_point_is_enough():
    assert pixels(rank_curve([Series("", [6], [0.6], [0.1])])).shape[2] == 3


@pytest.mark.parametrize("last", [2, 3, 30])
def test_iterations_are_marked_at_whole_numbers(last):
    axes = Figure().add_subplot()
    axes.plot([1, last], [0.1, 0.2])
    _dress(axes, ("iteration", "scene", ""), False)
    low, high = axes.get_xlim()
    inside = [tick for tick in axes.get_xticks() if low <= tick <= high]
    assert inside and all(float(tick).is_integer() for tick in inside)


def test_lengths_must_agree_and_something_must_be_there():
    with pytest.raises(ValueError, match="one length"):
        Series("a", [1, 2], [1.0])
    with pytest.raises(ValueError, match="one length"):
        Series("a", [1, 2], [1.0, 2.0], [0.1])
    with pytest.raises(ValueError, match="one length"):
        Series("a", [], [])
    with pytest.raises(ValueError, match="at least one"):
        reward_curve([], "r")


def test_bounds_are_drawn_where_they_are_and_not_mirrored():
    plain = Series("", [2, 4], [0.5, 0.5])
    low = Series("", [2, 4], [0.5, 0.5], bounds=([0.1, 0.1], [0.5, 0.5]))
    high = Series("", [2, 4], [0.5, 0.5], bounds=([0.5, 0.5], [0.9, 0.9]))
    drawn = [rank_curve([series]) for series in (plain, low, high)]
    assert len(set(drawn)) == 3
    below, above = low.reach()
    assert below.tolist() == pytest.approx([0.4, 0.4])
    assert above.tolist() == [0.0, 0.0]
    assert plain.reach() is None
    with pytest.raises(ValueError, match="one length"):
        Series("a", [1, 2], [1.0, 2.0], bounds=([0.0], [1.0, 2.0]))


def test_a_heat_map_darkens_with_its_values_and_leaves_gaps():
    values = np.array([[0.0, 1.0], [0.5, math.nan]])
    labels = ["bf16", "nvfp4-emulated"], ["2", "4"]
    picture = heat_map(values, *labels)
    assert picture == heat_map(values, *labels)
    assert (pixels(picture) == (31, 95, 174)).all(-1).sum() > 1000
    assert (pixels(heat_map(values[:, :1], labels[0], ["2"])) == (31, 95, 174)).all(-1).sum() == 0
    with pytest.raises(ValueError, match="for each label"):
        heat_map(values, ["bf16"], ["2", "4"])


def test_theory_lines_are_drawn_alike_twice_and_refuse_nothing():
    measured = Series("measured", [24, 48, 96], [1.0, 1.5, 1.8], error=[0.1, 0.1, 0.2])
    promised = Series("exact", [24, 48, 96], [1.1, 1.6, 2.0])
    names = "candidates", "contrast", ""
    drawn = theory_lines([measured], [promised], names, {"stop": 60.0})
    assert drawn.startswith(b"\x89PNG")
    assert drawn == theory_lines([measured], [promised], names, {"stop": 60.0})
    assert drawn != theory_lines([measured], [promised], names)
    with pytest.raises(ValueError, match="at least one series"):
        theory_lines([], [], names)
