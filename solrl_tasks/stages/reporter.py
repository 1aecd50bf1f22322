"""Who is told what is going on while a run runs."""

from typing import Protocol

from solrl_tasks.stages.outcome import StageOutcome


class Reporter(Protocol):
    """Receives the course of a run. A reporter shows; it never decides, and nothing waits for it."""

    def stage_started(self, step: int, stage: str, what: str) -> None:
        """A stage begins; ``what`` says on what, in a few words."""
        ...

    def progress(self, step: int, stage: str, done: int, total: int, unit: str) -> None:
        """``done`` of ``total`` units are in the store."""
        ...

    def stage_finished(self, step: int, outcome: StageOutcome) -> None:
        """A stage ended well."""
        ...

    def note(self, message: str) -> None:
        """Something a person should know."""
        ...


class SilentReporter:
    """Tells nobody."""

    def stage_started(self, step: int, stage: str, what: str) -> None:
        """Nothing."""

    def progress(self, step: int, stage: str, done: int, total: int, unit: str) -> None:
        """Nothing."""

    def stage_finished(self, step: int, outcome: StageOutcome) -> None:
        """Nothing."""

    def note(self, message: str) -> None:
        """Nothing."""


class Reporters:
    """Several reporters as one."""

    def __init__(self, *reporters: Reporter) -> None:
        self._reporters = reporters

    def stage_started(self, step: int, stage: str, what: str) -> None:
        """Tell all."""
        for reporter in self._reporters:
            reporter.stage_started(step, stage, what)

    def progress(self, step: int, stage: str, done: int, total: int, unit: str) -> None:
        """Tell all."""
        for reporter in self._reporters:
            reporter.progress(step, stage, done, total, unit)

    def stage_finished(self, step: int, outcome: StageOutcome) -> None:
        """Tell all."""
        for reporter in self._reporters:
            reporter.stage_finished(step, outcome)

    def note(self, message: str) -> None:
        """Tell all."""
        for reporter in self._reporters:
            reporter.note(message)
