import os
import subprocess
import sys

from solrl_tasks.tracking import telemetry


def test_what_the_user_set_stands_and_the_rest_is_off(monkeypatch):
    for name in telemetry.SETTINGS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DO_NOT_TRACK", "1")
    telemetry.switch_off()
    assert os.environ["DO_NOT_TRACK"] == "1"
    assert os.environ["MLFLOW_DISABLE_TELEMETRY"] == "true"
    assert os.environ["PREFECT_SERVER_ANALYTICS_ENABLED"] == "false"
    assert os.environ["ORT_DISABLE_TELEMETRY"] == "1"


def test_trackers_are_imported_only_when_they_are_used():
    """Each takes seconds, and telemetry must be off before."""
    code = """
import importlib, pkgutil, sys
import solrl_tasks.tracking as package
for module in pkgutil.iter_modules(package.__path__):
    importlib.import_module(f"{package.__name__}.{module.name}")
print(sorted({"mlflow", "prefect", "torch"} & set(sys.modules)))
"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
