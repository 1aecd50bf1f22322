"""A report among the artifacts of a flow run: its text, and where the page is."""

from collections.abc import Callable

from flows.outage import wait_for_server
from solrl_tasks.reports.markdown import render_linked
from solrl_tasks.reports.page import Page
from solrl_tasks.reports.stored import HTML
from solrl_tasks.store.object_path import Place
from solrl_tasks.tracking import telemetry
from solrl_tasks.tracking.artifacts import artifact_key
from solrl_tasks.tracking.mlflow_files import REPORT_FOLDER
from solrl_tasks.tracking.mlflow_run import MlflowRun


def show_report(run_id: str, page: Page, html: Place, mlflow: MlflowRun | None, note: Callable[[str], None]) -> None:
    """Make the artifacts of a report: ``<run>-report``, its text, and ``<run>-report-page``, a link to it in MLflow.

    Outside of a flow run nothing is made. A fault of Prefect is told through ``note`` and goes no further.

    Raises:
        ServerLost: its server does not come back.
    """
    telemetry.switch_off()
    from prefect.artifacts import create_link_artifact, create_markdown_artifact
    from prefect.context import FlowRunContext

    if FlowRunContext.get() is None:
        return
    wait_for_server()

    def address(name: str) -> str:
        return "" if mlflow is None else mlflow.image_url(f"{REPORT_FOLDER}/{name}")

    try:
        text = f"{render_linked(page, address)}\nThe page is `{html}`\n"
        create_markdown_artifact(text, artifact_key(run_id, "report"), f"Report of {run_id}")
        if mlflow is not None and mlflow.url:
            link = mlflow.artifact_url(f"{REPORT_FOLDER}/{HTML}")
            create_link_artifact(link, f"Report of {run_id}", artifact_key(run_id, "report-page"), "The page in MLflow")
    except Exception as error:  # what is shown may not stop what is done
        note(f"Prefect does not show the report of {run_id}: {type(error).__name__}: {error}")
