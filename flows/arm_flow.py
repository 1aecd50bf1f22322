"""What the flows of studies of arms share: their parameters, and how they end."""

from typing import Annotated, Any

from prefect import runtime
from prefect.states import Completed, Failed
from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from flows.arm_study import Asked, plain_result, plan_arms, study_arms
from flows.arm_watching import FlowWatcher
from flows.errors import in_words, is_for_people
from flows.presence import present
from flows.reporting import current_reporter
from flows.settings import Settings

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
        if is_for_people(error):
            return Failed(message=in_words(error))
        raise
    from solrl_tasks.studies.arms_page import arms_summary

    data = plain_result(run_id, study)
    if study.failed:
        failed = ", ".join(one.run_id for one in study.failed)
        return Failed(message=f"{len(study.failed)} runs failed, the others are done: {failed}", data=data)
    return Completed(message=arms_summary(study), data=data)


def _planned(settings: Settings, asked: Asked) -> dict[str, Any]:
    from prefect.artifacts import create_table_artifact

    from solrl_tasks.studies.forecast import forecast_rows, forecast_summary

    found = plan_arms(settings, asked)
    create_table_artifact(forecast_rows(found), f"{asked.study}-plan", forecast_summary(found))
    current_reporter().note(forecast_summary(found))
    return found.as_json()
