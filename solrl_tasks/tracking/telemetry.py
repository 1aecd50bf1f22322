"""Usage reports to the makers of MLflow and Prefect, switched off before either is imported."""

import os
from typing import Final

SETTINGS: Final = {
    # MLflow takes only the word "true" in DO_NOT_TRACK, and a user may have set it to 1.
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
}


def switch_off() -> None:
    """Set what the environment leaves open; a choice that the user made stands."""
    for name, value in SETTINGS.items():
        os.environ.setdefault(name, value)
