"""Plots of runs and studies: off screen, the same bytes for the same numbers, no global state touched."""

import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

COLOURS: Final = ("#1f5fae", "#c2542d", "#2f8f62", "#7b4fa3", "#b08a1e", "#4d5a6a", "#d46a9f", "#3aa6b9")
INK: Final = "#20242c"
SOFT: Final = "#707682"
RULE: Final = "#e2e5eb"
SIZE: Final = (6.4, 3.8)
"""Width and height in inches."""
CROWD: Final = 4
"""So many lines can be named inside the axes."""
COUNTED: Final = ("iteration", "explore steps")
"""What is counted has no marks between whole numbers."""

_STYLE: Final[dict[Any, Any]] = {
    "font.family": ["DejaVu Sans"],
    "font.size": 10.0,
    "svg.hashsalt": "solrl",
    "svg.fonttype": "path",
    "savefig.facecolor": "white",
}


@dataclass(frozen=True)
class Look:
    """What tells a line from others: its colour, and dashes and marks where there are more lines than colours."""

    colour: str
    dash: str = "-"
    mark: str = "o"


NEUTRAL: Final = Look(INK)
"""Of a line that stands for none of those that have a look of their own."""
STROKES: Final = (("-", "o"), ("--", "s"), (":", "^"), ("-.", "D"))


def looks(names: Iterable[str]) -> dict[str, Look]:
    """A look for each name, by its place among all of them.

    Give all names that a study has: each is then the same in every plot of it, whichever others are in that plot.
    """
    found = {}
    for place, name in enumerate(dict.fromkeys(names)):
        again, colour = divmod(place, len(COLOURS))
        found[name] = Look(COLOURS[colour], *STROKES[again % len(STROKES)])
    return found


