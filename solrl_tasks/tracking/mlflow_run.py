"""One MLflow run per run, written only from committed summaries.

Every summary is logged with its own timestamp, and MLflow drops a point that it holds already, so replaying
is harmless. Two tags say which history MLflow was given: one set before the points are sent, one after.
Points of another history (a store that was reset, a summary that was deleted and measured again) are never
mixed into a run: MLflow would keep both values of a step without a word.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field, JsonValue

from solrl_tasks.config.base import Frozen
from solrl_tasks.store.keys import digest
from solrl_tasks.tracking.devices import DeviceKind
from solrl_tasks.tracking.mlflow_client import TrackingError, connect, is_http, open_experiment
from solrl_tasks.tracking.mlflow_files import RunFiles, upload
from solrl_tasks.tracking.points import batches, check_order, history_digests
from solrl_tasks.tracking.summary import Summary

Status = Literal["RUNNING", "FINISHED", "FAILED", "KILLED"]
NOTE: Final = "mlflow.note.content"

SENDING: Final = "solrl.sending"
SENT: Final = "solrl.sent"
SUPERSEDED: Final = "solrl.superseded_by"
BATCH: Final = 1000
PARAM_LENGTH: Final = 6000
PARAMS_AT_ONCE: Final = 100
UNKNOWN_DEVICE: Final = "What it ran on is not known"


class RunFacts(Frozen):
    """What MLflow is told of a run besides its summaries.

    Attributes:
        store_id: tells two stores with the same run id apart on one server.
        device_kind: what the hours are hours of; ``unknown`` where no block says where it was computed.
        recipe: the resolved recipe as a plain tree.
        engines: names of the engines used, and whether each is real or emulated.
        versions: of the libraries, by name.
        evaluates: names of the policies that an evaluation measures; empty for a run that trains.
    """

    run_id: str
    store_id: str
    experiment: str
    device_kind: DeviceKind
    recipe: dict[str, JsonValue]
    engines: dict[str, Literal["real", "emulated"]]
    versions: dict[str, str]
    evaluates: dict[str, str] = Field(default_factory=dict)

    @property
    def config_digest(self) -> str:
        """Digest of the recipe without ``iterations``, the one field that may grow."""
        return digest({name: value for name, value in self.recipe.items() if name != "iterations"})


class MlflowRun(Frozen):
    """Where a run is shown; addresses are empty where there is no server. ``notes`` are for the user."""

    run_id: str
    experiment_id: str
    uri: str
    notes: tuple[str, ...] = ()

    @property
    def url(self) -> str:
        """The page of the run."""
        return self._page("")

    @property
    def charts_url(self) -> str:
        """The page of its curves."""
        return self._page("/model-metrics")

    def artifact_url(self, path: str) -> str:
        """The page of an artifact, such as ``samples/iter-0003.png``."""
        return self._page(f"/artifacts/{path}")

    def image_url(self, path: str) -> str:
        """The bytes of an artifact."""
        return f"{self.uri}/get-artifact?path={path}&run_uuid={self.run_id}" if is_http(self.uri) else ""

    def _page(self, path: str) -> str:
        if not is_http(self.uri):
            return ""
        # Without the workflow MLflow opens among pages for language models.
        run = f"{self.uri}/#/experiments/{self.experiment_id}/runs/{self.run_id}"
        return f"{run}{path}?workflowType=machine_learning"


def publish(
    summaries: Sequence[Summary],
    facts: RunFacts,
    uri: str,
    files: RunFiles | None = None,
    status: Status = "RUNNING",
    artifact_root: Path | None = None,
) -> MlflowRun:
    """Make MLflow show what the store holds; what is there already is left alone.

    Args:
        summaries: every committed summary of the run, in order.
        uri: tracking URI, such as ``http://127.0.0.1:5000`` or ``sqlite:////folder/mlflow.db``.
        files: images, adapter; none are logged without it.
        artifact_root: where artifacts go when ``uri`` is a database; a server knows by itself.

    Raises:
        TrackingError: MLflow cannot be reached or refuses; nothing is lost, a later call makes up for it.
        ValueError: the summaries are not one run's history.
    """
    check_order(summaries)
    uri = uri.rstrip("/")
    with connect(uri) as client:
        experiment = open_experiment(client, facts.experiment, artifact_root)
        run, notes = _find_or_create(client, experiment, summaries, facts)
        _describe(client, run, facts)
        _send(client, run, summaries)
        notes += upload(client, run, summaries, facts.recipe, files)
        _set_status(client, run, summaries, status)
    return MlflowRun(run_id=run.info.run_id, experiment_id=experiment, uri=uri, notes=tuple(notes))


def set_aside(facts: RunFacts, uri: str) -> str | None:
    """Tag the MLflow run that stands for a run as superseded, so that the next ``publish`` makes a new one.

    Returns:
        The id of that MLflow run, None if there was none.

    Raises:
        TrackingError: MLflow cannot be reached or refuses.
    """
    with connect(uri.rstrip("/")) as client:
        experiment = client.get_experiment_by_name(facts.experiment)
        found = None if experiment is None else _find(client, experiment.experiment_id, facts)
        if found is None:
            return None
        client.set_tag(found.info.run_id, SUPERSEDED, "a rebuild")
        client.set_terminated(found.info.run_id, "KILLED")
        return str(found.info.run_id)


def publish_or_note(
    note: Callable[[str], None],
    summaries: Sequence[Summary],
    facts: RunFacts,
    uri: str,
    files: RunFiles | None = None,
    status: Status = "RUNNING",
    artifact_root: Path | None = None,
) -> MlflowRun | None:
    """As ``publish``, for use inside a run: what goes wrong is told through ``note``, and the run goes on."""
    try:
        shown = publish(summaries, facts, uri, files, status, artifact_root)
    except Exception as error:  # tracking is a view: no fault of it may stop a run
        reason = str(error) if isinstance(error, TrackingError) else f"{type(error).__name__}: {error}"
        note(
            f"MLflow does not show the latest of {facts.run_id}: {reason}. Nothing is lost: its summaries "
            f"are safe, and the next one tries again, as does `solrl track rebuild {facts.run_id}`"
        )
        return None
    for line in shown.notes:
        note(line)
    return shown


def _find_or_create(
    client: Any, experiment: str, summaries: Sequence[Summary], facts: RunFacts
) -> tuple[Any, list[str]]:
    found = _find(client, experiment, facts)
    if found is None:
        return _create(client, experiment, summaries, facts), []
    why = _conflict(found, summaries, facts)
    if why is None:
        return found, []
    old = found.info.run_id
    # Tagged before there is a new one, so that a kill in between does not leave two new ones.
    client.set_tag(old, SUPERSEDED, "a new run")
    run = _create(client, experiment, summaries, facts)
    client.set_tag(old, SUPERSEDED, run.info.run_id)
    client.set_terminated(old, "KILLED")
    note = (
        f"MLflow run {old} of {facts.run_id} shows another history than the store ({why}): it stays as "
        f"it is, tagged {SUPERSEDED}, and a new MLflow run {run.info.run_id} shows what the store holds"
    )
    return run, [note]


def _find(client: Any, experiment: str, facts: RunFacts) -> Any | None:
    query = f"tags.`solrl.run_id` = '{facts.run_id}' and tags.`solrl.store_id` = '{facts.store_id}'"
    candidates = client.search_runs([experiment], query, max_results=1000, order_by=["attributes.start_time ASC"])
    standing = [run for run in candidates if SUPERSEDED not in run.data.tags]
    return standing[0] if standing else None


def _conflict(run: Any, summaries: Sequence[Summary], facts: RunFacts) -> str | None:
    if run.data.params.get("config_digest", facts.config_digest) != facts.config_digest:
        return "its recipe differs"
    digests = history_digests(summaries)
    for tag in (SENT, SENDING):
        if tag not in run.data.tags:
            continue
        step, known = _parse_mark(run.data.tags[tag])
        if step not in digests:
            return f"it was given step {step}, which the store does not hold"
        if digests[step] != known:
            return f"other values or times up to step {step}"
    return None


def _create(client: Any, experiment: str, summaries: Sequence[Summary], facts: RunFacts) -> Any:
    tags = {
        "solrl.run_id": facts.run_id,
        "solrl.store_id": facts.store_id,
        NOTE: _note(facts),
    }
    start = summaries[0].timestamp_ms if summaries else None
    return client.create_run(experiment, start_time=start, tags=tags, run_name=facts.run_id)


def _note(facts: RunFacts) -> str:
    engines = ", ".join(f"{name} ({kind})" for name, kind in sorted(facts.engines.items()))
    lines = [
        f"Sol-RL run **{facts.run_id}**; engines: {engines}.",
        "Made from the run's store: nothing is lost with it.",
    ]
    if facts.device_kind == "cpu":
        lines.append("It ran without a GPU: the `gpu_hours/` metrics are hours of the CPU device.")
    elif facts.device_kind == "unknown":
        lines.append(f"{UNKNOWN_DEVICE}: the `gpu_hours/` metrics are hours of whatever device that was.")
    return "\n\n".join(lines)


def _describe(client: Any, run: Any, facts: RunFacts) -> None:
    from mlflow.entities import Param, RunTag

    params = {"config_digest": facts.config_digest, **flatten(facts.recipe)}
    params.pop("iterations", None)
    missing = [Param(name, value) for name, value in params.items() if name not in run.data.params]
    for start in range(0, len(missing), PARAMS_AT_ONCE):
        client.log_batch(run.info.run_id, params=missing[start : start + PARAMS_AT_ONCE])
    tags = {
        "solrl.device_kind": facts.device_kind,
        "solrl.iterations": str(facts.recipe.get("iterations", "")),
    }
    tags |= {f"solrl.engine.{name}": kind for name, kind in facts.engines.items()}
    tags |= {f"solrl.evaluates.{name}": policy for name, policy in facts.evaluates.items()}
    tags |= {f"solrl.version.{name}": version for name, version in facts.versions.items()}
    if UNKNOWN_DEVICE in run.data.tags.get(NOTE, ""):
        tags[NOTE] = _note(facts)
    changed = [RunTag(name, value) for name, value in tags.items() if run.data.tags.get(name) != value]
    if changed:
        client.log_batch(run.info.run_id, tags=changed)


def _send(client: Any, run: Any, summaries: Sequence[Summary]) -> None:
    from mlflow.entities import Metric

    sent, _ = _parse_mark(run.data.tags[SENT]) if SENT in run.data.tags else (-1, "")
    new = [summary for summary in summaries if summary.step > sent]
    if not new:
        return
    step, known = new[-1].step, history_digests(summaries)[new[-1].step]
    client.set_tag(run.info.run_id, SENDING, f"{step}:{known}")
    for batch in batches(new, BATCH):
        metrics = [Metric(p.name, p.value, p.timestamp_ms, p.step) for p in batch]
        client.log_batch(run.info.run_id, metrics=metrics)
    client.set_tag(run.info.run_id, SENT, f"{step}:{known}")


def _set_status(client: Any, run: Any, summaries: Sequence[Summary], status: Status) -> None:
    if run.info.status == status:
        return
    if status == "RUNNING":
        client.update_run(run.info.run_id, status=status)
        return
    end = summaries[-1].timestamp_ms if summaries else None
    client.set_terminated(run.info.run_id, status, end)


def _parse_mark(tag: str) -> tuple[int, str]:
    step, _, known = tag.partition(":")
    return (int(step), known) if step.isdigit() else (-1, known)


def flatten(tree: dict[str, JsonValue]) -> dict[str, str]:
    """A recipe as MLflow params: dotted names, values as text, cut where MLflow would refuse them.

    The whole recipe is logged as ``config.yaml`` beside them.
    """
    flat: dict[str, str] = {}
    for name, value in _leaves("", tree):
        text = str(value)
        flat[name] = text if len(text) <= PARAM_LENGTH else text[: PARAM_LENGTH - 1] + "…"
    return flat


def _leaves(prefix: str, value: JsonValue) -> list[tuple[str, JsonValue]]:
    if isinstance(value, dict) and value:
        return [leaf for name, item in value.items() for leaf in _leaves(f"{prefix}.{name}" if prefix else name, item)]
    if isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
        return [leaf for position, item in enumerate(value) for leaf in _leaves(f"{prefix}.{position}", item)]
    return [(prefix, value)]
