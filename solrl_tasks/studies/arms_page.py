"""A study of arms as a page: what each came to, what it cost (measured, and apart from it modelled), and how sooner."""

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

from solrl_tasks.analysis.estimates import Estimate, confidence_interval, mean_estimate
from solrl_tasks.analysis.plots import Series, looks, progress_curve, reward_curve
from solrl_tasks.config.words import are, counted
from solrl_tasks.reports.page import Block, Commands, Figure, Page, Provenance, Section, Settings, Table, Text
from solrl_tasks.reports.provenance import UNKNOWN, engine_kind
from solrl_tasks.studies.arm_costs import ABSENT, cost_tables, modelled_hours
from solrl_tasks.studies.arm_ends import END, curve, difference, ends, gain, start
from solrl_tasks.studies.arm_study import ArmStudy, Groups, measured_on
from solrl_tasks.studies.arms import Arm
from solrl_tasks.studies.results.comparison import find_results, measured_cost
from solrl_tasks.studies.results.findings import NothingToReportError, Roles
from solrl_tasks.studies.results.pages import sections_of
from solrl_tasks.studies.runs import ArmRecord

ERRORS: Final = f"± is a standard error over training seeds, intervals are 95 % of paired seeds; end: {END}"


def arms_page(study: ArmStudy, commands: Sequence[str]) -> Page:
    """The whole page.

    Args:
        commands: that make it again.
    """
    sections = [
        Section("Arms", tuple(_arms(study))),
        Section("Cost of an iteration", tuple(cost_tables(study))),
        Section("Curves", tuple(_curves(study))),
        *_races(study),
        Section("Runs", tuple(_runs(study))),
        Section("To make this again", (Commands(tuple(commands)), _changes(study), Settings(_base(study)))),
    ]
    return Page(study.title, arms_summary(study), tuple(section for section in sections if section.blocks))


def arms_summary(study: ArmStudy) -> str:
    """What came out, in a few sentences of markdown."""
    groups = study.complete
    if not groups:
        return (
            f"No run of {counted(study.iterations, 'iteration')} is complete yet: the same command goes on. "
            f"{_state(study)}"
        )
    gains = {name: gain(records, study.iterations) for name, records in groups.items()}
    best = max(gains, key=lambda name: gains[name].mean)
    reward = next(iter(groups.values()))[0].reward
    base = study.family.baseline
    seeds = gains[best].n
    error = f"standard error over {counted(seeds, 'training seed')}" if seeds > 1 else "of one training seed"
    rose = "rose most in" if gains[best].mean > 0 else "rose in no arm, and fell least in"
    text = (
        f"Held-out `{reward}` after {counted(study.iterations, 'iteration')} {rose} **{best}**, by "
        f"{_shown(gains[best])} ({error})"
    )
    others = [name for name in gains if name != best]
    if others:
        other = base if base in others else max(others, key=lambda name: gains[name].mean)
        less = difference(groups[best], groups[other], study.iterations)
        low, high = confidence_interval(less)
        resolved = "resolved from" if low > 0 or high < 0 else "not resolved from"
        text += f"; over {other} that is {_with_interval(less)}, {resolved} 0"
    return f"{text}. {_state(study)}"


def arms_metrics(study: ArmStudy) -> dict[str, float]:
    """Single figures for a tracker; what could not be measured is absent."""
    metrics: dict[str, float] = {}
    for name, records in study.complete.items():
        metrics[f"gain/{name}"] = gain(records, study.iterations).mean
        metrics[f"end/{name}"] = mean_estimate(ends(records, study.iterations)).mean
        measured, modelled = measured_cost(records, study.iterations), records[0].modelled_seconds()
        metrics[f"measured_seconds/{name}"] = math.nan if measured is None else measured
        metrics[f"modelled_seconds/{name}"] = math.nan if modelled is None else modelled
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def arms_curves(study: ArmStudy) -> dict[str, list[tuple[int, float]]]:
    """Held-out trained reward over iterations, a mean over seeds for each arm."""
    found = {}
    for name, records in study.complete.items():
        steps, values = curve(records, study.iterations)
        points = [(step, one.mean) for step, one in zip(steps, values, strict=True)]
        found[f"eval/{records[0].reward}/{name}"] = points
    return found


def arm_rows(study: ArmStudy) -> list[dict[str, str]]:
    """A row of text for each arm: what it came to."""
    groups = study.complete
    return [_arm_row(study, arm, groups) for arm in study.family.arms]


# Sections


def _state(study: ArmStudy) -> str:
    parts = []
    if study.failed:
        parts.append(f"Failed: {', '.join(one.run_id for one in study.failed)}.")
    if study.unfinished:
        parts.append(
            f"{counted(len(study.unfinished), 'run')} {are(len(study.unfinished))} not complete: the same command "
            "goes on."
        )
    parts += study.family.left_out()
    forwards, loads = (sum(getattr(one, name) for one in study.outcomes) for name in ("forwards", "loads"))
    parts.append(
        f"This time: {counted(forwards, 'forward pass', 'forward passes')}, {counted(loads, 'load')} of weights."
    )
    return " ".join(parts)


def _arms(study: ArmStudy) -> list[Block]:
    rows = arm_rows(study)
    table = Table(
        "What each arm came to",
        tuple(rows[0]),
        tuple(tuple(row.values()) for row in rows),
        measured_on(study, ERRORS),
        " ".join(dict.fromkeys(f"{arm.note}." for arm in study.family.arms if arm.note)),
    )
    return [table]


