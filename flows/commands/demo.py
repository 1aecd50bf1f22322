"""``solrl demo``: the main job on the model in the repository, from nothing to a table."""

import contextlib
import importlib
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final
from uuid import UUID

import typer

from flows.commands.options import Home, MlflowPort, PrefectPort
from flows.commands.stopping import INTERRUPTED
from flows.console import console, say, shown_command
from flows.errors import UserError
from flows.lifecycle import running_servers
from flows.outage import ending_in_words
from flows.patience import patient
from flows.prefect_logs import quieten_outages
from flows.processes import raise_on_termination
from flows.server_watch import answers, watching
from flows.settings import DEFAULT_CONFIG, Settings

if TYPE_CHECKING:
    from prefect.client.schemas.objects import State

    from solrl_tasks.store.object_path import Place
    from solrl_tasks.tracking.summary import Summary

DRAIN_SECONDS: Final = 10.0


def demo(
    run_id: Annotated[str, typer.Option("--run-id", help="Name of the run.")] = "demo",
    config: Annotated[str, typer.Option("--config", help="Recipe file.")] = DEFAULT_CONFIG,
    iterations: Annotated[
        int | None, typer.Option("--iterations", min=1, help="How many in all.  [default: the recipe's]")
    ] = None,
    home: Home = None,
    prefect_port: PrefectPort = None,
    mlflow_port: MlflowPort = None,
) -> None:
    """Train the embedded model here and now, and show what came of it. The same command goes on where it stopped."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    asked = {"iterations": iterations}
    run_here(Settings.read(home, prefect_port, mlflow_port), run_id, config, asked, "demo")


def run_here(settings: Settings, run_id: str, config: str, asked: Mapping[str, Any], command: str) -> None:
    """Run the training flow in this process with the terminal as its reporter, servers around it.

    Args:
        asked: parameters of the flow.
        command: what to type to go on, for the message of a run that was stopped.
    """
    settings.apply()
    _quiet()
    from flows.parameters import read_usable
    from solrl_tasks.store.root import Store, check_name

    # What cannot be used must not wait for servers to be told so.
    check_name(run_id, "run_id")
    Store.find(settings.store_root)
    recipe, _ = read_usable(config, dict(asked))
    raise_on_termination()
    parameters = {"run_id": run_id, "config": config, **asked}
    preload = threading.Thread(target=_preload, name="preload", daemon=True)
    preload.start()
    try:
        with running_servers(settings, say) as used:
            preload.join()  # two threads that import the same packages can wait for each other
            quieten_outages()
            with patient(), watching(settings.prefect.url, say):
                try:
                    with ending_in_words(settings.prefect.url):
                        result, flow_run_id = _run(settings, parameters, recipe.iterations)
                finally:
                    _drain()
            summaries = _show(settings, run_id)
        _where_to_look(settings, summaries, result, flow_run_id, any(server.stopped for server in used))
    except KeyboardInterrupt:
        say(f"Stopped. `{shown_command('solrl')} {command}` goes on where it stopped.")
        raise SystemExit(INTERRUPTED) from None


def _preload() -> None:
    """Import what takes long while the servers start; what is wrong with it shows where it is used."""
    with contextlib.suppress(Exception):
        for name in ("flows.train", "solrl_tasks.stages.tasks", "flows.publishing", "mlflow"):
            importlib.import_module(name)


def _quiet() -> None:
    """Keep the terminal for the run: logs are on the servers."""
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")
    # What cannot be sent is told once by us, and not item by item.
    os.environ.setdefault("PREFECT_LOGGING_INTERNAL_LEVEL", "CRITICAL")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("DIFFUSERS_VERBOSITY", "error")


def _run(settings: Settings, parameters: dict[str, Any], iterations: int) -> tuple[dict[str, Any], UUID | None]:
    from prefect.exceptions import UnfinishedRun

    from flows.recovery import close_all_dead
    from flows.reporting import use_reporter
    from flows.train import train
    from solrl_tasks.tracking.terminal import RichReporter

    close_all_dead(settings, say)
    say()
    with RichReporter(console, iterations) as reporter, use_reporter(reporter):
        state: State[Any] = train(**parameters, return_state=True)
    if not state.is_completed():
        error = state.result(raise_on_failure=False)
        if isinstance(error, UnfinishedRun) or not isinstance(error, BaseException):
            raise UserError(str(state.message))
        raise error
    return state.result(), state.state_details.flow_run_id


def _drain() -> None:
    """Send what Prefect holds back for later, while its server is there to take it."""
    if not answers():
        return
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    for service in (APILogWorker, EventsWorker):
        service.drain_all(timeout=DRAIN_SECONDS)


def _show(settings: Settings, run_id: str) -> "list[Summary]":
    from flows.publishing import first_record, read_summaries, reward_names
    from solrl_tasks.store.root import Store
    from solrl_tasks.store.runs import view_run
    from solrl_tasks.tracking.devices import device_kind
    from solrl_tasks.tracking.terminal import results

    store = Store(settings.store_root)
    view = view_run(store, run_id)
    summaries = read_summaries(view)
    console.print(results(summaries, device_kind(first_record(store, view)), reward_names(view)))
    return summaries


def _where_to_look(
    settings: Settings, summaries: "list[Summary]", result: dict[str, Any], flow_run_id: UUID | None, stopped: bool
) -> None:
    from flows.report import where_to_read
    from solrl_tasks.store.places import place_of

    solrl, run_id = shown_command("solrl"), result["run_id"]
    pictures = [(s.step, name) for s in summaries for name in s.images]
    say()
    if pictures:
        step, name = pictures[-1]
        picture = settings.store_root / "runs" / run_id / "iterations" / f"{step:04d}" / name
        say(f"Picture      {_short(picture)}")
    if result["report"]:
        place = place_of(result["report"])
        say(f"Report       {_short(place) if isinstance(place, Path) else where_to_read(run_id, place)}")
    say(f"All metrics  {solrl} runs show {run_id}")
    say(f"Adapter      {solrl} export {run_id} DIR")
    say(f"Prefect run  {settings.prefect.url.removesuffix('/api')}/runs/flow-run/{flow_run_id}")
    if result["mlflow"]:
        say(f"MLflow run   {result['mlflow']}")
    if stopped:
        say(f"The servers that show the last two are stopped; `{solrl} up` starts them again.")


def _short(path: "Place") -> str:
    here = Path.cwd()
    return str(path.relative_to(here) if isinstance(path, Path) and path.is_relative_to(here) else path)
