"""Reaching MLflow: quick to say that it is not there, quiet, and without reports to its makers."""

import os
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from solrl_tasks.tracking import telemetry

PROBE_SECONDS: Final = 5.0
MANNERS: Final = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
"""How the client behaves where the user has not said otherwise: it gives up soon, and prints nothing."""


class TrackingError(RuntimeError):
    """MLflow could not be written to; the message says why and what to do."""


def is_http(uri: str) -> bool:
    """Whether a tracking URI names a server."""
    return uri.startswith(("http://", "https://"))


@contextmanager
def connect(uri: str) -> Iterator[Any]:
    """A client of the tracking server or database at ``uri``.

    Raises:
        TrackingError: it does not answer, or an MLflow call inside the context fails.
    """
    telemetry.switch_off()
    for name, value in MANNERS.items():
        os.environ.setdefault(name, value)
    if is_http(uri):
        _probe(uri)
    elif uri.startswith("sqlite:///"):
        Path(uri.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    try:
        yield MlflowClient(tracking_uri=uri)
    except MlflowException as error:
        raise TrackingError(f"MLflow at {uri} refused: {error.message}") from error
    except OSError as error:
        raise TrackingError(f"MLflow at {uri} stopped answering: {error}") from error


def open_experiment(client: Any, name: str, artifact_root: Path | None) -> str:
    """The id of an experiment, made if there is none.

    Raises:
        TrackingError: it was deleted in MLflow, which keeps the name taken.
    """
    from mlflow.exceptions import MlflowException

    found = client.get_experiment_by_name(name)
    if found is None:
        location = None if artifact_root is None else (artifact_root / name).absolute().as_uri()
        try:
            return str(client.create_experiment(name, artifact_location=location))
        except MlflowException:
            found = client.get_experiment_by_name(name)  # another run may have made it meanwhile
            if found is None:
                raise
    if found.lifecycle_stage == "deleted":
        raise TrackingError(
            f"experiment {name!r} was deleted in MLflow: restore it (`mlflow experiments restore "
            f"--experiment-id {found.experiment_id}`), or name another in tracking.experiment for new runs"
        )
    return str(found.experiment_id)


def _probe(uri: str) -> None:
    try:
        with urllib.request.urlopen(f"{uri}/health", timeout=PROBE_SECONDS):
            return
    except urllib.error.HTTPError:
        return  # something answers; the client will say what is wrong with it
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise TrackingError(
            f"MLflow at {uri} does not answer ({reason}): start it (`solrl up`) or correct SOLRL_MLFLOW_URL"
        ) from error
