"""What Prefect logs of a server that does not answer: a line each, where it has a traceback for all that it tried."""

import logging
from typing import Final

from flows.outage import lost_server
from flows.patience import stopped_waiting

RUNS: Final = ("prefect.flow_runs", "prefect.task_runs", "prefect.engine")
"""Who tells of errors that may be ours, or of another server."""


def quieten_outages() -> None:
    """Let a server of Prefect that is lost cost no tracebacks in this process; every other error keeps its own.

    What cannot be sent is told by the watch of the server, once.
    """
    # The worker that sends lines of logs says in a line of its own, for each bundle of them, that it could not.
    logging.raiseExceptions = False
    loggers = [logger for logger in logging.root.manager.loggerDict.values() if isinstance(logger, logging.Logger)]
    for logger in (logging.root, *filter(_is_prefects, loggers)):
        for handler in logger.handlers:
            handler.addFilter(shortened)


def shortened(record: logging.LogRecord) -> bool:
    """Take the traceback from a record of a server that does not answer; every record is let through."""
    error = record.exc_info[1] if record.exc_info and _is_prefects(record) else None
    if error is not None and _is_of_the_server(error, record.name):
        record.msg, record.args = f"{record.getMessage()}: {type(error).__name__}: {error}", ()
        record.exc_info = record.exc_text = None
    return True


def _is_prefects(named: logging.Logger | logging.LogRecord) -> bool:
    return named.name.split(".")[0] == "prefect"


def _is_of_the_server(error: BaseException, logger: str) -> bool:
    from httpx import TransportError
    from prefect.settings import PREFECT_API_URL
    from websockets.exceptions import WebSocketException

    if lost_server(error, str(PREFECT_API_URL.value() or "")):
        return True
    if logger.startswith(RUNS):
        return False
    # Prefect's own services speak to its server alone, and assert that nobody takes back how often that is tried.
    given_up = stopped_waiting() and isinstance(error, AssertionError)
    return given_up or isinstance(error, WebSocketException | TransportError | ConnectionError)
