"""What the flows of studies of arms share: their parameters, and how they end."""

from typing import Annotated, Any

from prefect import runtime
from prefect.states import Completed
from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from flows.arm_study import Asked, plain_result, plan_arms, study_arms
from flows.arm_watching import FlowWatcher
from flows.ending import failed, failed_by
from flows.presence import present
from flows.reporting import current_reporter
from flows.settings import Settings
from solrl_tasks.config.words import counted

Seeds = Annotated[list[Annotated[int, Field(ge=0, le=2**63 - 1)]], Field(min_length=1)]
Arms = Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)] | SkipJsonSchema[None]
Processes = Annotated[int, Field(ge=1, le=256)]
Hours = Annotated[float, Field(ge=0)] | SkipJsonSchema[None]
Timed = Annotated[int, Field(ge=0, le=1000)]


def run_study(asked: Asked, plan: bool) -> Any:
    """Run a study inside of a flow run, or tell what it would take."""
    settings = Settings.read()
    try:
        if plan:
            return _planned(settings, asked)
        with present(settings, runtime.flow_run.id, runtime.flow_run.name):
            run_id, study = study_arms(settings, asked, FlowWatcher(asked.study))
    except Exception as error:
        return failed_by(error)
    from solrl_tasks.studies.arms_page import arms_summary

    data = plain_result(run_id, study)
    if study.failed:
        # What a run failed by may be a whole traceback: its last line says what it was, the log has all of it.
        told = "\n".join(f"{one.run_id}: {one.error.strip().splitlines()[-1]}" for one in study.failed)
        return failed(f"{len(study.failed)} of {counted(len(study.outcomes), 'run')} failed:\n{told}", data)
    return Completed(message=arms_summary(study), data=data)


def _planned(settings: Settings, asked: Asked) -> dict[str, Any]:
    from prefect.artifacts import create_table_artifact

    from solrl_tasks.studies.forecast import forecast_rows, forecast_summary

    found = plan_arms(settings, asked)
    create_table_artifact(forecast_rows(found), f"{asked.study}-plan", forecast_summary(found))
    current_reporter().note(forecast_summary(found))
    return found.as_json()
