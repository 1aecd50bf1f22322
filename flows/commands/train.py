"""``solrl train``: a run by a recipe of one's own, in this process."""

from pathlib import Path
from typing import Annotated

import typer

from flows.commands.demo import run_here
from flows.commands.options import Actors, Home, MlflowPort, PrefectPort, RayAddress, Workers
from flows.errors import UserError
from flows.settings import Settings
from solrl_tasks.store.errors import StoreError
from solrl_tasks.store.root import check_name


def train(
    config: Annotated[str, typer.Argument(help="Recipe file.")],
    run_id: Annotated[
        str | None, typer.Option("--run-id", help="Name of the run.  [default: the name of the recipe file]")
    ] = None,
    iterations: Annotated[
        int | None, typer.Option("--iterations", min=1, help="How many in all.  [default: the recipe's]")
    ] = None,
    workers: Workers = None,
    actors: Actors = None,
    ray_address: RayAddress = None,
    home: Home = None,
    prefect_port: PrefectPort = None,
    mlflow_port: MlflowPort = None,
) -> None:
    """Train by a recipe of your own, here and now. The same command goes on where it stopped."""
    asked: dict[str, object] = {
        "iterations": iterations,
        "workers": workers,
        "actors": actors,
        "ray_address": ray_address,
    }
    name = _named_by(config) if run_id is None else run_id
    again = f"train {config}" + (f" --run-id {run_id}" if run_id else "")
    run_here(Settings.read(home, prefect_port, mlflow_port), name, config, asked, again)


def _named_by(config: str) -> str:
    try:
        return check_name(Path(config).stem, "the name of the recipe file")
    except StoreError as error:
        raise UserError(f"{error}; name the run by --run-id") from error
