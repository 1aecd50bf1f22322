"""One iteration of a run as a flow: its stages are the tasks, its artifacts show what came of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from prefect import flow, runtime
from prefect.states import Completed

from flows.presence import present
from flows.settings import Settings

if TYPE_CHECKING:
    from flows.publishing import Publisher
    from solrl_tasks.stages.session import Session

_open: dict[str, tuple["Session", "Publisher"]] = {}


@contextmanager
def registered(session: "Session", publisher: "Publisher") -> Iterator[None]:
    """Let the iteration flow find an open session by its run id: flows take plain JSON only."""
    _open[session.run.run_id] = session, publisher
    try:
        yield
    finally:
        del _open[session.run.run_id]


def _name() -> str:
    step = runtime.flow_run.parameters["step"]
    return "baseline" if step == 0 else f"iteration-{step:04d}"


@flow(name="iteration", flow_run_name=_name, persist_result=False, validate_parameters=False)
def iteration(run_id: str, step: int) -> Any:
    """Run one step of an open run and show it; a step that the store holds is shown as ``Reused``.

    Returns:
        The step's summary as JSON.
    """
    from solrl_tasks.stages.iteration import committed_summary, run_step
    from solrl_tasks.stages.tasks import call_as_task

    session, publisher = _open[run_id]
    with present(Settings.read(), runtime.flow_run.id, runtime.flow_run.name):
        known = committed_summary(session, step)
        summary = run_step(session, step, call_as_task)
        publisher.step_done(step)
    data = summary.model_dump(mode="json")
    return Completed(name="Reused", message="committed earlier", data=data) if known is not None else data
