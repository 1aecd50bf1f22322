"""Runs that died: servers go on showing them as running; closed here, after saying so."""

from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import TaskRunFilter, TaskRunFilterFlowRunId, TaskRunFilterStateType
from prefect.client.schemas.filters import TaskRunFilterState as TaskState
from prefect.client.schemas.objects import State, StateType
from prefect.exceptions import ObjectNotFound
from prefect.states import Crashed

from flows.home import is_study, shown_status
from flows.lifecycle import Report
from flows.presence import find_absent, forget
from flows.settings import Settings

if TYPE_CHECKING:
    from solrl_tasks.tracking.mlflow_run import Status

UNFINISHED: Final = (StateType.PENDING, StateType.RUNNING, StateType.CANCELLING)


def close_all_dead(settings: Settings, report: Report) -> int:
    """Close what died in both servers, which must be answering.

    Returns:
        How many runs there were.
    """
    return close_dead_flow_runs(settings, report) + close_dead_mlflow_runs(settings, report)


def close_dead_flow_runs(settings: Settings, report: Report) -> int:
    """Mark as Crashed the flow runs that began on this machine and whose process is gone."""
    closed = 0
    absent = find_absent(settings)
    if not absent:
        return 0
    with get_client(sync_client=True) as client:
        for flow_run_id in absent:
            closed += _close(client, settings, flow_run_id, report)
    return closed


def close_dead_mlflow_runs(settings: Settings, report: Report) -> int:
    """End the MLflow runs that are RUNNING while no process has the run of the store open.

    Those whose iterations are all committed are FINISHED, as are studies that keep a report, the others KILLED; running
    them again reopens them.
    """
    if not (settings.store_root / "store.json").exists():
        return 0
    from flows.publishing import rebuild_run, store_id
    from flows.study_publishing import send_study
    from solrl_tasks.store.root import Store
    from solrl_tasks.store.runs import list_runs
    from solrl_tasks.tracking.mlflow_client import connect

    store = Store(settings.store_root)
    found = {run.run_id: run for run in list_runs(store)}
    query = f"attributes.status = 'RUNNING' and tags.`solrl.store_id` = '{store_id(store)}'"
    closed = 0
    with connect(settings.mlflow.url) as client:
        experiments = [experiment.experiment_id for experiment in client.search_experiments()]
        for run in client.search_runs(experiments, query, max_results=1000):
            run_id = run.data.tags["solrl.run_id"]
            status: Status = shown_status(store, found[run_id]) if run_id in found else "KILLED"
            if status == "RUNNING":
                continue
            report(f"MLflow: run {run_id!r} is shown as RUNNING but no process has it open; ended as {status}")
            client.set_terminated(run.info.run_id, status)
            if run_id in found and is_study(store, found[run_id]):
                send_study(settings, store, run_id)
            elif run_id in found and found[run_id].committed:
                rebuild_run(settings, store, run_id, status)
            closed += 1
    return closed


def _close(client: SyncPrefectClient, settings: Settings, flow_run_id: UUID, report: Report) -> bool:
    try:
        flow_run = client.read_flow_run(flow_run_id)
    except ObjectNotFound:
        return False  # known to another server, which may be asked another time
    except httpx.HTTPError as error:
        report(f"Prefect: flow run {flow_run_id} could not be looked up: {error}")
        return False
    dead = flow_run.state is not None and flow_run.state.type in UNFINISHED
    if dead:
        report(f"Prefect: run {flow_run.name!r} is shown as Running but its process is gone; marked as Crashed")
        message = "Its process was killed or the machine went down. The same command goes on from there."
        state: State[Any] = Crashed(message=message)
        client.set_flow_run_state(flow_run_id, state, force=True)
        _crash_tasks(client, flow_run_id)
    forget(settings, flow_run_id)
    return dead


def _crash_tasks(client: SyncPrefectClient, flow_run_id: UUID) -> None:
    running = TaskRunFilter(
        flow_run_id=TaskRunFilterFlowRunId(any_=[flow_run_id]),
        state=TaskState(type=TaskRunFilterStateType(any_=list(UNFINISHED))),
    )
    for task_run in client.read_task_runs(task_run_filter=running):
        client.set_task_run_state(task_run.id, Crashed(message="Its flow run died."), force=True)
