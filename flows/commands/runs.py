"""``solrl runs``: what was run, and what came of it."""

import json
from typing import Annotated, Any

import typer

from flows.commands.options import AsJson, Home
from flows.console import console, make_table, say
from flows.errors import UserError
from flows.home import open_store, special_kind

app = typer.Typer(help="List runs, or show one.", invoke_without_command=True)


@app.callback()
def list_all(context: typer.Context, home: Home = None) -> None:
    """List the runs of the store."""
    if context.invoked_subcommand is not None:
        context.obj = home
        return
    from solrl_tasks.store.runs import list_runs

    runs = list_runs(open_store(home))
    table = make_table("run", "status", "iterations", "engine", "held by")
    for run in runs:
        if special_kind(run.run_id) and run.status != "running":
            table.add_row(run.run_id, special_kind(run.run_id))
            continue
        config = run.config or {}
        engine = config.get("explore", {}).get("engine", {}).get("name", "?")
        done = f"{max(run.committed - 1, 0)} of {run.iterations}"
        holder = run.holder or {}
        held = f"process {holder.get('pid', '?')} on {holder.get('host', '?')}" if run.holder else ""
        table.add_row(run.run_id, run.status, done, engine, held)
    console.print(table)
    if any(run.status == "interrupted" and not special_kind(run.run_id) for run in runs):
        say("An interrupted run goes on where it stopped when it is started again with the same run id.")


@app.command()
def show(
    context: typer.Context,
    run: Annotated[str, typer.Argument(help="Run id.")],
    as_json: AsJson = False,
    home: Home = None,
) -> None:
    """Show every metric of every iteration, with standard errors where there are any."""
    from flows.publishing import device_kind, first_record, read_summaries, reward_names
    from solrl_tasks.store.runs import view_run
    from solrl_tasks.tracking.terminal import metrics_table, results

    store = open_store(home or context.obj)
    try:
        view = view_run(store, run)
    except ValueError as error:
        raise UserError(str(error)) from error
    summaries = read_summaries(view)
    if as_json:
        content: dict[str, Any] = {
            "run_id": run,
            "config": view.config,
            "iterations": [summary.model_dump(mode="json") for summary in summaries],
        }
        typer.echo(json.dumps(content, indent=2, allow_nan=False))
        return
    for summary in summaries:
        console.print(metrics_table(summary))
        for note in summary.notes:
            say(f"  note: {note}")
    console.print(results(summaries, device_kind(first_record(store, view)), reward_names(view)))
    pictures = [view.iteration_dir(s.step) / name for s in summaries for name in s.images]
    if pictures:
        say(f"Pictures: {pictures[-1]}" + (f" and {len(pictures) - 1} before it" if pictures[:-1] else ""))
