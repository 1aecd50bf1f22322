"""Plots of runs and studies: off screen, the same bytes for the same numbers, no global state touched."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

COLOURS: Final = ("#1f5fae", "#c2542d", "#2f8f62", "#7b4fa3", "#b08a1e", "#4d5a6a", "#d46a9f", "#3aa6b9")
INK: Final = "#20242c"
SOFT: Final = "#707682"
RULE: Final = "#e2e5eb"
SIZE: Final = (6.4, 3.8)
"""Width and height in inches."""

_STYLE: Final[dict[Any, Any]] = {
    "font.family": ["DejaVu Sans"],
    "font.size": 10.0,
    "svg.hashsalt": "solrl",
    "svg.fonttype": "path",
    "savefig.facecolor": "white",
}


@dataclass(frozen=True)
class Series:
    """One line of a plot.

    Attributes:
        label: as the legend names it; empty for none.
        x: iterations or explore steps, increasing.
        y: means; a NaN leaves a gap.
        error: standard errors of ``y``, or None where there is none.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    error: Sequence[float] | None = None

    def __post_init__(self) -> None:
        lengths = {len(self.x), len(self.y), len(self.x if self.error is None else self.error)}
        if len(lengths) > 1 or not self.x:
            raise ValueError(f"series {self.label!r}: x, y and error must be of one length and not empty")


def reward_curve(series: Sequence[Series], reward: str, title: str = "", kind: Literal["png", "svg"] = "png") -> bytes:
    """Held-out reward over iterations, with a band of one standard error on either side.

    Args:
        series: one a run, or one a configuration with the mean over runs.
        reward: name of the axis.

    Raises:
        ValueError: there is nothing to draw.
    """
    return _draw(series, ("iteration", reward, title), "band", kind)


def rank_curve(
    series: Sequence[Series],
    measure: str = "rank correlation with BF16",
    title: str = "",
    kind: Literal["png", "svg"] = "png",
) -> bytes:
    """Rank correlation, or another measure of fidelity, over explore steps, with bars of one standard error.

    Raises:
        ValueError: there is nothing to draw.
    """
    return _draw(series, ("explore steps", measure, title), "bars", kind)


def progress_curve(
    series: Sequence[Series], across: str, reward: str, title: str = "", kind: Literal["png", "svg"] = "png"
) -> bytes:
    """Held-out reward over whatever was spent, such as optimizer steps or hours, with a band as ``reward_curve`` has.

    Args:
        across: name of the axis of what was spent.

    Raises:
        ValueError: there is nothing to draw.
    """
    return _draw(series, (across, reward, title), "band", kind)


def noise_curve(
    series: Sequence[Series],
    measure: str = "rank correlation with images without noise",
    title: str = "",
    kind: Literal["png", "svg"] = "png",
) -> bytes:
    """A measure of fidelity over eta, the amount of noise in the steps, with bars of one standard error.

    Raises:
        ValueError: there is nothing to draw.
    """
    return _draw(series, ("eta", measure, title), "bars", kind)


def _draw(series: Sequence[Series], names: tuple[str, str, str], errors: Literal["band", "bars"], kind: str) -> bytes:
    if not series:
        raise ValueError("a plot needs at least one series")
    with rc_context(_STYLE):
        figure = Figure(figsize=SIZE, dpi=150, layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        for colour, line in zip(_cycle(len(series)), series, strict=True):
            _add(axes, line, colour, errors)
        _dress(axes, names, any(line.label for line in series))
        file = io.BytesIO()
        # Software version and date would make every file differ from the last.
        metadata = {"Software": None} if kind == "png" else {"Date": None, "Creator": None}
        figure.savefig(file, format=kind, metadata=metadata)
    return file.getvalue()


def _cycle(count: int) -> list[str]:
    return [COLOURS[position % len(COLOURS)] for position in range(count)]


def _add(axes: Axes, line: Series, colour: str, errors: Literal["band", "bars"]) -> None:
    x, y = _floats(line.x), _floats(line.y)
    error = None if line.error is None else _floats(line.error)
    axes.plot(x, y, color=colour, linewidth=1.8, marker="o", markersize=4, label=line.label or None)
    if error is None:
        return
    if errors == "band":
        axes.fill_between(x, y - error, y + error, color=colour, alpha=0.16, linewidth=0)
    else:
        axes.errorbar(x, y, error, fmt="none", ecolor=colour, elinewidth=1.2, capsize=3)


def _dress(axes: Axes, names: tuple[str, str, str], legend: bool) -> None:
    across, up, title = names
    axes.set_xlabel(across, color=INK)
    axes.set_ylabel(up, color=INK)
    if title:
        axes.set_title(title, loc="left", color=INK, fontsize=11, pad=10)
    low, high = axes.get_xlim()
    axes.xaxis.set_major_locator(MaxNLocator(integer=high - low > 2))
    axes.grid(axis="y", color=RULE, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=SOFT, length=3)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(RULE)
    if legend:
        axes.legend(frameon=False, labelcolor=INK)


def _floats(values: Sequence[float]) -> npt.NDArray[np.float64]:
    return np.asarray(values, dtype=np.float64)