def _arm_row(study: ArmStudy, arm: Arm, groups: Groups) -> dict[str, str]:
    records, base = groups.get(arm.name, ()), study.family.baseline
    less = ABSENT
    if arm.name != base and records and groups.get(base):
        less = _with_interval(difference(records, groups[base], study.iterations))
    untrained = start(records) if records else None
    return {
        "arm": arm.name,
        "what": arm.title,
        "explored by": _engine(records),
        "seeds": f"{len(records)} of {len(study.seeds)}",
        "untrained": ABSENT if untrained is None else f"{untrained:.4f}",
        "end": _shown(mean_estimate(ends(records, study.iterations))) if records else ABSENT,
        "gain": _shown(gain(records, study.iterations)) if records else ABSENT,
        f"less {base}": less,
    }


def _curves(study: ArmStudy) -> list[Block]:
    groups = study.complete
    if not groups:
        return []
    reward = next(iter(groups.values()))[0].reward
    blocks: list[Block] = [
        Figure(
            "Held-out reward over iterations",
            reward_curve(_lines(study, lambda _: 1.0), reward),
            f"Held-out {reward} over iterations, a line for each arm",
            measured_on(study, "bands are one standard error over training seeds"),
        )
    ]
    for caption, across, said, cost in (
        (
            "Held-out reward over measured device-seconds",
            "measured device-seconds of counted stages",
            measured_on(study, "bands as above; arms that never had the device for themselves are left out"),
            lambda records: measured_cost(records, study.iterations),
        ),
        (
            "Held-out reward over modelled GPU-hours",
            f"modelled GPU-hours ({study.modelled_on})",
            Provenance(study.modelled_on, "", None, "modelled", "hours at the vendor's dense rates, rewards measured"),
            modelled_hours,
        ),
    ):
        lines = _lines(study, cost)
        if lines:
            alt = f"Held-out {reward} over {across}, a line for each arm"
            blocks.append(Figure(caption, progress_curve(lines, across, reward), alt, said))
    return blocks


def _races(study: ArmStudy) -> list[Section]:
    """Cost to shares of the baseline's gain, and reward at equal cost."""
    names = {arm.name for arm in study.family.arms}
    keep, candidates = study.family.base.select.keep, study.family.base.explore.candidates
    known = (f"bf16-{candidates}full", "solrl-nvfp4", "nvfp4-direct")
    precise, method, direct = known if keep < candidates and set(known) <= names else ("", "", "")
    races = tuple(arm.name for arm in study.family.arms)
    roles = Roles(study.family.baseline, precise, method, direct, races=races)
    try:
        found = find_results(study.records, roles, study.iterations)
    except NothingToReportError:
        return []
    sections = sections_of(found, {})
    return [sections[part] for part in ("parity", "direct", "time-to-reward", "budgets") if part in sections]


def _runs(study: ArmStudy) -> list[Block]:
    rows = tuple(
        (one.run_id, one.state, str(one.step) if one.step >= 0 else ABSENT, str(one.forwards), str(one.loads))
        for one in study.outcomes
    )
    blocks: list[Block] = [Table("Runs", ("run", "state", "iteration", "forward passes now", "loads now"), rows)]
    if study.failed:
        told = "\n".join(f"- `{one.run_id}`: {one.error.strip().splitlines()[-1]}" for one in study.failed)
        blocks.append(Text(f"What failed:\n\n{told}"))
    return blocks


def _changes(study: ArmStudy) -> Table:
    rows = tuple((arm.name, "; ".join(f"{k} = {v}" for k, v in arm.changes.items())) for arm in study.family.arms)
    return Table("What each arm changes in the recipe", ("arm", "fields"), rows)


def _base(study: ArmStudy) -> dict[str, Any]:
    return study.family.base.model_dump(mode="json", exclude={"seed", "iterations"})


# Figures


def _engine(records: Sequence[ArmRecord]) -> str:
    if not records:
        return ABSENT
    name = records[0].recipe.explore.engine.name
    where = str(records[0].environment.get("device_class", UNKNOWN))
    return name if where == UNKNOWN else f"{name} ({engine_kind(name, where)})"


def _lines(study: ArmStudy, cost: Callable[[Sequence[ArmRecord]], float | None]) -> list[Series]:
    lines, iterations = [], study.iterations
    known = looks([*(arm.name for arm in study.family.arms), *study.family.absent])
    for name, records in study.complete.items():
        each = cost(records)
        if each is not None:
            steps, values = curve(records, iterations)
            x = [step * each for step in steps]
            means, errors = [one.mean for one in values], [one.stderr for one in values]
            lines.append(Series(name, x, means, errors, look=known[name]))
    return lines


def _shown(estimate: Estimate) -> str:
    if not math.isfinite(estimate.mean):
        return ABSENT
    return f"{estimate.mean:.4f}" + (f" ± {estimate.stderr:.2g}" if math.isfinite(estimate.stderr) else "")


def _with_interval(estimate: Estimate) -> str:
    low, high = confidence_interval(estimate)
    if not math.isfinite(estimate.mean):
        return ABSENT
    return f"{estimate.mean:+.4f}" + (f" ({low:+.4f} to {high:+.4f})" if math.isfinite(low) else "")
