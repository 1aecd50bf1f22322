"""Runs: one folder per run id, with its configuration, committed iterations and what it spent."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

from solrl_tasks.store.refs import Ref
from solrl_tasks.store.root import Store


@dataclass(frozen=True)
class RunInfo:
    """A run as listings show it. An interrupted run goes on when started again."""

    run_id: str
    config: dict[str, Any] | None
    committed: int
    iterations: int | None
    status: Literal["running", "finished", "interrupted", "damaged"]
    holder: dict[str, Any] | None


class Journal:
    """What a run spent, appended as it is spent; survives a kill at any moment."""

    def append(self, entry: dict[str, Any]) -> None:
        """Add an entry and bring it to the disk. It needs ``stage`` (a name) and ``seconds``."""
        raise NotImplementedError

    def entries(self) -> list[dict[str, Any]]:
        """All whole entries, in order."""
        raise NotImplementedError

    def totals(self, iteration: int | None = None) -> dict[str, float]:
        """Seconds by stage, of all entries or of those with this ``iteration``."""
        raise NotImplementedError


class RunView:
    """A run, to read. Takes no lock."""

    run_id: str
    journal: Journal

    @property
    def config(self) -> dict[str, Any]:
        """The configuration that the run was started with."""
        raise NotImplementedError

    def iteration_dir(self, iteration: int) -> Path:
        """The folder of an iteration."""
        raise NotImplementedError

    def summary(self, iteration: int) -> dict[str, Any] | None:
        """The committed summary of an iteration, verified; None if there is none, or a damaged one."""
        raise NotImplementedError

    def summaries(self) -> dict[int, dict[str, Any]]:
        """All committed summaries by iteration, in order, verified."""
        raise NotImplementedError

    def refs(self, iteration: int) -> dict[str, Ref]:
        """The references noted for an iteration, by stage."""
        raise NotImplementedError


class Run(RunView):
    """A run held by this process."""

    @classmethod
    def open(cls, store: Store, run_id: str, config: dict[str, Any]) -> Self:
        """Take the run's lock and compare its configuration. Use it as a context, or ``close`` it."""
        raise NotImplementedError

    def close(self) -> None:
        """Give the lock back."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        raise NotImplementedError

    def __exit__(self, *exception: object) -> None:
        raise NotImplementedError

    def note_ref(self, iteration: int, stage: str, ref: Ref) -> None:
        """Note what a stage made or used, so that the garbage collection keeps it."""
        raise NotImplementedError

    def commit_summary(self, iteration: int, summary: dict[str, Any]) -> None:
        """Commit an iteration. The same summary again is no fault; another one is refused."""
        raise NotImplementedError


def view_run(store: Store, run_id: str) -> RunView:
    """A run by id, to read."""
    raise NotImplementedError


def list_runs(store: Store) -> list[RunInfo]:
    """All runs of a store, by id."""
    raise NotImplementedError
