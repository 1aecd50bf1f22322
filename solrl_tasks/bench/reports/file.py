"""A report of any measurement, and its file."""

from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from solrl_tasks.bench.reports.ceiling import CeilingReport
from solrl_tasks.bench.reports.iteration import IterationReport
from solrl_tasks.bench.reports.rollout import RolloutReport
from solrl_tasks.bench.reports.sync import SyncBenchReport
from solrl_tasks.bench.reports.update import UpdateReport

Report = Annotated[
    RolloutReport | UpdateReport | SyncBenchReport | IterationReport | CeilingReport, Field(discriminator="bench")
]
_ADAPTER: TypeAdapter[Report] = TypeAdapter(Report)


class ReportError(ValueError):
    """A file that is no report of a measurement; the message names it."""


def write_report(report: Report, path: Path) -> None:
    """Write a report as JSON; the folder is made if absent."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(report.model_dump_json(indent=2) + "\n", encoding="utf-8")


def read_report(path: Path) -> Report:
    """Read a report.

    Raises:
        ReportError: the file is absent, or holds something else.
    """
    try:
        return _ADAPTER.validate_json(path.read_bytes())
    except OSError as error:
        raise ReportError(f"{path} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        fault = error.errors()[0]
        where = ".".join(str(part) for part in fault["loc"]) or "file"
        raise ReportError(
            f"{path} is no report of this version of `solrl bench`: {where}: {fault['msg']}; measure again"
        ) from error
