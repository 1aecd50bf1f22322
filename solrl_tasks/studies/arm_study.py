"""What is known of a study of arms: its runs, those that are whole, and where they ran."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from solrl_tasks.reports.page import Provenance
from solrl_tasks.studies.families import Family
from solrl_tasks.studies.results.comparison import evaluations
from solrl_tasks.studies.runs import ArmRecord, Outcome

Groups = Mapping[str, Sequence[ArmRecord]]
"""Records by arm."""


@dataclass(frozen=True)
class ArmStudy:
    """All that a page of it is made of.

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


def measured_on(study: ArmStudy, note: str = "") -> Provenance:
    """Of figures that were measured in a study."""
    return Provenance(study.hardware, "", None, "measured", note)
