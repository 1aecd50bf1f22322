"""``solrl runs``: what was run, and what came of it."""

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.commands.options import AsJson, Home
from flows.console import console, format_bytes, make_table, say
from flows.errors import UserError
from flows.home import open_store, special_kind
from solrl_tasks.config.words import counted

if TYPE_CHECKING:
    from solrl_tasks.store.root import Store
    from solrl_tasks.store.runs import RunInfo

app = typer.Typer(help="List runs, show one, or let go of what its iterations made.", invoke_without_command=True)


@app.callback()
def list_all(context: typer.Context, as_json: AsJson = False, home: Home = None) -> None:
    """List the runs of the store."""
    if context.invoked_subcommand is not None:
        if as_json:
            raise UserError(f"--json stands after the command: solrl runs {context.invoked_subcommand} … --json")
        context.obj = home
        return
    from solrl_tasks.store.runs import list_runs

    runs = [_content(run) for run in list_runs(open_store(home))]
    if as_json:
        typer.echo(json.dumps(runs, indent=2, allow_nan=False))
        return
    table = make_table("run", "status", "iterations", "engine", "held by")
    for run in runs:
        table.add_row(*_row(run))
    console.print(table)
    if any(run["status"] == "interrupted" for run in runs):
        say("An interrupted run goes on where it stopped when it is started again with the same run id.")


@app.command()
def show(
    context: typer.Context,
    run: Annotated[str, typer.Argument(help="Run id.")],
    as_json: AsJson = False,
    home: Home = None,
) -> None:
    """Show every metric of every iteration, with standard errors where there are any."""
    from flows.publishing import first_record, read_summaries, reward_names
    from solrl_tasks.store.runs import view_run
    from solrl_tasks.tracking.devices import device_kind
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


@app.command()
def trim(
    context: typer.Context,
    run: Annotated[str, typer.Argument(help="Run id.")],
    keep_last: Annotated[int, typer.Option("--keep-last", min=1, help="Iterations at the end that keep all.")] = 1,
    keep_best: Annotated[int, typer.Option("--keep-best", min=0, help="As many with the highest metric.")] = 0,
    metric: Annotated[
        str | None, typer.Option("--metric", help="Of --keep-best.  [default: eval/ of the first reward]")
    ] = None,
    keep_every: Annotated[
        int, typer.Option("--keep-every", min=0, help="Every so many iterations one; 0 is none.")
    ] = 0,
    pools: Annotated[bool, typer.Option("--pools", help="Let explored pools go as well.")] = False,
    delete: Annotated[bool, typer.Option("--delete", help="Remove what is listed.")] = False,
    home: Home = None,
) -> None:
    """List policies and samples of iterations that no rule keeps; remove them only with --delete."""
    from solrl_tasks.store.trimming import Keep, apply_trim, plan_trim

    store = open_store(home or context.obj)
    if special_kind(run):
        raise UserError(f"{run} is no training run: delete its folder in {store.runs}, then `solrl pools gc`")
    if metric and not keep_best:
        raise UserError("--metric says what is best: add --keep-best, or leave it out")
    rule = Keep(keep_last, keep_best, metric or "", keep_every, pools)
    try:
        if keep_best and not metric:
            rule = replace(rule, metric=_first_metric(store, run))
        plan = plan_trim(store, run, rule)
    except ValueError as error:
        raise UserError(str(error)) from error
    table = make_table("iteration", "kept")
    for step, why in plan.kept.items():
        table.add_row(str(step), why)
    console.print(table)
    gone = sum(item.bytes for item in plan.objects)
    for path, others in plan.shared.items():
        say(f"  {path} stays: {', '.join(others)} {'refers' if len(others) == 1 else 'refer'} to it")
    counts = (
        f"{run} lets go of {counted(len(plan.objects), 'object')} of {counted(len(plan.newly), 'iteration')}, "
        f"{format_bytes(gone)}"
    )
    if delete:
        say(f"{counts}. Removed {format_bytes(apply_trim(store, plan))}.")
    else:
        then = "; nothing was removed: add --delete to remove it" if plan.objects or plan.newly else ""
        say(f"{counts}{then}")


def _content(run: "RunInfo") -> dict[str, Any]:
    """A run of the list. Evaluations and studies have no iterations, so none that could be missing."""
    config = run.config or {}
    kind = special_kind(run.run_id)
    return {
        "run_id": run.run_id,
        "kind": kind or "train",
        "status": None if kind and run.status != "running" else run.status,
        "iterations": None if kind else run.iterations,
        "iterations_done": None if kind else max(run.committed - 1, 0),
        "engine": config.get("explore", {}).get("engine", {}).get("name"),
        "held_by": run.holder,
    }


def _row(run: dict[str, Any]) -> tuple[str, ...]:
    status = run["status"] or run["kind"]
    trains = run["kind"] == "train"
    done = f"{run['iterations_done']} of {_known(run['iterations'])}" if trains else ""
    holder = run["held_by"] or {}
    held = f"process {holder.get('pid', '?')} on {holder.get('host', '?')}" if holder else ""
    return run["run_id"], status, done, _known(run["engine"]) if trains else "", held


def _known(value: object) -> str:
    return "?" if value is None else str(value)


def _first_metric(store: "Store", run: str) -> str:
    from solrl_tasks.store.runs import view_run

    rewards = view_run(store, run).config.get("rewards") or [{}]
    return f"eval/{rewards[0].get('name', '')}"
