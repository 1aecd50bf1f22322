"""A study in MLflow: one run with its figures, curves over an axis of its own, and files.

The same content sent twice changes nothing. Other figures under the same name are never mixed into a run, where MLflow
would keep both values of a step: the old MLflow run is set aside and a new one made.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pydantic import JsonValue

from solrl_tasks.store.keys import digest, sha256_hex
from solrl_tasks.tracking.mlflow_client import connect, open_experiment
from solrl_tasks.tracking.mlflow_files import log_files
from solrl_tasks.tracking.mlflow_run import BATCH, PARAMS_AT_ONCE, SENT, SUPERSEDED, MlflowRun, flatten
from solrl_tasks.tracking.names import mlflow_name

EXPERIMENT: Final = "solrl-studies"
CONTENT: Final = "solrl.content"
FILES: Final = "solrl.files"


@dataclass(frozen=True)
class StudyRecord:
    """What MLflow is told of a study.

    Attributes:
        store_id: tells two stores with the same run id apart on one server.
        about: a few sentences of markdown.
        params: a tree; nested names are joined by dots.
        metrics: by name.
        curves: by name, points of (step, value).
        files: by artifact path.
    """

    run_id: str
    store_id: str
    about: str
    params: Mapping[str, JsonValue]
    metrics: Mapping[str, float]
    curves: Mapping[str, Sequence[tuple[int, float]]]
    files: Mapping[str, bytes] = field(repr=False)

    def __post_init__(self) -> None:
        names = [mlflow_name(name) for name in (*self.metrics, *self.curves)]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"study {self.run_id}: two metrics or curves have one name in MLflow: {', '.join(twice)}")

    @property
    def flat_params(self) -> dict[str, str]:
        """Parameters by dotted name."""
        return flatten(dict(self.params)) if self.params else {}

    @property
    def content_digest(self) -> str:
        """Of all that MLflow cannot change in a run; a file can be sent again, but none can be taken back."""
        curves = {name: [[step, value] for step, value in points] for name, points in self.curves.items()}
        return digest([self.flat_params, dict(self.metrics), curves, sorted(self.files)])

    @property
    def files_digest(self) -> str:
        """Of the files' contents."""
        return digest({path: sha256_hex(data) for path, data in self.files.items()})


def publish_record(uri: str, record: StudyRecord, artifact_root: Path | None = None) -> MlflowRun:
    """Make MLflow show a study; what is there already is left alone.

    Args:
        uri: tracking URI.
        artifact_root: where artifacts go when ``uri`` is a database; a server knows by itself.

    Raises:
        TrackingError: MLflow cannot be reached or refuses; a later call makes up for it.
    """
    uri = uri.rstrip("/")
    with connect(uri) as client:
        experiment = open_experiment(client, EXPERIMENT, artifact_root)
        run = _find_or_create(client, experiment, record)
        run_id = str(run.info.run_id)
        if SENT not in run.data.tags:
            _send(client, run, record)
        if run.data.tags.get(FILES) != record.files_digest:
            log_files(client, run_id, record.files)
            client.set_tag(run_id, "mlflow.note.content", record.about)
            client.set_tag(run_id, FILES, record.files_digest)
        if run.info.status != "FINISHED":
            client.set_terminated(run_id, "FINISHED")
    return MlflowRun(run_id=run_id, experiment_id=experiment, uri=uri)


def _find_or_create(client: Any, experiment: str, record: StudyRecord) -> Any:
    query = f"tags.`solrl.run_id` = '{record.run_id}' and tags.`solrl.store_id` = '{record.store_id}'"
    found = client.search_runs([experiment], query, max_results=1000, order_by=["attributes.start_time ASC"])
    standing = [run for run in found if SUPERSEDED not in run.data.tags]
    same = [run for run in standing if run.data.tags.get(CONTENT) == record.content_digest]
    for run in standing:
        if run not in same[:1]:
            client.set_tag(run.info.run_id, SUPERSEDED, "other figures of the study")
    if same:
        return same[0]
    tags = {
        "solrl.run_id": record.run_id,
        "solrl.store_id": record.store_id,
        CONTENT: record.content_digest,
        "mlflow.note.content": record.about,
    }
    return client.create_run(experiment, tags=tags, run_name=record.run_id)


def _send(client: Any, run: Any, record: StudyRecord) -> None:
    from mlflow.entities import Param

    run_id = str(run.info.run_id)
    pairs = [Param(mlflow_name(name), value) for name, value in record.flat_params.items()]
    for start in range(0, len(pairs), PARAMS_AT_ONCE):
        client.log_batch(run_id, params=pairs[start : start + PARAMS_AT_ONCE])
    # The run's own time: a point that was sent before a kill is known again by it.
    points = list(_points(record, int(run.info.start_time)))
    for start in range(0, len(points), BATCH):
        client.log_batch(run_id, metrics=points[start : start + BATCH])
    client.set_tag(run_id, SENT, record.content_digest)


def _points(record: StudyRecord, time_ms: int) -> Iterator[Any]:
    from mlflow.entities import Metric

    for name, value in record.metrics.items():
        yield Metric(mlflow_name(name), float(value), time_ms, 0)
    for name, points in record.curves.items():
        yield from (Metric(mlflow_name(name), float(value), time_ms, int(step)) for step, value in points)
