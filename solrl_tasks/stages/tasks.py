"""The stages as Prefect tasks: thin, uncached, shown under readable names.

Prefect shows what happens and decides nothing. A task takes a ticket for a call that waits in this process, so that no
tensor or session ever passes through Prefect.
"""

import itertools
from collections.abc import Callable
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State
from prefect.states import Completed

from solrl_tasks.stages.evaluate import evaluate
from solrl_tasks.stages.explore import explore
from solrl_tasks.stages.iteration import StageFunction
from solrl_tasks.stages.outcome import StageOutcome
from solrl_tasks.stages.quantize import quantize
from solrl_tasks.stages.regenerate import regenerate
from solrl_tasks.stages.select import select
from solrl_tasks.stages.session import Session
from solrl_tasks.stages.update import update

_waiting: dict[int, Callable[[], StageOutcome]] = {}
_tickets = itertools.count()


def _as_task(name: str, description: str) -> Any:
    def run(stage: str, step: int, ticket: int) -> State[dict[str, Any]] | dict[str, Any]:  # noqa: ARG001
        outcome = _waiting[ticket]()
        data = outcome.model_dump(mode="json")
        if outcome.state == "Completed":
            return Completed(message=outcome.message, data=data)
        return Completed(name=outcome.state, message=outcome.message, data=data)

    run.__name__ = name
    return task(
        name=name,
        description=description,
        task_run_name="{stage}-{step:04d}",
        cache_policy=NO_CACHE,
        persist_result=False,
    )(run)


_TASKS: dict[StageFunction, Any] = {
    quantize: _as_task("quantize", "Put the sampling weights into an engine"),
    explore: _as_task("explore", "Sample and score every candidate cheaply"),
    select: _as_task("select", "Keep the best and the worst seeds"),
    regenerate: _as_task("regenerate", "Sample and score the kept seeds precisely"),
    update: _as_task("update", "Train the policy on the precise samples"),
    evaluate: _as_task("evaluate", "Score held-out prompts with the eval EMA"),
}


def call_as_task(stage: StageFunction, session: Session, job: Any) -> StageOutcome:
    """Run a stage as its Prefect task, inside a flow.

    Raises:
        Whatever the stage raises.
    """
    ticket = next(_tickets)
    _waiting[ticket] = lambda: stage(session, job)
    try:
        # Stages that run twice in a step, each time under a name of its own.
        own = getattr(job, "stage", "")
        name = own if own in ("audit", "reference") else stage.__name__
        state = _TASKS[stage](name, job.step, ticket, return_state=True)
        data: dict[str, Any] = state.result()
    finally:
        del _waiting[ticket]
    return StageOutcome.model_validate(data)
