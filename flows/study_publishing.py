"""The end of every study: its report in the store, its figures in MLflow, the report in Prefect."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from flows.publishing import artifact_root, store_id
from flows.report_artifact import show_report
from flows.reporting import current_reporter
from flows.settings import Settings
from solrl_tasks.reports import page as pages
from solrl_tasks.reports.files import page_files
from solrl_tasks.reports.stored import StoredReport, StudyFigures, read_report, write_report
from solrl_tasks.store.root import Store
from solrl_tasks.tracking.mlflow_client import TrackingError
from solrl_tasks.tracking.mlflow_run import MlflowRun
from solrl_tasks.tracking.mlflow_study import StudyRecord, publish_record

NO_METRICS: Final[Mapping[str, float]] = MappingProxyType({})
NO_CURVES: Final[Mapping[str, Sequence[tuple[int, float]]]] = MappingProxyType({})


def publish_study(
    settings: Settings,
    run_id: str,
    page: pages.Page,
    metrics: Mapping[str, float] = NO_METRICS,
    curves: Mapping[str, Sequence[tuple[int, float]]] = NO_CURVES,
) -> None:
    """Keep a study's report under its run, and show it in MLflow and, inside a flow run, in Prefect.

    The same study published again changes nothing. Where MLflow cannot be reached that is told, and the next publishing
    makes up for it, as does ``solrl track rebuild``.

    Args:
        metrics: by name; each is finite.
        curves: by name, points of (step, value), each step once, over a whole axis such as explore steps.

    Raises:
        ValueError: a value is not finite, or a step stands twice.
    """
    store = Store.open(settings.store_root)
    html = write_report(store, run_id, page, StudyFigures(metrics, curves))
    note = current_reporter().note
    shown: MlflowRun | None = None
    try:
        shown = send_study(settings, store, run_id)
    except Exception as error:  # tracking is a view: what is computed stays
        reason = str(error) if isinstance(error, TrackingError) else f"{type(error).__name__}: {error}"
        note(
            f"MLflow does not show study {run_id}: {reason}. Nothing is lost: `solrl report {run_id}` shows its "
            f"report, and the next publishing tries again, as does `solrl track rebuild {run_id}`"
        )
    show_report(run_id, page, html, shown, note)


def send_study(settings: Settings, store: Store, run_id: str) -> MlflowRun:
    """Make MLflow show the report that a study keeps.

    Raises:
        MissingObjectError, DamagedError: it keeps none, or a damaged one.
        TrackingError: MLflow cannot be reached or refuses.
    """
    report = read_report(store, run_id)
    return publish_record(settings.mlflow.url, _record(store, run_id, report), artifact_root(settings))


def _record(store: Store, run_id: str, report: StoredReport) -> StudyRecord:
    figures = report.figures or StudyFigures({}, {})
    params: dict[str, Any] = {}
    for block in report.page.blocks:
        if isinstance(block, pages.Settings):
            params = dict(block.values)
            break
    about = f"# {pages.plain(report.page.title)}\n\n{report.page.summary}"
    return StudyRecord(run_id, store_id(store), about, params, figures.metrics, figures.curves, page_files(report.page))
