"""A study of arms as a page: what each came to, what it cost (measured, and apart from it modelled), and how sooner."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from solrl_tasks.analysis.estimates import Estimate, confidence_interval, mean_estimate, paired_difference
from solrl_tasks.analysis.plots import Series, progress_curve, reward_curve
from solrl_tasks.analysis.progress import mean_curve
from solrl_tasks.config.recipe import Recipe
from solrl_tasks.reports.page import Block, Commands, Figure, Page, Provenance, Section, Settings, Table, Text
from solrl_tasks.reports.provenance import UNKNOWN, engine_kind
from solrl_tasks.studies.arms import COSTED, Arm, arm_recipe, counting_rule
from solrl_tasks.studies.families import Family
from solrl_tasks.studies.results.comparison import evaluations, find_results, measured_cost
from solrl_tasks.studies.results.findings import SECONDS_PER_HOUR, TAIL, NothingToReportError, Roles
from solrl_tasks.studies.results.pages import sections_of
from solrl_tasks.studies.runs import ArmRecord, Outcome

ABSENT: Final = "-"
MODELLED: Final = ("explore", "regenerate", "update")
ERRORS: Final = (
    "± is a standard error over training seeds, intervals are 95 % of paired seeds; end: mean of the last "
    f"{TAIL} evaluations of a run, that of the untrained model aside"
)
Groups = Mapping[str, Sequence[ArmRecord]]


@dataclass(frozen=True)
class ArmStudy:
    """All that a page is made of.

    Attributes:
        title: of the page.
        iterations: of every run that counts.
        records: of runs that were begun.
        outcomes: of this time, of every run and of every timing run.
    """

    title: str
    family: Family
    seeds: tuple[int, ...]
    iterations: int
    records: tuple[ArmRecord, ...]
    outcomes: tuple[Outcome, ...]
    modelled_on: str

    @property
    def complete(self) -> Groups:
        """Records that have all iterations and two evaluations, by arm."""
        groups: dict[str, list[ArmRecord]] = {}
        for record in self.records:
            if record.last_step >= self.iterations and len(evaluations([record], self.iterations)) > 1:
                groups.setdefault(record.arm.name, []).append(record)
        return groups

    @property
    def failed(self) -> tuple[Outcome, ...]:
        """Runs that failed this time."""
        return tuple(one for one in self.outcomes if one.state == "failed")

    @property
    def unfinished(self) -> tuple[Outcome, ...]:
        """Runs that time ended, or that were not begun."""
        return tuple(one for one in self.outcomes if one.state in ("stopped", "not begun"))

    @property
    def hardware(self) -> str:
        """That computed the runs."""
        return ", ".join(sorted({record.hardware for record in self.records if record.hardware}))


def arms_page(study: ArmStudy, commands: Sequence[str]) -> Page:
    """The whole page.

    Args:
        commands: that make it again.
    """
    sections = [
        Section("Arms", tuple(_arms(study))),
        Section("Cost of an iteration", tuple(_costs(study))),
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
        return f"No run of {study.iterations} iterations is complete yet: the same command goes on. {_state(study)}"
    gains = {name: _gain(records, study.iterations) for name, records in groups.items()}
    best = max(gains, key=lambda name: gains[name].mean)
    reward = next(iter(groups.values()))[0].reward
    base = study.family.baseline
    seeds = gains[best].n
    error = f"standard error over {seeds} training seeds" if seeds > 1 else "of one training seed"
    rose = "rose most in" if gains[best].mean > 0 else "rose in no arm, and fell least in"
    text = (
        f"Held-out `{reward}` after {study.iterations} iterations {rose} **{best}**, by {_shown(gains[best])} ({error})"
    )
    others = [name for name in gains if name != best]
    if others:
        other = base if base in others else max(others, key=lambda name: gains[name].mean)
        less = _difference(groups[best], groups[other], study.iterations)
        low, high = confidence_interval(less)
        resolved = "resolved from" if low > 0 or high < 0 else "not resolved from"
        text += f"; over {other} that is {_with_interval(less)}, {resolved} 0"
    return f"{text}. {_state(study)}"


def arms_metrics(study: ArmStudy) -> dict[str, float]:
    """Single figures for a tracker; what could not be measured is absent."""
    metrics: dict[str, float] = {}
    for name, records in study.complete.items():
        metrics[f"gain/{name}"] = _gain(records, study.iterations).mean
        metrics[f"end/{name}"] = mean_estimate(_ends(records, study.iterations)).mean
        measured, modelled = measured_cost(records, study.iterations), records[0].modelled_seconds()
        metrics[f"measured_seconds/{name}"] = math.nan if measured is None else measured
        metrics[f"modelled_seconds/{name}"] = math.nan if modelled is None else modelled
    return {name: value for name, value in metrics.items() if math.isfinite(value)}


def arms_curves(study: ArmStudy) -> dict[str, list[tuple[int, float]]]:
    """Held-out trained reward over iterations, a mean over seeds for each arm."""
    found = {}
    for name, records in study.complete.items():
        steps, values = _curve(records, study.iterations)
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
        parts.append(f"{len(study.unfinished)} runs are not complete: the same command goes on.")
    parts += [f"{name} cannot run here: {why}." for name, why in study.family.absent.items()]
    forwards, loads = (sum(getattr(one, name) for one in study.outcomes) for name in ("forwards", "loads"))
    parts.append(f"This time {forwards} forward passes were made and weights were loaded {loads} times.")
    return " ".join(parts)


def _arms(study: ArmStudy) -> list[Block]:
    rows = arm_rows(study)
    table = Table(
        "What each arm came to",
        tuple(rows[0]),
        tuple(tuple(row.values()) for row in rows),
        _said(study, ERRORS),
        " ".join(dict.fromkeys(f"{arm.note}." for arm in study.family.arms if arm.note)),
    )
    return [table]


def _arm_row(study: ArmStudy, arm: Arm, groups: Groups) -> dict[str, str]:
    records, base = groups.get(arm.name, ()), study.family.baseline
    less = ABSENT
    if arm.name != base and records and groups.get(base):
        less = _with_interval(_difference(records, groups[base], study.iterations))
    start = _ends_at_zero(records) if records else None
    return {
        "arm": arm.name,
        "what": arm.title,
        "explored by": _engine(records),
        "seeds": f"{len(records)} of {len(study.seeds)}",
        "untrained": ABSENT if start is None else f"{start:.4f}",
        "end": _shown(mean_estimate(_ends(records, study.iterations))) if records else ABSENT,
        "gain": _shown(_gain(records, study.iterations)) if records else ABSENT,
        f"less {base}": less,
    }


def _costs(study: ArmStudy) -> list[Block]:
    rules = tuple(
        (arm.name, ", ".join(stage for stage in COSTED if stage in arm.counted), counting_rule(_recipe(study, arm)))
        for arm in study.family.arms
    )
    what = Table(
        "Which stages count as the cost of an arm",
        ("arm", "stages", "why"),
        rules,
        note="Evaluations and audits count for no arm.",
    )
    return [what, *_measured(study), *_modelled(study)]


def _measured(study: ArmStudy) -> list[Block]:
    groups = study.complete
    rows = tuple(_measured_row(records[0].arm, records, study.iterations) for records in groups.values())
    if not rows:
        return []
    together = max((record.processes or 0 for records in groups.values() for record in records), default=0)
    shared = any(record.shared for records in groups.values() for record in records if record.timing is None)
    note = ""
    if shared:
        many = f"up to {together} processes" if together else "an unknown number of processes"
        note = (
            f"Figures marked (shared) were taken while {many} shared the device: they are too high, by how much is not "
            "known, and no two of them can be compared. `--timing` measures each arm alone."
        )
    columns = ("arm", *COSTED, "counted", "taken")
    caption = "Measured device-seconds of one iteration; stages in brackets do not count"
    return [Table(caption, columns, rows, _said(study), note)]


def _measured_row(arm: Arm, records: Sequence[ArmRecord], iterations: int) -> tuple[str, ...]:
    timing = records[0].timing
    shared = timing is None and any(record.shared for record in records)
    found = timing if timing is not None else _mean_seconds(records, iterations)
    mark = " (shared)" if shared else ""
    cells = []
    for stage in COSTED:
        shown = f"{found[stage]:.3g}{mark}" if stage in found else ABSENT
        cells.append(shown if stage in arm.counted or shown == ABSENT else f"[{shown}]")
    total = sum(seconds for stage, seconds in found.items() if stage in arm.counted)
    how = "alone, in a timing run" if timing is not None else "beside others" if shared else "alone"
    return (arm.name, *cells, f"{total:.3g}{mark}", how)


def _mean_seconds(records: Sequence[ArmRecord], iterations: int) -> dict[str, float]:
    each = [record.device_seconds(step) for record in records for step in range(1, iterations + 1)]
    stages = {stage for seconds in each for stage in seconds}
    return {stage: float(np.mean([seconds.get(stage, 0.0) for seconds in each])) for stage in stages}


def _modelled(study: ArmStudy) -> list[Block]:
    rows, reasons, rates = [], dict[str, None](), ""
    for record in _firsts(study):
        by_stage = record.modelled.by_stage(record.arm.counted)
        rates = ", ".join(f"{name} {rate / 1e12:g}" for name, rate in record.modelled.rates.items())
        if by_stage is None:
            reasons[f"{record.arm.name}: {record.modelled.reason}."] = None
            continue
        cells = [f"{1e3 * by_stage[stage]:.4g}" if stage in by_stage else ABSENT for stage in MODELLED]
        rows.append((record.arm.name, *cells, f"{1e3 * sum(by_stage.values()):.4g}"))
    if not rows and not reasons:
        return []
    caption = "Modelled milliseconds of one iteration: operations of the network over stated rates"
    said = Provenance(study.modelled_on, "", None, "modelled", f"vendor's dense rates in TFLOP/s: {rates}")
    note = "An emulated precision counts as the real one. Decoding, rewards, text and quantisation are left out."
    return [Table(caption, ("arm", *MODELLED, "counted"), tuple(rows), said, " ".join([note, *reasons]))]


def _curves(study: ArmStudy) -> list[Block]:
    groups = study.complete
    if not groups:
        return []
    reward = next(iter(groups.values()))[0].reward
    blocks: list[Block] = [
        Figure(
            "Held-out reward over iterations",
            reward_curve(_lines(groups, study.iterations, lambda _: 1.0), reward),
            f"Held-out {reward} over iterations, a line for each arm",
            _said(study, "bands are one standard error over training seeds"),
        )
    ]
    for caption, across, said, cost in (
        (
            "Held-out reward over measured device-seconds",
            "measured device-seconds of counted stages",
            _said(study, "bands as above; arms that never had the device for themselves are left out"),
            lambda records: measured_cost(records, study.iterations),
        ),
        (
            "Held-out reward over modelled GPU-hours",
            f"modelled GPU-hours ({study.modelled_on})",
            Provenance(study.modelled_on, "", None, "modelled", "hours at the vendor's dense rates, rewards measured"),
            _modelled_hours,
        ),
    ):
        lines = _lines(groups, study.iterations, cost)
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


def _recipe(study: ArmStudy, arm: Arm) -> Recipe:
    return arm_recipe(study.family.base, arm.changes, arm.name)


def _firsts(study: ArmStudy) -> list[ArmRecord]:
    """A record of each arm that was begun."""
    found: dict[str, ArmRecord] = {}
    for record in study.records:
        found.setdefault(record.arm.name, record)
    return list(found.values())


def _engine(records: Sequence[ArmRecord]) -> str:
    if not records:
        return ABSENT
    name = records[0].recipe.explore.engine.name
    where = str(records[0].environment.get("device_class", UNKNOWN))
    return name if where == UNKNOWN else f"{name} ({engine_kind(name, where)})"


def _curve(records: Sequence[ArmRecord], iterations: int) -> tuple[list[int], list[Estimate]]:
    steps = evaluations(records, iterations)
    name = f"eval/{records[0].reward}"
    return steps, mean_curve([[record.evaluated[step].metrics[name] for step in steps] for record in records])


def _lines(groups: Groups, iterations: int, cost: Callable[[Sequence[ArmRecord]], float | None]) -> list[Series]:
    lines = []
    for name, records in groups.items():
        each = cost(records)
        if each is not None:
            steps, values = _curve(records, iterations)
            x = [step * each for step in steps]
            lines.append(Series(name, x, [one.mean for one in values], [one.stderr for one in values]))
    return lines


def _modelled_hours(records: Sequence[ArmRecord]) -> float | None:
    seconds = records[0].modelled_seconds()
    return None if seconds is None else seconds / SECONDS_PER_HOUR


def _end(record: ArmRecord, iterations: int) -> float:
    steps = [step for step in evaluations([record], iterations) if step > 0]
    name = f"eval/{record.reward}"
    return float(np.mean([record.evaluated[step].metrics[name] for step in steps[-TAIL:]]))


def _ends(records: Sequence[ArmRecord], iterations: int) -> NDArray[np.float64]:
    return np.array([_end(record, iterations) for record in records])


def _ends_at_zero(records: Sequence[ArmRecord]) -> float:
    return float(np.mean([record.evaluated[0].metrics[f"eval/{record.reward}"] for record in records]))


def _gain(records: Sequence[ArmRecord], iterations: int) -> Estimate:
    starts = [record.evaluated[0].metrics[f"eval/{record.reward}"] for record in records]
    return paired_difference(_ends(records, iterations), np.array(starts))


def _difference(after: Sequence[ArmRecord], before: Sequence[ArmRecord], iterations: int) -> Estimate:
    """Of the ends, over seeds that both have."""
    mine, theirs = ({record.seed: _end(record, iterations) for record in group} for group in (after, before))
    common = sorted(mine.keys() & theirs.keys())
    return paired_difference(np.array([mine[seed] for seed in common]), np.array([theirs[seed] for seed in common]))


def _said(study: ArmStudy, note: str = "") -> Provenance:
    return Provenance(study.hardware, "", None, "measured", note)


def _shown(estimate: Estimate) -> str:
    if not math.isfinite(estimate.mean):
        return ABSENT
    return f"{estimate.mean:.4f}" + (f" ± {estimate.stderr:.2g}" if math.isfinite(estimate.stderr) else "")


def _with_interval(estimate: Estimate) -> str:
    low, high = confidence_interval(estimate)
    if not math.isfinite(estimate.mean):
        return ABSENT
    return f"{estimate.mean:+.4f}" + (f" ({low:+.4f} to {high:+.4f})" if math.isfinite(low) else "")
