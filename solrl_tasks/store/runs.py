"""Runs: one folder per run id, with its configuration, committed iterations and what it spent."""

import difflib
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final, Literal, Self

from pydantic import ValidationError

from solrl_tasks.store import atomic, places
from solrl_tasks.store.errors import ConfigChangedError, DamagedError, LockedError, MissingObjectError, StoreError
from solrl_tasks.store.journal import open_journal
from solrl_tasks.store.keys import digest
from solrl_tasks.store.lock import Lock, describe
from solrl_tasks.store.object_path import ObjectPath, Place
from solrl_tasks.store.records import differences
from solrl_tasks.store.refs import Ref
from solrl_tasks.store.root import Store, check_name

logger = logging.getLogger(__name__)
_MAY_GROW: Final = "iterations"
_NAMED: Final = 8  # runs in a message
_CONFIG_REMEDY: Final = "put the file back from a copy (the tracker has one), or use another run id"
EVALUATION_PREFIX: Final = "evaluate-"
"""Evaluations of stored policies are held by runs that train nothing; the name tells."""
_SUMMARY_REMEDY: Final = (
    "what rests on all iterations of run {run} is not answered without it. Start that run again with the same recipe "
    "and run id: it sets the file aside and makes it anew, from what the store holds as far as that goes"
)
Status = Literal["running", "finished", "interrupted", "damaged"]


class RunView:
    """A run, to read. It takes no lock; what is damaged is left where it is."""

    def __init__(self, store: Store, run_id: str) -> None:
        self.store = store
        self.run_id = check_name(run_id, "run_id")
        self.path = store.runs / run_id
        self.journal = open_journal(self.path / "spent.jsonl")

    @property
    def config(self) -> dict[str, Any]:
        """The configuration that the run was started with.

        Raises:
            MissingObjectError: there is no such run.
            DamagedError: the file is damaged; it cannot be computed again.
        """
        path = self.path / "config.json"
        try:
            return dict(atomic.read_sealed(path))
        except FileNotFoundError as error:
            raise no_such_run(self.store, self.run_id) from error
        except DamagedError as error:
            raise DamagedError(path, error.why, _CONFIG_REMEDY) from error

    def recorded(self) -> dict[str, Any] | None:
        """The configuration, or None where no such run was started yet. Raises as ``config`` does for a damaged one."""
        return self.config if (self.path / "config.json").exists() else None

    def inputs(self) -> dict[str, str]:
        """What the run was held to besides its configuration, by name; empty where that is lost."""
        try:
            pinned: dict[str, str] = atomic.read_sealed(self.path / "inputs.json")
        except (FileNotFoundError, DamagedError):
            return {}
        return pinned

    def iteration_dir(self, iteration: int) -> Place:
        """The folder of an iteration; it may not be there yet."""
        if iteration < 0:
            raise ValueError(f"an iteration is counted from 0 up, found {iteration}")
        return self.path / "iterations" / f"{iteration:04d}"

    def summary(self, iteration: int) -> dict[str, Any] | None:
        """The committed summary of an iteration, verified; None if there is none, or a damaged one."""
        return self._read(self.iteration_dir(iteration) / "summary.json")

    def summaries(self) -> dict[int, dict[str, Any]]:
        """All committed summaries by iteration, in order, verified; damaged ones are left out."""
        folder = self.path / "iterations"
        if isinstance(folder, ObjectPath):
            # One listing for all, and no request for those that are known from before.
            read = {path: data for path, data in folder.read_below("summary.json") if path.parent.name.isdigit()}
            found = {int(path.parent.name): self._unsealed(path, data) for path, data in sorted(read.items())}
        else:
            found = {number: self.summary(number) for number in self.iterations()}
        return {number: summary for number, summary in found.items() if summary is not None}

    def whole_summaries(self) -> dict[int, dict[str, Any]]:
        """``summaries`` for an answer that rests on all of them; nothing is left out.

        Raises:
            DamagedError: one is damaged; the message names the file and what to do.
        """
        return _WholeView(self.store, self.run_id).summaries()

    def refs(self, iteration: int) -> dict[str, Ref]:
        """The references noted for an iteration, by stage.

        Raises:
            DamagedError: the file is damaged, so that nobody knows what the iteration refers to.
        """
        path = self.iteration_dir(iteration) / "refs.json"
        try:
            return {stage: Ref.model_validate(ref) for stage, ref in dict(atomic.read_sealed(path)).items()}
        except FileNotFoundError:
            return {}
        except (ValidationError, ValueError, TypeError) as error:
            raise DamagedError(path, f"it holds no references ({error})") from error

    def iterations(self) -> list[int]:
        """Numbers of the iterations that have a folder, committed or not."""
        folders = (self.path / "iterations").glob("[0-9]*")
        return sorted(int(folder.name) for folder in folders if folder.name.isdigit())

    def _read(self, path: Place) -> dict[str, Any] | None:
        try:
            return dict(atomic.read_sealed(path, once=True))
        except FileNotFoundError:
            return None
        except DamagedError as error:
            self._damaged(path, error)
            return None

    def _unsealed(self, path: Place, data: bytes) -> dict[str, Any] | None:
        try:
            return dict(atomic.unseal(data, path))
        except DamagedError as error:
            self._damaged(path, error)
            return None

    def _damaged(self, _path: Place, error: DamagedError) -> None:
        logger.warning("run %s: %s", self.run_id, error)


