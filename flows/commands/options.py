"""Options that several commands share."""

from pathlib import Path
from typing import Annotated

import typer

Home = Annotated[
    Path | None,
    typer.Option("--home", help="Folder for everything that is written.  [SOLRL_HOME; default: .solrl]"),
]
PrefectPort = Annotated[
    int | None,
    typer.Option("--prefect-port", help="Port of the Prefect server.  [SOLRL_PREFECT_PORT; default: 4200]"),
]
MlflowPort = Annotated[
    int | None,
    typer.Option("--mlflow-port", help="Port of the MLflow server.  [SOLRL_MLFLOW_PORT; default: 5000]"),
]
Workers = Annotated[str | None, typer.Option("--workers", help="Who computes: inline or ray.")]
Actors = Annotated[int | None, typer.Option("--actors", min=1, help="Processes of one device each, with ray.")]
RayAddress = Annotated[str | None, typer.Option("--ray-address", help="Ray cluster to use: host:port or auto.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
