"""A report that is no run of training, such as a benchmark's, as one MLflow run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pydantic import JsonValue

from solrl_tasks.tracking.mlflow_client import connect, open_experiment
from solrl_tasks.tracking.mlflow_run import BATCH, PARAMS_AT_ONCE, MlflowRun, flatten
from solrl_tasks.tracking.names import mlflow_name

REPORT: Final = "report.json"


def log_report(
    uri: str,
    experiment: str,
    name: str,
    params: Mapping[str, JsonValue],
    metrics: Mapping[str, float],
    content: str,
    artifact_root: Path | None = None,
) -> MlflowRun:
    """A new finished MLflow run with these figures, and the whole report as its artifact.

    Args:
        params: a tree; nested names are joined by dots.
        metrics: by name; characters that MLflow refuses become underscores.
        content: the report as text.
        artifact_root: where artifacts go when ``uri`` is a database; a server knows by itself.

    Raises:
        TrackingError: MLflow cannot be reached or refuses.
    """
    uri = uri.rstrip("/")
    with connect(uri) as client:
        from mlflow.entities import Metric, Param

        found = open_experiment(client, experiment, artifact_root)
        run = client.create_run(found, run_name=name)
        run_id, now = str(run.info.run_id), int(run.info.start_time)
        points = [Metric(mlflow_name(key), value, now, 0) for key, value in metrics.items()]
        for start in range(0, len(points), BATCH):
            client.log_batch(run_id, metrics=points[start : start + BATCH])
        pairs = [Param(mlflow_name(key), value) for key, value in flatten(dict(params)).items()]
        for start in range(0, len(pairs), PARAMS_AT_ONCE):
            client.log_batch(run_id, params=pairs[start : start + PARAMS_AT_ONCE])
        client.log_text(run_id, content, REPORT)
        client.set_terminated(run_id, "FINISHED")
    return MlflowRun(run_id=run_id, experiment_id=found, uri=uri)