class _WholeView(RunView):
    """A run that is read as a whole or not at all."""

    def _damaged(self, path: Place, error: DamagedError) -> None:
        raise DamagedError(path, error.why, _SUMMARY_REMEDY.format(run=self.run_id)) from error


class Run(RunView):
    """A run held by this process, from ``Run.open`` to ``close`` or the end of the process, however it ends.

    A damaged summary is moved into quarantine with a warning: its iteration is not committed any more.
    """

    def __init__(self, store: Store, run_id: str) -> None:
        super().__init__(store, run_id)
        self._held = ExitStack()
        self._lock: Lock | None = None
        self._written: dict[int, dict[str, Ref]] = {}

    @classmethod
    def open(
        cls, store: Store, run_id: str, config: dict[str, Any], complete: Callable[[Any], Any] = lambda config: config
    ) -> Self:
        """Take the run's lock, and store its configuration or compare it with the stored one.

        Args:
            run_id: letters, digits, dots, dashes and underscores.
            config: the resolved configuration, JSON. Only its ``iterations`` may grow.
            complete: gives a stored configuration the fields that did not exist when it was stored, with the values
                that stand for how it was then.

        Raises:
            LockedError: another process holds the run; the message names it.
            ConfigChangedError: the run was started with another configuration; the message names the fields.
            DamagedError: the stored configuration is damaged.
        """
        run = cls(store, run_id)
        run.path.mkdir(parents=True, exist_ok=True)
        with ExitStack() as held:
            run._lock = places.lock_at(run.path / "lock", f"run {run_id}")
            held.enter_context(run._lock.hold())
            held.enter_context(store.in_use(f"run {run_id}"))
            run._settle(config, complete)
            atomic.sweep(run.path, recursive=True)
            run._held = held.pop_all()
        return run

    def close(self) -> None:
        """Give the lock back."""
        self._held.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def note_ref(self, iteration: int, stage: str, ref: Ref) -> None:
        """Note what a stage made or used, so that it is found again and the garbage collection keeps it."""
        self.note_refs(iteration, {stage: ref})

    def note_refs(self, iteration: int, refs: Mapping[str, Ref]) -> None:
        """``note_ref`` of several at once."""
        self._confirm()
        before = self._noted(iteration)
        noted = {**before, **refs}
        if noted != before:
            content = {name: item.model_dump(mode="json") for name, item in noted.items()}
            atomic.write_sealed(self.iteration_dir(iteration) / "refs.json", content)
        if isinstance(self.path, ObjectPath):
            # Nobody else writes while the run is held, which has just been confirmed.
            self._written = {iteration: noted}

    def _noted(self, iteration: int) -> dict[str, Ref]:
        if iteration in self._written:
            return self._written[iteration]
        try:
            return self.refs(iteration)
        except DamagedError as error:
            self._damaged(self.iteration_dir(iteration) / "refs.json", error)
            return {}

    def pin_inputs(self, inputs: dict[str, str]) -> None:
        """Hold the run to what its configuration only points to, such as the contents of files.

        Args:
            inputs: names for people to digests. Recorded by the first call of a run's life, compared by later ones.

        Raises:
            ConfigChangedError: something is not what the run began with; the message names it.
        """
        path = self.path / "inputs.json"
        try:
            pinned: dict[str, str] = atomic.read_sealed(path)
        except FileNotFoundError:
            pinned = {}
        except DamagedError as error:
            self._damaged(path, error)
            pinned = {}
        changed = sorted(name for name in pinned if inputs.get(name) != pinned[name])
        if changed:
            raise ConfigChangedError(
                f"run {self.run_id} began with other contents of {', '.join(changed)}: put back what it began with, "
                "or use another run id, which uses again what both share"
            )
        if pinned != inputs:
            atomic.write_sealed(path, inputs)

    def commit_summary(self, iteration: int, summary: dict[str, Any]) -> None:
        """Commit an iteration: after this it is done for good.

        Raises:
            StoreError: another summary is committed already; the same one again is no fault.
        """
        self._confirm()
        path = self.iteration_dir(iteration) / "summary.json"
        if isinstance(path, ObjectPath) and atomic.write_sealed_once(path, summary):
            return
        stored = self.summary(iteration)
        if stored is None and atomic.write_sealed_once(path, summary):
            return
        if stored is None or digest(stored) != digest(summary):
            raise StoreError(f"run {self.run_id}: iteration {iteration} is committed with another summary")

    def _confirm(self) -> None:
        # A run whose lease was taken over must not write beside the one that took it.
        if self._lock is not None:
            self._lock.confirm()

    def _settle(self, config: dict[str, Any], complete: Callable[[Any], Any]) -> None:
        path = self.path / "config.json"
        if not path.exists():
            if self.iterations():
                why = f"it is gone, though the run has iterations in {path.parent / 'iterations'}"
                raise DamagedError(path, why, _CONFIG_REMEDY)
            atomic.write_sealed(path, config)
            return
        # Runs of earlier layouts recorded where the work was done, which is no part of a configuration any more.
        recorded = {name: value for name, value in self.config.items() if name != "workers"}
        changed = differences(complete(recorded), config)
        if not changed:
            return
        before, after = self.config.get(_MAY_GROW), config.get(_MAY_GROW)
        grows = isinstance(before, int) and isinstance(after, int) and after > before
        if grows and len(changed) == 1:
            atomic.write_sealed(path, config)
            return
        fields = [line for line in changed if not (grows and line.startswith(f"{_MAY_GROW}: "))]
        raise ConfigChangedError(
            f"run {self.run_id} was started with another configuration (stored -> asked for):{_lines(fields)}\n"
            f"Only {_MAY_GROW} may grow within a run: use the stored values, or another run id, "
            "which uses again what both share"
        )

    def _damaged(self, path: Place, error: DamagedError) -> None:
        aside = self.store.move_aside(path, str(error))
        logger.warning("run %s: %s; moved to %s", self.run_id, error, aside)


