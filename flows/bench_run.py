"""A run whose iterations are timed: in a home and with servers of its own."""

import importlib.metadata
import importlib.util
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import yaml

from flows.console import say
from flows.errors import UserError
from flows.processes import free_port
from flows.settings import Address, Settings

if TYPE_CHECKING:
    from solrl_tasks.bench.reports.iteration import IterationReport
    from solrl_tasks.config.recipe import Recipe
    from solrl_tasks.tracking.summary import Summary


@contextmanager
def own_home(asked: Path | None) -> Iterator[Path]:
    if asked is not None:
        yield asked
        return
    with tempfile.TemporaryDirectory(prefix="solrl-bench-") as folder:
        say(f"Everything is written to {folder}, which is removed at the end; --home keeps it")
        yield Path(folder)


def run_iterations(recipe: "Recipe", warm_up: int, settings: Settings) -> "IterationReport":
    import torch

    from flows.commands.demo import run_here
    from solrl_tasks.bench.environment import describe_environment
    from solrl_tasks.bench.iteration import report_iterations
    from solrl_tasks.workers.numerics import default_device

    device = default_device()
    environment = describe_environment(device)
    settings = on_free_ports(settings)
    settings.home.mkdir(parents=True, exist_ok=True)
    run_id = f"{recipe.name}-{recipe.seed}"
    config = settings.home / f"{run_id}.yaml"
    config.write_text(yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False), encoding="utf-8")
    run_here(settings, run_id, str(config), {}, "bench iteration")
    summaries = _summaries(settings, run_id)
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    tree = recipe.model_dump(mode="json")
    return report_iterations(environment, tree, _servers(settings), summaries, warm_up, peak)


def _summaries(settings: Settings, run_id: str) -> "list[Summary]":
    from flows.publishing import read_summaries
    from solrl_tasks.store.root import Store
    from solrl_tasks.store.runs import view_run

    return read_summaries(view_run(Store(settings.store_root), run_id))


def _servers(settings: Settings) -> dict[str, str]:
    known = {"Prefect": (settings.prefect.url, "prefect"), "MLflow": (settings.mlflow.url, "mlflow", "mlflow-skinny")}
    return {name: f"{_version(*packages)} by {urlsplit(url).scheme}" for name, (url, *packages) in known.items()}


def _version(*packages: str) -> str:
    """Of the first that is installed."""
    for package in packages:
        with suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(package)
    return "of unknown version"


def on_free_ports(settings: Settings) -> Settings:
    """Servers of this command's own, so that no other run writes to them meanwhile."""
    changes: dict[str, Address] = {}
    for name, address in (("prefect", settings.prefect), ("mlflow", settings.mlflow)):
        if name == "mlflow" and address.origin == "default" and importlib.util.find_spec("flask") is None:
            say("MLflow: its server is not installed here, only its client: the run is written to a database instead")
            url = f"sqlite:///{settings.home}/mlflow/mlflow.db"
            changes[name] = address.model_copy(update={"url": url, "chosen_by": "solrl bench iteration"})
        elif address.origin == "default":
            port = free_port(max([address.port, *(other.port for other in changes.values())]))
            if port is None:
                raise UserError(f"no port is free above {address.port}: name one with --{name}-port")
            changes[name] = address.model_copy(update={"url": address.url.replace(str(address.port), str(port))})
    return settings.model_copy(update=changes)
