"""``solrl pools``: what was explored and is there to be used again."""

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.commands.options import AsJson, Home
from flows.console import console, format_bytes, make_table, say
from flows.errors import UserError
from flows.home import open_store

if TYPE_CHECKING:
    from solrl_tasks.store.pool import PoolInfo
    from solrl_tasks.store.root import Store

app = typer.Typer(help="List reward pools, show one, or remove what nothing refers to.", invoke_without_command=True)
SHORT = 12


@app.callback()
def list_all(context: typer.Context, home: Home = None) -> None:
    """List the pools of the store."""
    if context.invoked_subcommand is not None:
        context.obj = home
        return
    from solrl_tasks.store.pool import describe_pools

    columns = ("pool", "model", "policy", "engine", "steps", "prompts x candidates", "filled", "rewards", "size")
    table = make_table(*columns)
    store = open_store(home)
    pools = describe_pools(store)
    for pool in pools:
        table.add_row(*_row(store, pool))
    console.print(table)
    say(f"{len(pools)} pools, {format_bytes(sum(pool.bytes for pool in pools))}")


@app.command()
def show(
    context: typer.Context,
    key: Annotated[str, typer.Argument(help="Key of the pool, or its beginning.")],
    as_json: AsJson = False,
    home: Home = None,
) -> None:
    """Show what a pool was made from, how far it is filled, and who uses it."""
    store = open_store(home or context.obj)
    pool = _find(store, key)
    content: dict[str, Any] = {
        "key": pool.key,
        "spec": pool.spec,
        "prompts": pool.rows,
        "candidates": pool.candidates,
        "chunk": pool.chunk,
        "filled": pool.filled,
        "bytes": pool.bytes,
        "environments": pool.records,
        "used_by": _users(store, pool.key),
    }
    if as_json:
        typer.echo(json.dumps(content, indent=2))
        return
    for name, value in content.items():
        if isinstance(value, dict):
            say(f"{name}:")
            for inner, found in value.items():
                say(f"  {inner}: {found if isinstance(found, str) else json.dumps(found)}")
        else:
            say(f"{name}: {value if isinstance(value, str) else json.dumps(value)}")


@app.command()
def gc(
    context: typer.Context,
    delete: Annotated[bool, typer.Option("--delete", help="Remove what is listed.")] = False,
    min_age_hours: Annotated[
        float, typer.Option("--min-age-hours", min=0, help="Leave alone what was changed more recently.")
    ] = 24.0,
    home: Home = None,
) -> None:
    """List what no run or study refers to; remove it only with --delete."""
    from solrl_tasks.store.gc import collect, plan_gc

    store = open_store(home or context.obj)
    plan = plan_gc(store, min_age_hours * 3600.0)
    table = make_table("kind", "key", "size", "why")
    for item in plan:
        table.add_row(item.kind, item.key[:SHORT], format_bytes(item.bytes), item.why)
    if plan:
        console.print(table)
    total = format_bytes(sum(item.bytes for item in plan))
    if delete:
        freed = collect(store, plan)
        say(f"Removed {format_bytes(freed)}.")
    else:
        then = "; nothing was removed: add --delete to remove it" if plan else ""
        say(f"{len(plan)} objects, {total}, that nothing refers to{then}")


def _row(store: "Store", pool: "PoolInfo") -> tuple[str, ...]:
    from solrl_tasks.store.models import model_name

    spec = pool.spec
    policy = str(spec.get("policy", "?"))
    worst = min(pool.filled.values(), default=0.0)
    rewards = ", ".join(name for name in pool.filled if name != "images") or "none yet"
    images = " + images" if "images" in pool.filled else ""
    return (
        pool.key[:SHORT],
        model_name(store, str(spec.get("base", "?"))),
        policy[:SHORT],
        str(spec.get("engine", {}).get("name", "?")),
        str(spec.get("steps", "?")),
        f"{pool.rows} x {pool.candidates}",
        f"{100 * worst:.0f} %",
        rewards + images,
        format_bytes(pool.bytes),
    )


def _find(store: "Store", key: str) -> "PoolInfo":
    from solrl_tasks.store.pool import describe_pools

    pools = describe_pools(store)
    found = [pool for pool in pools if pool.key.startswith(key)]
    if len(found) == 1:
        return found[0]
    if found:
        raise UserError(f"{key!r} begins {len(found)} keys: {', '.join(pool.key for pool in found)}; give more of it")
    raise UserError(f"no pool begins with {key!r}; `solrl pools` lists the {len(pools)} there are")


def _users(store: "Store", key: str) -> list[str]:
    from solrl_tasks.store.errors import StoreError
    from solrl_tasks.store.runs import list_runs, view_run

    users = []
    for run in list_runs(store):
        view = view_run(store, run.run_id)
        for folder in sorted((view.path / "iterations").glob("[0-9]*")):
            try:
                refs = view.refs(int(folder.name))
            except StoreError:
                continue
            users += [f"{run.run_id} step {int(folder.name)} {stage}" for stage, ref in refs.items() if ref.key == key]
    return users
