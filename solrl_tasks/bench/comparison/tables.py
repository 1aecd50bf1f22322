"""The comparison as a page of tables, and its plots."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from solrl_tasks.analysis.estimates import Estimate, confidence_interval
from solrl_tasks.analysis.plots import Look, Series, looks, progress_curve, reward_curve
from solrl_tasks.bench.comparison.gradients import GradientCosines
from solrl_tasks.bench.comparison.report import BESIDES, ArmResult, AtLevel, Comparison, PairedGain, Reach
from solrl_tasks.bench.comparison.tuning import ArmRates
from solrl_tasks.config.words import counted

NOT_REACHED: Final = "not reached"


def page(found: Comparison, rates: Sequence[ArmRates] = ()) -> str:
    """All tables in markdown. Errors are standard errors over seeds, intervals 95 % by Student's t.

    Args:
        rates: how learning rates were chosen.
    """
    parts = [
        f"Held-out reward `{found.reward}`. Errors are standard errors over seeds, intervals 95 % by Student's t.",
        *_titled("Learning rates, chosen by one short run each", rate_rows(rates)),
        *_titled("Arms", _arms(found.arms)),
        *_titled("Two-stage selection against plain, paired by seed", _gains(found.gains)),
        *_titled("Optimizer steps until RAM is at Flow-GRPO's peak", _reaches(found.reaches)),
        *_titled("At equal trained reward", _levels(found.levels)),
        *(_titled("Gradients of one sample", _gradients(found.gradients)) if found.gradients else []),
    ]
    return "\n\n".join(parts) + "\n"


def plots(found: Comparison) -> dict[str, bytes]:
    """PNG files by name: held-out reward over everything that was spent, and the gain of two-stage selection."""
    drawn, known = {}, looks(arm.arm for arm in found.arms)
    for how in dict.fromkeys(arm.selection for arm in found.arms):
        arms = [arm for arm in found.arms if arm.selection == how]
        title = f"Held-out reward, {how} selection"
        drawn[f"{how}-iterations"] = reward_curve(_series(arms, _iterations, known), found.reward, title)
        for name, across, place in (
            ("optimizer-steps", "optimizer steps", _steps),
            ("gpu-hours", "modelled GPU-hours", _hours),
        ):
            drawn[f"{how}-{name}"] = progress_curve(_series(arms, place, known), across, found.reward, title)
    if found.gains:
        lines = [_line(gain.arm, gain.iterations, gain.difference, known.get(gain.arm)) for gain in found.gains]
        drawn["two-stage-gain"] = reward_curve(lines, found.reward, "Two-stage selection minus plain")
    return drawn


def rate_rows(rates: Sequence[ArmRates]) -> list[list[str]]:
    """Rows of a table, the first of them its head."""
    rows = [["objective", "held-out reward at the end, by learning rate", "chosen", "iterations"]]
    for arm in rates:
        tried = ", ".join(f"{rate:g}: {_figure(end)}" for rate, end in arm.tried)
        chosen = "-" if arm.chosen is None else f"{arm.chosen:g}{' (at the edge)' if arm.at_edge else ''}"
        rows.append([arm.arm, tried, chosen, str(arm.iterations)])
    return rows


def _figure(value: float) -> str:
    return f"{value:.4g}" if math.isfinite(value) else "not measured"


def _steps(arm: ArmResult) -> Sequence[float]:
    return arm.optimizer_steps


def _hours(arm: ArmResult) -> Sequence[float]:
    return arm.hours


def _iterations(arm: ArmResult) -> Sequence[float]:
    return arm.iterations


def _series(
    arms: Sequence[ArmResult], place: Callable[[ArmResult], Sequence[float]], known: Mapping[str, Look]
) -> list[Series]:
    return [_line(arm.arm, place(arm), arm.curve, known.get(arm.arm)) for arm in arms]


def _line(label: str, x: Sequence[float], values: Sequence[Estimate], look: Look | None) -> Series:
    return Series(label, x, [one.mean for one in values], [one.stderr for one in values], look=look)


def _titled(title: str, rows: Sequence[Sequence[str]]) -> list[str]:
    if len(rows) < 2:
        return []
    head, *body = rows
    lines = [head, ["---"] * len(head), *body]
    return [f"## {title}", "\n".join("| " + " | ".join(line) + " |" for line in lines)]


def _arms(arms: Iterable[ArmResult]) -> list[list[str]]:
    rows = [
        [
            "objective",
            "selection",
            "seeds",
            "iterations",
            "optimizer steps",
            "start",
            "end",
            "gain",
            "highest mean (iteration)",
            "modelled GPU-hours",
            "measured device-seconds an iteration",
        ]
    ]
    for arm in arms:
        peak = f"{arm.curve[arm.peak].mean:.4f} ({arm.iterations[arm.peak]})"
        measured = ", ".join(f"{name} {seconds:.2f}" for name, seconds in arm.device_seconds.items() if seconds)
        counts = [str(len(arm.seeds)), str(arm.iterations[-1]), f"{arm.optimizer_steps[-1]:g}"]
        values = [shown(arm.curve[0]), shown(arm.curve[-1]), shown(arm.gain)]
        rows.append([arm.arm, arm.selection, *counts, *values, peak, f"{arm.hours[-1]:.3g}", measured])
    return rows


def _gains(gains: Iterable[PairedGain]) -> list[list[str]]:
    rows = [["objective", "pairs", "iteration", "difference", "interval", "at equal modelled hours", "interval"]]
    for gain in gains:
        last, equal = gain.difference[-1], gain.equal_hours
        pairs = [gain.arm, str(len(gain.seeds)), str(gain.iterations[-1])]
        rows.append([*pairs, shown(last), _interval(last), shown(equal), _interval(equal)])
    return rows


def _reaches(reaches: Iterable[Reach]) -> list[list[str]]:
    rows = [
        ["selection", "Flow-GRPO's peak", "at optimizer step", "RAM there at", "times fewer", "seeds that reach it"]
    ]
    for found in reaches:
        step = f"{NOT_REACHED} in {found.last_step:g}" if found.step is None else f"{found.step:g}"
        each = sum(step is not None for _, step in found.each.values())
        of = f"{each} of {len(found.each)}"
        times = _times(found.peak_step, found.step)
        rows.append([found.selection, f"{found.level:.4f}", f"{found.peak_step:g}", step, times, of])
    return rows


def _times(peak: float, step: float | None) -> str:
    if step is None:
        return NOT_REACHED
    # A peak at the start is no peak: the other arm never rose.
    return f"{peak / step:.1f}" if step > 0 and peak > 0 else "no rise to compare with"


def _levels(levels: Iterable[AtLevel]) -> list[list[str]]:
    rows = [["selection", "trained reward", "objective", "reached", "optimizer step", *BESIDES]]
    for one in levels:
        others = [shown(one.others[name]) for name in BESIDES]
        of = f"{one.reached} of {one.seeds}"
        rows.append([one.selection, f"{one.level:.4f}", one.arm, of, shown(one.step), *others])
    return rows


def _gradients(found: GradientCosines) -> list[list[str]]:
    measured = (
        ("re-noised endpoint", "RAM", found.renoised),
        ("along its Flow-SDE path", "RAM", found.path),
        ("along its Flow-SDE path", "Flow-GRPO", found.policy),
    )
    head = ["states", "loss", f"mean pairwise cosine of {counted(found.gradients, 'gradient')}", "interval", "samples"]
    return [head, *([*what, shown(one), _interval(one), f"{one.n} of {found.samples}"] for *what, one in measured)]


def shown(estimate: Estimate) -> str:
    """Mean and standard error; a dash where there is nothing."""
    if not math.isfinite(estimate.mean):
        return "-"
    error = f" ± {estimate.stderr:.2g}" if math.isfinite(estimate.stderr) else ""
    return f"{estimate.mean:.4g}{error}"


def _interval(estimate: Estimate) -> str:
    low, high = confidence_interval(estimate)
    return f"{low:.4g} to {high:.4g}" if math.isfinite(low) else "-"
