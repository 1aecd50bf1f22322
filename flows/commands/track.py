"""``solrl track``: MLflow made again from the store."""

from typing import Annotated

import typer

from flows.commands.options import Home, MlflowPort
from flows.console import say
from flows.home import is_study, open_store, shown_status
from flows.settings import Settings
from solrl_tasks.config.words import counted

app = typer.Typer(help="Make trackers show what the store holds.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Make trackers show what the store holds."""


@app.command()
def rebuild(
    run: Annotated[str, typer.Argument(help="Run id.")], home: Home = None, mlflow_port: MlflowPort = None
) -> None:
    """Log a run to MLflow again, from its committed summaries, or a study from its report; what is there stays."""
    from flows.publishing import rebuild_run
    from flows.study_publishing import send_study
    from solrl_tasks.reports.stored import has_report
    from solrl_tasks.store.runs import list_runs, no_such_run

    store = open_store(home)
    settings = Settings.read(home, mlflow_port=mlflow_port)
    settings.apply()
    found = {info.run_id: info for info in list_runs(store)}
    if has_report(store, run) if run not in found else is_study(store, found[run]):
        shown = send_study(settings, store, run)
        say(f"The figures and the report of study {run} are in MLflow: {shown.url or shown.uri}")
        return
    if run not in found:
        raise no_such_run(store, run)
    found_there = rebuild_run(settings, store, run, shown_status(store, found[run]))
    for note in found_there.run.notes:
        say(f"note: {note}")
    if found_there.replaced:
        say(f"MLflow run {found_there.replaced} differed and was set aside: {'; '.join(found_there.differences)}")
    say(
        f"{counted(found_there.points, 'value')} of run {run} are in MLflow: "
        f"{found_there.run.url or found_there.run.uri}"
    )
