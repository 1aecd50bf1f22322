"""Runs that died: shown as Running by servers that cannot know, closed here after saying so."""

from typing import Any, Final
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import TaskRunFilter, TaskRunFilterFlowRunId, TaskRunFilterStateType
from prefect.client.schemas.filters import TaskRunFilterState as TaskState
from prefect.client.schemas.objects import State, StateType
from prefect.exceptions import ObjectNotFound
from prefect.states import Crashed

from flows.presence import find_absent, forget
from flows.servers import Report
from flows.settings import Settings

UNFINISHED: Final = (StateType.PENDING, StateType.RUNNING, StateType.CANCELLING)


def close_dead_runs(settings: Settings, report: Report) -> int:
    """Mark as Crashed the flow runs that began on this machine and whose process is gone.

    Returns:
        How many there were.
    """
    closed = 0
    with get_client(sync_client=True) as client:
        for flow_run_id in find_absent(settings):
            closed += _close(client, settings, flow_run_id, report)
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
        report(
            f"Prefect: run {flow_run.name!r} is shown as Running but its process is gone; marked as Crashed"
        )
        state: State[Any] = Crashed(
            message="Its process was killed or the machine went down. The same command goes on from there."
        )
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
