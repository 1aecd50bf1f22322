"""Who is told how a study of arms goes: the log and a bar of the flow run, or the terminal."""

import logging
import time
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self
from uuid import UUID

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from flows.reporting import current_reporter, run_logger
from flows.server_watch import answers
from solrl_tasks.config.words import counted

if TYPE_CHECKING:
    from solrl_tasks.studies.runs import Outcome

logger = logging.getLogger(__name__)
UPDATE_SECONDS: Final = 5.0


class FlowWatcher:
    """A bar as an artifact of the flow run, over the steps of all runs, and a line for each run that ends."""

    def __init__(self, study: str) -> None:
        self._study = study
        self._artifact: UUID | None = None
        self._told = 0.0
        self._broken = False

    def progress(self, done: int, total: int) -> None:
        """The share done, now and then and at the end."""
        due = self._artifact is None or done >= total or time.monotonic() - self._told >= UPDATE_SECONDS
        if self._broken or total <= 0 or not due:
            return
        self._told = time.monotonic()
        if not answers():
            return
        try:
            self._tell(100.0 * done / total, f"{self._study}: {done} of {counted(total, 'step')} of all runs")
        except Exception as error:  # a bar is not worth a study: no more of it is tried
            logger.warning("no progress is shown: %s", error)
            self._broken = True

    def ended(self, outcome: "Outcome") -> None:
        """A line; a failure is a warning."""
        if outcome.state == "failed":
            current_reporter().note(str(outcome))
        else:
            run_logger().info("%s", outcome)

    def _tell(self, share: float, description: str) -> None:
        from prefect.artifacts import create_progress_artifact, update_progress_artifact

        if self._artifact is None:
            made = create_progress_artifact(share, f"{self._study}-progress", description)
            assert isinstance(made, UUID)  # a coroutine only where an event loop runs in this thread
            self._artifact = made
        else:
            update_progress_artifact(self._artifact, share, description)


class TerminalWatcher:
    """A bar over the steps of all runs, and a line for each run that ends; lines alone where there is no terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def progress(self, done: int, total: int) -> None:
        """Move the bar."""
        if self._task is None:
            self._task = self._bar.add_task("steps of all runs", total=total)
        self._bar.update(self._task, completed=done, total=total)

    def ended(self, outcome: "Outcome") -> None:
        """A line."""
        self._console.print(str(outcome), markup=False, soft_wrap=True)
