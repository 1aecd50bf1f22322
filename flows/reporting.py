"""Who is told how a run goes: the terminal of the command in front, or the log of the flow run."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

from prefect.exceptions import MissingContextError
from prefect.logging import get_run_logger

if TYPE_CHECKING:
    from solrl_tasks.stages.outcome import StageOutcome
    from solrl_tasks.stages.reporter import Reporter

PROGRESS_SECONDS: Final = 10.0
_chosen: ContextVar["Reporter | None"] = ContextVar("reporter", default=None)


@contextmanager
def use_reporter(reporter: "Reporter") -> Iterator[None]:
    """Have flow runs called in the block report here rather than to their log."""
    token = _chosen.set(reporter)
    try:
        yield
    finally:
        _chosen.reset(token)


def current_reporter() -> "Reporter":
    """The reporter chosen by the caller, else the flow run's log."""
    return _chosen.get() or LogReporter()


class LogReporter:
    """Lines in the log of the flow run, progress at most every ten seconds."""

    def __init__(self) -> None:
        self._told = time.monotonic()

    def stage_started(self, step: int, stage: str, what: str) -> None:
        """A line."""
        self._told = time.monotonic()
        run_logger().info("step %d: %s, %s", step, stage, what)

    def progress(self, step: int, stage: str, done: int, total: int, unit: str) -> None:
        """A line now and then."""
        if time.monotonic() - self._told >= PROGRESS_SECONDS:
            self._told = time.monotonic()
            run_logger().info("step %d: %s, %d of %d %s", step, stage, done, total, unit)

    def stage_finished(self, step: int, outcome: "StageOutcome") -> None:
        """A line."""
        run_logger().info(
            "step %d: %s %s in %.1f s: %s",
            step,
            outcome.stage,
            outcome.state,
            outcome.seconds,
            outcome.message,
        )

    def note(self, message: str) -> None:
        """A warning: somebody should read it."""
        run_logger().warning("%s", message)


def run_logger() -> "logging.Logger | logging.LoggerAdapter[logging.Logger]":
    """The log of the flow or task run; outside of one, that of this module."""
    try:
        return get_run_logger()
    except MissingContextError:
        return logging.getLogger(__name__)
