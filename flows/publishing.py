"""A run shown in MLflow and in Prefect, from nothing but its committed summaries."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from flows.outage import wait_for_server
from flows.settings import Settings
from solrl_tasks.config.extensions import find_extension
from solrl_tasks.models.export import save_diffusers_lora
from solrl_tasks.reports.provenance import UNKNOWN, engine_kind
from solrl_tasks.reports.stored import report_files
from solrl_tasks.stages.evaluations import evaluated
from solrl_tasks.stages.recorded_recipe import recorded_recipe
from solrl_tasks.stages.session import Session
from solrl_tasks.store import atomic
from solrl_tasks.store.errors import StoreError
from solrl_tasks.store.root import Store
from solrl_tasks.store.runs import RunView, view_run
from solrl_tasks.tracking.artifacts import show_iteration
from solrl_tasks.tracking.devices import device_kind
from solrl_tasks.tracking.environments import first_environment
from solrl_tasks.tracking.mlflow_files import RunFiles
from solrl_tasks.tracking.mlflow_run import MlflowRun, RunFacts, Status, publish_or_note
from solrl_tasks.tracking.rebuild import Rebuilt, rebuild
from solrl_tasks.tracking.summary import Summary
from solrl_tasks.workers.policies import load_lora


def store_id(store: Store) -> str:
    """A name of the store that moves with it: two stores may hold runs of the same id."""
    path = store.root / "store-id.json"
    try:
        return str(atomic.read_sealed(path))
    except FileNotFoundError:
        atomic.write_sealed_once(path, os.urandom(8).hex())
        return str(atomic.read_sealed(path))


def read_summaries(view: RunView) -> list[Summary]:
    """The committed summaries of a run, in order."""
    return [Summary.model_validate(summary) for summary in view.summaries().values()]


def reward_names(view: RunView) -> list[str]:
    """What a run trains on and watches, in the order of its recipe."""
    recipe = recorded_recipe(view)
    return [reward.name for reward in (*recipe.rewards, *recipe.evaluate.rewards)]


def describe(store: Store, view: RunView, record: dict[str, Any] | None = None) -> RunFacts:
    """What MLflow is told of a run besides its summaries; device and versions are those of its first pool.

    Args:
        record: what ``first_record`` said, where it was asked already.
    """
    recipe = recorded_recipe(view)
    record = first_record(store, view) if record is None else record
    used = {spec.engine.name for spec in (recipe.explore, recipe.regenerate, recipe.evaluate.sampling)}
    return RunFacts(
        run_id=view.run_id,
        store_id=store_id(store),
        experiment=recipe.tracking.experiment,
        device_kind=device_kind(record),
        recipe=recipe.model_dump(mode="json"),
        engines={name: engine_kind(name, str(record.get("device_class", UNKNOWN))) for name in sorted(used)},
        versions=dict(record.get("libraries", {})),
        evaluates=evaluated(view),
    )


def first_record(store: Store, view: RunView) -> dict[str, Any]:
    """The environment that the run's first pool was computed in; empty where none is known."""
    return first_environment(store, read_summaries(view))


@contextmanager
def run_files(store: Store, view: RunView, summaries: list[Summary], going: bool = False) -> Iterator[RunFiles]:
    """The run's images, its report, and the adapter of its last policy in the format that diffusers loads.

    Args:
        going: the run goes on, and another policy will be its last: the adapter of this one, large for a large model,
            is left out.
    """
    with tempfile.TemporaryDirectory() as folder:
        adapter = None
        trained = [summary for summary in summaries if summary.step > 0 and "policy" in summary.refs]
        last = trained[-1] if trained and not going else None
        if last is not None:
            export_adapter(store, view, last, Path(folder))
            adapter = (last.step, Path(folder))
        yield RunFiles(
            lambda step: store.local_folder(view.iteration_dir(step)), adapter, report_files(store, view.run_id)
        )


def export_adapter(store: Store, view: RunView, summary: Summary, folder: Path) -> Path:
    """Write the adapter that the step's evaluation used, its eval EMA, for ``pipe.load_lora_weights``.

    Raises:
        StoreError: the policy is not in the store any more.
    """
    family = find_extension("family", recorded_recipe(view).model.family)
    return save_diffusers_lora(load_lora(store, summary.refs["policy"], "ema"), folder, family.convolutions)


def rebuild_run(settings: Settings, store: Store, run_id: str, status: Status) -> Rebuilt:
    """Make MLflow show exactly what the store holds of a run.

    Raises:
        TrackingError: MLflow cannot be reached or refuses.
    """
    view = view_run(store, run_id)
    summaries = read_summaries(view)
    with run_files(store, view, summaries) as files:
        facts = describe(store, view)
        return rebuild(summaries, facts, settings.mlflow.url, files, status, artifact_root(settings))


class Publisher:
    """Shows an open run as it goes on. A tracker that fails is noted and stops nothing.

    As a context it gives the MLflow run the status that the block ends with. ``shown`` is where the run is seen.
    """

    def __init__(self, settings: Settings, session: Session) -> None:
        self._settings = settings
        self._session = session
        self._record: dict[str, Any] = {}
        self._sent: list[tuple[int, int]] = []
        self.shown: MlflowRun | None = None

    def step_done(self, step: int) -> None:
        """Show a committed step in MLflow, and as artifacts of the flow run that calls.

        Raises:
            ServerLost: Prefect's server does not come back.
        """
        session = self._session
        summaries = read_summaries(session.run)
        self._publish("RUNNING", summaries)
        wait_for_server()
        there = [summary for summary in summaries if summary.step <= step]
        show_iteration(there, session.device.type, self.shown, session.reporter.note)

    def _publish(self, status: Status, summaries: list[Summary]) -> None:
        session, settings = self._session, self._settings
        # A run that goes on finds many committed steps: the first of them sends all.
        history = [(summary.step, summary.timestamp_ms) for summary in summaries]
        if status == "RUNNING" and history == self._sent:
            return
        note, shown = session.reporter.note, None
        try:
            self._record = self._record or first_record(session.store, session.run)
            with run_files(session.store, session.run, summaries, going=status == "RUNNING") as files:
                facts = describe(session.store, session.run, self._record)
                root = artifact_root(settings)
                shown = publish_or_note(note, summaries, facts, settings.mlflow.url, files, status, root)
        except (OSError, StoreError) as error:
            # What is shown is put together in a temporary folder, whose disk may be full, from policies of the store.
            note(f"MLflow does not show the latest of {session.run.run_id}: {error}. Nothing is lost")
        self.shown = shown or self.shown
        self._sent = history if shown is not None else []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        status: Status = "FINISHED" if kind is None else "FAILED" if issubclass(kind, Exception) else "KILLED"
        self._publish(status, read_summaries(self._session.run))


def artifact_root(settings: Settings) -> Path | None:
    """Where MLflow keeps files when its address is a database; a server knows by itself."""
    return None if settings.mlflow.is_http else settings.home / "mlflow" / "artifacts"