def _lines(items: Iterable[str]) -> str:
    return "".join(f"\n  {item}" for item in items)


@dataclass(frozen=True)
class RunInfo:
    """A run as listings show it.

    ``committed`` counts summaries, that of the baseline (iteration 0) included. ``status`` follows from the lock
    and from them: an ``interrupted`` run goes on when it is started again. ``holder`` names the process of a
    running one (pid, host, since).
    """

    run_id: str
    config: dict[str, Any] | None
    committed: int
    iterations: int | None
    status: Status
    holder: dict[str, Any] | None


def view_run(store: Store, run_id: str) -> RunView:
    """A run by id, to read.

    Raises:
        MissingObjectError: there is no such run; the message lists those there are.
    """
    view = RunView(store, run_id)
    if not (view.path / "config.json").exists():
        _ = view.config
    return view


def require_free(store: Store, run_id: str) -> None:
    """Look whether a run is held, before what is costly and comes before ``Run.open``, which decides.

    Raises:
        LockedError: it is; the message names who holds it.
    """
    found = places.holder_of(RunView(store, run_id).path / "lock")
    if found is not None:
        who = describe(found) if found else "another process"
        raise LockedError(f"run {run_id}: the lock is held by {who}; wait for it to end, or stop it")


def list_runs(store: Store) -> list[RunInfo]:
    """All runs of a store, by id."""
    return [_describe(RunView(store, run_id)) for run_id in _run_ids(store)]


def no_such_run(store: Store, run_id: str) -> MissingObjectError:
    """The error for a run that a store does not have. It names those that are spelled most alike, first."""
    known = _run_ids(store)
    alike = difflib.get_close_matches(run_id, known, n=_NAMED, cutoff=0.0)
    more = f" and {len(known) - len(alike)} more: see solrl runs" if len(known) > len(alike) else ""
    return MissingObjectError(f"no run {run_id!r} in {store.root}; there is {', '.join(alike) or 'none'}{more}")


def _run_ids(store: Store) -> list[str]:
    return sorted(path.parent.name for path in store.runs.glob("*/config.json"))


def _describe(view: RunView) -> RunInfo:
    committed = len(view.summaries())
    held_by = places.holder_of(view.path / "lock")
    try:
        config: dict[str, Any] | None = view.config
    except DamagedError:
        config = None
    wanted = config.get(_MAY_GROW) if config else None
    iterations = wanted if isinstance(wanted, int) else None
    return RunInfo(view.run_id, config, committed, iterations, _status(config, committed, iterations, held_by), held_by)


def _status(
    config: dict[str, Any] | None, committed: int, iterations: int | None, held_by: dict[str, Any] | None
) -> Status:
    if held_by is not None:
        return "running"
    if config is None:
        return "damaged"
    return "finished" if iterations is not None and committed > iterations else "interrupted"
