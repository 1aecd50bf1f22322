"""The plots of the study of theory."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from solrl_tasks.analysis.gain import MEASURES
from solrl_tasks.analysis.plots import Series, theory_lines
from solrl_tasks.studies.theory import Lines, Theory

Floats = NDArray[np.float64]

ASYMPTOTE: Final = "2 sigma sqrt(2 ln n)"
BOUND: Final = "2 sigma sqrt(2 ln n) - 4 Delta"


def gain_figure(theory: Theory) -> bytes:
    """Contrast of the kept over n: measured, ideal, Gaussian, bound, and where it stops."""
    lines = theory.kept
    stop = theory.answers["contrast"].ratio.candidates
    marks = {} if stop is None else {f"best value: {stop}": float(stop)}
    promised = [
        _series("Gaussian, chosen by the truth", lines, lines.gaussian),
        _series(f"Gaussian, proxy of correlation {theory.rho.mean:.2f}", lines, lines.proxied),
        _series(f"asymptotic bound, {BOUND}", lines, lines.bound),
    ]
    return theory_lines(_measured(lines), promised, _names(lines), marks)


def pair_figure(theory: Theory) -> bytes:
    """The same for one best and one worst, which the bound speaks of."""
    lines = theory.pair
    promised = [
        _series("Gaussian range, exact", lines, lines.gaussian),
        _series(ASYMPTOTE, lines, lines.asymptote),
        _series(BOUND, lines, lines.bound),
    ]
    return theory_lines(_measured(lines), promised, _names(lines))


def value_figure(theory: Theory) -> bytes | None:
    """Gain for its cost, over that of keeping all that is explored; None where that gains nothing."""
    measured = []
    marks = {}
    for measure in MEASURES:
        curve = theory.kept.measured if measure == "contrast" else theory.spread
        value = curve.mean / theory.prices.cost(curve.candidates)
        if value[0] <= 0:
            # Over a gain of nothing, or a loss, no other can be told.
            continue
        measured.append(Series(measure, curve.candidates.tolist(), (value / value[0]).tolist()))
        stop = theory.answers[measure].ratio.candidates
        if stop is not None:
            marks[f"best {measure} for its cost: {stop}"] = float(stop)
    names = "candidates", f"gain for its cost, over that of {theory.kept.keep}", ""
    return theory_lines(measured, [], names, marks) if measured else None


def _measured(lines: Lines) -> list[Series]:
    steps = lines.candidates.tolist()
    return [
        Series(name, steps, curve.mean.tolist(), None if len(curve.each) < 2 else curve.errors().tolist())
        for name, curve in (("measured: chosen by the proxy", lines.measured), ("chosen by the truth", lines.ideal))
    ]


def _series(label: str, lines: Lines, values: Floats) -> Series:
    return Series(label, lines.candidates.tolist(), values.tolist())


def _names(lines: Lines) -> tuple[str, str, str]:
    what = "one best and one worst" if lines.keep == 2 else f"{lines.keep} kept"
    return "candidates", f"contrast of {what}", ""
