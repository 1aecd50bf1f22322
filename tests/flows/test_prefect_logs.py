"""A server that is lost costs a line of a log, and no other error loses its traceback."""

import logging

import httpx
import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings
from websockets.exceptions import ConnectionClosedError

from flows.patience import stop_waiting
from flows.prefect_logs import quieten_outages, shortened

URL = "http://127.0.0.1:4200/api"
LOST = httpx.ConnectError("refused", request=httpx.Request("POST", f"{URL}/flow_runs/"))
ELSEWHERE = httpx.ConnectError("refused", request=httpx.Request("GET", "http://127.0.0.1:5000/score"))


def logged(logger: str, error: BaseException) -> logging.LogRecord:
    """The record of an error, as a handler of Prefect's gets it."""
    record = logging.LogRecord(logger, logging.ERROR, "x.py", 1, "run %r failed", ("a",), (type(error), error, None))
    with temporary_settings({PREFECT_API_URL: URL}):
        assert shortened(record), "what happened is said in any case"
    return record


@pytest.mark.parametrize("logger", ["prefect.engine", "prefect.flow_runs", "prefect.runner.state_proposer"])
def test_a_lost_server_is_said_in_a_line(logger: str):
    record = logged(logger, LOST)
    assert record.exc_info is None
    assert record.getMessage() == "run 'a' failed: ConnectError: refused"


def test_a_service_of_prefect_speaks_to_its_server_alone():
    assert logged("prefect.FlowRunCancellingObserver", ConnectionClosedError(None, None)).exc_info is None


@pytest.mark.parametrize(
    ("logger", "error"),
    [
        ("prefect.flow_runs", ValueError("of a stage")),
        ("prefect.runner", ValueError("of Prefect")),
        ("prefect.runner", AssertionError("of Prefect")),
        ("prefect.flow_runs", ELSEWHERE),
        ("prefect.task_runs", ConnectionRefusedError("of a reward server")),
        ("solrl_tasks.rewards.remote", ELSEWHERE),
        ("flows.up", LOST),
        ("prefectory", LOST),
    ],
)
def test_every_other_error_keeps_its_traceback(logger: str, error: BaseException):
    record = logged(logger, error)
    assert record.exc_info is not None and record.getMessage() == "run 'a' failed"


@pytest.mark.usefixtures("stopped")
def test_what_prefect_asserts_of_its_retries_follows_from_giving_the_server_up():
    stop_waiting()
    assert logged("prefect.runner", AssertionError("no response")).exc_info is None
    assert logged("prefect.flow_runs", AssertionError("of a stage")).exc_info is not None


def test_every_handler_of_prefects_is_reached_and_only_once(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(logging, "raiseExceptions", True)
    handler = logging.NullHandler()
    loggers = logging.getLogger("prefect.of_a_test"), logging.getLogger("of_a_test")
    for logger in loggers:
        logger.addHandler(handler if logger.name.startswith("prefect") else logging.NullHandler())
    try:
        quieten_outages()
        quieten_outages()
        assert handler.filters == [shortened]
        assert loggers[1].handlers[0].filters == []
        assert not logging.raiseExceptions
    finally:
        for logger in loggers:
            logger.handlers.clear()
