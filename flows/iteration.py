"""One iteration of a run as a flow: its stages are the tasks, its artifacts show what came of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from prefect import flow, runtime
from prefect.states import Completed

from flows.outage import interruptible
from flows.presence import present
from flows.settings import Settings

if TYPE_CHECKING:
    from flows.publishing import Publisher
    from solrl_tasks.stages.iteration import StageFunction
    from solrl_tasks.stages.outcome import StageOutcome
    from solrl_tasks.stages.session import Session
    from solrl_tasks.tracking.summary import Summary

COMMITTED: Final = "committed earlier, and all that it keeps is there"

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
    called: list[str] = []

    def call(stage: "StageFunction", session: "Session", job: Any) -> "StageOutcome":
        called.append(stage.__name__)
        return call_as_task(stage, session, job)

    with interruptible(), present(Settings.read(), runtime.flow_run.id, runtime.flow_run.name):
        known = committed_summary(session, step) is not None
        summary = run_step(session, step, call)
        reused = known and not called
        if reused:
            _report_reused(session, summary)
        publisher.step_done(step)
    data = summary.model_dump(mode="json")
    return Completed(name="Reused", message=COMMITTED, data=data) if reused else data


def _report_reused(session: "Session", summary: "Summary") -> None:
    from solrl_tasks.stages.outcome import StageOutcome
    from solrl_tasks.tracking.summary import in_order

    for stage in in_order(summary.stages):
        outcome = StageOutcome(stage=stage, state="Reused", message=COMMITTED)
        session.reporter.stage_finished(summary.step, outcome)
