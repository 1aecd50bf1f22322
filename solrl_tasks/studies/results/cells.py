"""Cells of tables, lines below them, and figures."""

import math
from collections.abc import Iterable, Mapping
from typing import Final

from solrl_tasks.analysis.estimates import Estimate, confidence_interval
from solrl_tasks.reports.page import Block, Figure, Kind, Provenance, Text
from solrl_tasks.studies.results.findings import Results
from solrl_tasks.studies.results.verdicts import Claim

ABSENT: Final = "-"
ERRORS: Final = "errors over training seeds"
BANDS: Final = "bands and bars: one standard error over training seeds"


def figure(
    found: Results, pictures: Mapping[str, bytes], name: str, caption: str, kind: Kind = "measured", note: str = BANDS
) -> list[Block]:
    """A plot by its name with what is said below it; nothing where it was not drawn."""
    if name not in pictures:
        return []
    return [Figure(caption, pictures[name], caption, said(found, note, kind))]


def said(found: Results, note: str = ERRORS, kind: Kind = "measured") -> Provenance:
    """Where numbers come from: measured on the hardware of the runs, or modelled for another."""
    measured = ", ".join(found.hardware)
    if kind == "measured":
        return Provenance(measured, "", None, kind, note)
    where = f"nominal rates of {found.modelled_hardware}"
    return Provenance(where, "", None, kind, f"rewards measured on {measured or 'unknown hardware'}; {note}")


def claim_lines(claims: Iterable[Claim]) -> list[Block]:
    """Claims as a list; nothing where there is none."""
    lines = [f"- {claim.line}" for claim in claims]
    return [Text("\n".join(lines))] if lines else []


def shown(estimate: Estimate, digits: int = 4) -> str:
    """Mean and standard error; a dash where there is nothing."""
    if not math.isfinite(estimate.mean):
        return ABSENT
    error = f" ± {estimate.stderr:.2g}" if math.isfinite(estimate.stderr) else ""
    return f"{estimate.mean:.{digits}g}{error}"


def with_interval(estimate: Estimate) -> str:
    """A difference with its sign and 95 % by Student's t."""
    low, high = confidence_interval(estimate)
    if not math.isfinite(estimate.mean):
        return ABSENT
    return f"{estimate.mean:+.4f}" + (f" ({low:+.4f} to {high:+.4f})" if math.isfinite(low) else "")


def between(value: float, low: float, high: float) -> str:
    """A ratio and its interval; 0 is one that is never reached."""
    if not math.isfinite(value):
        return "never" if low == 0 else ABSENT
    if not math.isfinite(low):
        return f"{value:.2f}"
    return f"{value:.2f} ({'never' if low == 0 else f'{low:.2f}'} to {high:.2f})"


def plain_number(value: float | None, form: str) -> str:
    """A number as it is to be shown; a dash where there is none."""
    return ABSENT if value is None or not math.isfinite(value) else f"{value:{form}}"
