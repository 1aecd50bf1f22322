"""How a flow run ends that failed: its reason is in the state, and before that in the log, which ``--watch`` shows."""

import logging
from typing import TYPE_CHECKING, Any, Final

from prefect.exceptions import FailedRun
from prefect.logging.handlers import APILogWorker
from prefect.settings import PREFECT_API_URL
from prefect.states import Failed

from flows.errors import in_words, is_for_people
from flows.outage import interrupt_behind, lost_server
from flows.patience import stop_waiting, stopped_waiting
from flows.reporting import run_logger

if TYPE_CHECKING:
    from prefect.client.schemas.objects import State

SEND_SECONDS: Final = 5.0
LOGS: Final = ("prefect.flow_runs", "prefect.engine")
"""Where Prefect's engine says once more, with its own traceback, that a flow run of a deployment failed."""


class _Told(logging.Filter):
    """Leaves out a failure that was told by its reason: a traceback of the engine below it would hide that."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not (record.exc_info and isinstance(record.exc_info[1], FailedRun))


_TOLD: Final = _Told()


def failed(message: str, data: Any = None) -> "State[Any]":
    """A failed state whose reason was told first: who watches a run sees its log and the bare name of its state."""
    run_logger().error("%s", message)
    for name in LOGS:
        logging.getLogger(name).addFilter(_TOLD)
    # Lines wait for company before they are sent, and nobody watches a run any more that has ended.
    if not stopped_waiting():
        APILogWorker.drain_all(timeout=SEND_SECONDS)
    return Failed(message=message, data=data)


def failed_by(error: Exception) -> "State[Any]":
    """The end of a flow run by an error: in words where it is for people, else raised again with its traceback.

    Where Prefect's server was lost, the run's end is tried to be told it once.
    """
    if lost := lost_server(error, str(PREFECT_API_URL.value() or "")):
        stop_waiting()
        if interrupt := interrupt_behind(error):
            raise interrupt
        return failed(lost)
    if not is_for_people(error):
        raise error
    return failed(in_words(error))