@dataclass(frozen=True)
class Series:
    """One line of a plot.

    Attributes:
        label: as the legend names it; empty for none.
        x: iterations or explore steps, increasing.
        y: means; a NaN leaves a gap.
        error: standard errors of ``y``, or None where there is none.
        bounds: lower and upper bounds of ``y``, or None where there are none; drawn in the place of ``error``.
        look: see ``looks``; None is by its place in the plot.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    error: Sequence[float] | None = None
    bounds: tuple[Sequence[float], Sequence[float]] | None = None
    look: Look | None = None

    def __post_init__(self) -> None:
        beside = [values for values in (self.error, *(self.bounds or ())) if values is not None]
        lengths = {len(self.x), len(self.y), *map(len, beside)}
        if len(lengths) > 1 or not self.x:
            raise ValueError(f"series {self.label!r}: x, y, error and bounds must be of one length and not empty")

    def reach(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]] | None:
        """How far an interval reaches below and above ``y``; None where nothing is known of the error."""
        if self.bounds is not None:
            low, high, y = _floats(self.bounds[0]), _floats(self.bounds[1]), _floats(self.y)
            return np.maximum(y - low, 0.0), np.maximum(high - y, 0.0)
        return None if self.error is None else (_floats(self.error), _floats(self.error))


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
    series: Sequence[Series],
    across: str,
    reward: str,
    title: str = "",
    errors: Literal["band", "bars"] = "band",
    kind: Literal["png", "svg"] = "png",
    even: float | None = None,
) -> bytes:
    """Held-out reward over whatever was spent, such as optimizer steps or hours, with its errors.

    Args:
        across: name of the axis of what was spent.
        errors: a band as ``reward_curve`` has, or bars, which do not hide each other where they are wide.
        even: height of a dotted line across the plot, such as 1 of ratios.

    Raises:
        ValueError: there is nothing to draw.
    """
    return _draw(series, (across, reward, title), errors, kind, even)


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


def theory_lines(
    measured: Sequence[Series],
    promised: Sequence[Series],
    names: tuple[str, str, str],
    marks: Mapping[str, float] | None = None,
    kind: Literal["png", "svg"] = "png",
) -> bytes:
    """Smooth lines: what was measured in full, with its interval as a band, and what theory says in dashes.

    Args:
        names: of the axes, and the title.
        marks: places on the horizontal axis that an upright line is drawn at, by what the legend calls them.

    Raises:
        ValueError: there is nothing to draw.
    """
    if not measured and not promised:
        raise ValueError("a plot needs at least one series")
    with rc_context(_STYLE):
        figure = Figure(figsize=(SIZE[0], SIZE[1] + 0.9), dpi=150, layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        colours = _cycle(len(measured) + len(promised))
        for place, (colour, line) in enumerate(zip(colours, [*measured, *promised], strict=True)):
            x, y = _floats(line.x), _floats(line.y)
            style = "-" if place < len(measured) else "--"
            axes.plot(x, y, color=colour, linewidth=1.8, linestyle=style, label=line.label or None)
            reach = line.reach()
            if reach is not None:
                axes.fill_between(x, y - reach[0], y + reach[1], color=colour, alpha=0.16, linewidth=0)
        for label, at in (marks or {}).items():
            axes.axvline(at, color=SOFT, linewidth=1.2, linestyle=":", label=label)
        _dress(axes, names, legend=False)
        figure.legend(loc="outside lower center", ncols=2, frameon=False, labelcolor=INK, fontsize=8.5)
        return _encode(figure, kind)


def heat_map(
    values: npt.NDArray[np.floating],
    rows: Sequence[str],
    columns: Sequence[str],
    names: tuple[str, str, str] = ("", "", ""),
    limits: tuple[float, float] = (0.0, 1.0),
    kind: Literal["png", "svg"] = "png",
) -> bytes:
    """A number for each row and column, written into its cell and shown by the darkness of the cell.

    Args:
        values: [rows, columns]; a NaN is an empty cell.
        rows, columns: labels, such as engines and step counts.
        names: of the columns' axis and the rows' axis, and the title.
        limits: values of the palest and the darkest colour.

    Raises:
        ValueError: labels do not fit, or there is nothing to draw.
    """
    if values.shape != (len(rows), len(columns)) or values.size == 0:
        raise ValueError(
            f"a heat map needs a value for each label, found {values.shape} for {len(rows)} x {len(columns)}"
        )
    across, down, title = names
    with rc_context(_STYLE):
        figure = Figure(figsize=(SIZE[0], 1.3 + 0.45 * len(rows)), dpi=150, layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        shade = LinearSegmentedColormap.from_list("solrl", ["#f4f7fb", COLOURS[0]])
        axes.imshow(np.ma.masked_invalid(values), cmap=shade, vmin=limits[0], vmax=limits[1], aspect="auto")
        middle = sum(limits) / 2
        for row, column in zip(*np.nonzero(np.isfinite(values)), strict=True):
            value = float(values[row, column])
            colour = "white" if value > middle + 0.1 * (limits[1] - limits[0]) else INK
            axes.text(column, row, f"{value:.2f}", ha="center", va="center", color=colour)
        axes.set_xticks(range(len(columns)), columns)
        axes.set_yticks(range(len(rows)), rows)
        axes.set_xlabel(across, color=INK)
        axes.set_ylabel(down, color=INK)
        axes.set_title(title, loc="left", color=INK, fontsize=11, pad=10)
        axes.tick_params(colors=SOFT, length=0)
        for spine in axes.spines.values():
            spine.set_visible(False)
        return _encode(figure, kind)


def stacked_bars(
    x: Sequence[int],
    parts: Mapping[str, Sequence[float]],
    names: tuple[str, str],
    title: str = "",
    kind: Literal["png", "svg"] = "png",
) -> bytes:
    """Parts of a whole, such as the seconds of stages, on top of each other at every place.

    Args:
        x: places, such as iterations.
        parts: by name, a value at each place, at least 0; the first stands lowest.
        names: of the axes.

    Raises:
        ValueError: there is nothing to draw, or a part has not as many values as there are places.
    """
    if not x or not parts or any(len(values) != len(x) for values in parts.values()):
        lengths = {name: len(values) for name, values in parts.items()}
        raise ValueError(f"bars need places and as many values of every part, found {len(x)} places and {lengths}")
    with rc_context(_STYLE):
        figure = Figure(figsize=SIZE, dpi=150, layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        base = np.zeros(len(x))
        for colour, (name, values) in zip(_cycle(len(parts)), parts.items(), strict=True):
            axes.bar(x, values, bottom=base, color=colour, label=name)
            base += _floats(values)
        _dress(axes, (*names, title), legend=False)
        handles, labels = axes.get_legend_handles_labels()
        # In the order in which they are stacked, beside the bars: over them it would hide the highest.
        figure.legend(handles[::-1], labels[::-1], loc="outside right center", frameon=False, labelcolor=INK)
        return _encode(figure, kind)


def _encode(figure: Figure, kind: str) -> bytes:
    file = io.BytesIO()
    # Software version and date would make every file differ from the last.
    metadata = {"Software": None} if kind == "png" else {"Date": None, "Creator": None}
    figure.savefig(file, format=kind, metadata=metadata)
    return file.getvalue()


def _draw(
    series: Sequence[Series],
    names: tuple[str, str, str],
    errors: Literal["band", "bars"],
    kind: str,
    even: float | None = None,
) -> bytes:
    if not series:
        raise ValueError("a plot needs at least one series")
    with rc_context(_STYLE):
        figure = Figure(figsize=SIZE, dpi=150, layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        by_place = looks(str(place) for place in range(len(series)))
        for look, line in zip(by_place.values(), series, strict=True):
            _add(axes, line, line.look or look, errors)
        if even is not None:
            axes.axhline(even, color=SOFT, linewidth=1.0, linestyle=":")
        labelled = sum(bool(line.label) for line in series)
        _dress(axes, names, legend=0 < labelled <= CROWD)
        if labelled > CROWD:
            # Inside the axes so many names would lie on lines, wherever they are put.
            figure.legend(loc="outside right center", frameon=False, labelcolor=INK)
        return _encode(figure, kind)


def _cycle(count: int) -> list[str]:
    return [COLOURS[position % len(COLOURS)] for position in range(count)]


def _add(axes: Axes, line: Series, look: Look, errors: Literal["band", "bars"]) -> None:
    x, y, colour = _floats(line.x), _floats(line.y), look.colour
    reach = line.reach()
    drawn: dict[str, Any] = {"color": colour, "linestyle": look.dash, "marker": look.mark}
    axes.plot(x, y, linewidth=1.8, markersize=4, label=line.label or None, **drawn)
    if reach is None:
        return
    below, above = reach
    if errors == "band":
        axes.fill_between(x, y - below, y + above, color=colour, alpha=0.16, linewidth=0)
    else:
        axes.errorbar(x, y, np.stack([below, above]), fmt="none", ecolor=colour, elinewidth=1.2, capsize=3)


def _dress(axes: Axes, names: tuple[str, str, str], legend: bool) -> None:
    across, up, title = names
    axes.set_xlabel(across, color=INK)
    axes.set_ylabel(up, color=INK)
    if title:
        axes.set_title(title, loc="left", color=INK, fontsize=11, pad=10)
    low, high = axes.get_xlim()
    counted = across in COUNTED or high - low > 2
    axes.xaxis.set_major_locator(MaxNLocator(integer=counted, min_n_ticks=1))
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
