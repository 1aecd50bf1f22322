"""Usage reports to the makers of MLflow, Prefect and ONNX Runtime, switched off before any of them is imported."""

import os
from typing import Final

SETTINGS: Final = {
    # MLflow takes only the word "true" in DO_NOT_TRACK, and a user may have set it to 1.
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    # Read as the library is loaded; without it a file of the user's is written. The reward that reads sets it too.
    "ORT_DISABLE_TELEMETRY": "1",
}


def switch_off() -> None:
    """Set what the environment leaves open; a choice that the user made stands."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
