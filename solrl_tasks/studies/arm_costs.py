"""What an iteration of each arm costs, as tables: measured, and apart from it modelled."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from solrl_tasks.config.recipe import Recipe
from solrl_tasks.config.words import counted
from solrl_tasks.reports.page import Block, Provenance, Table
from solrl_tasks.studies.arm_study import ArmStudy, measured_on
from solrl_tasks.studies.arms import COSTED, Arm, arm_recipe, counting_rule
from solrl_tasks.studies.results.findings import SECONDS_PER_HOUR
from solrl_tasks.studies.runs import ArmRecord

ABSENT: Final = "-"
MODELLED: Final = ("explore", "regenerate", "update")


def cost_tables(study: ArmStudy) -> list[Block]:
    """Which stages count, and what they took."""
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
        many = f"up to {counted(together, 'process', 'processes')}" if together else "an unknown number of processes"
        note = (
            f"Figures marked (shared) were taken while {many} shared the device: they are too high, by how much is not "
            "known, and no two of them can be compared. `--timing` measures each arm alone."
        )
    columns = ("arm", *COSTED, "counted", "taken")
    caption = "Measured device-seconds of one iteration; stages in brackets do not count"
    return [Table(caption, columns, rows, measured_on(study), note)]


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


def modelled_hours(records: Sequence[ArmRecord]) -> float | None:
    """GPU-hours of one iteration at the vendor's rates; None where they cannot be told."""
    seconds = records[0].modelled_seconds()
    return None if seconds is None else seconds / SECONDS_PER_HOUR


def _recipe(study: ArmStudy, arm: Arm) -> Recipe:
    return arm_recipe(study.family.base, arm.changes, arm.name)


def _firsts(study: ArmStudy) -> list[ArmRecord]:
    """A record of each arm that was begun."""
    found: dict[str, ArmRecord] = {}
    for record in study.records:
        found.setdefault(record.arm.name, record)
    return list(found.values())
