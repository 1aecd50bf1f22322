"""``solrl pools``: what was explored and is there to be used again."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flows.commands.options import AsJson, Home
from flows.console import console, format_bytes, make_table, say
from flows.errors import UserError
from flows.home import open_store
from solrl_tasks.config.words import counted

if TYPE_CHECKING:
    from flows.pool_uses import PoolUse
    from solrl_tasks.store.gc import Garbage
    from solrl_tasks.store.pool import PoolInfo
    from solrl_tasks.store.root import Store

app = typer.Typer(
    help="List pools of scored images, show one, score, export or pack one, or remove what nothing refers to.",
    invoke_without_command=True,
)
SHORT = 12
SHOWN_FAILURES = 10
REMEDY = "A run that needs it sets it aside and fills it anew; `solrl pools gc` lists it where no run does"
COLUMNS = ("pool", "kind", "model", "policy", "engine", "steps", "prompts x candidates", "filled", "rewards", "size")


@app.callback()
def list_all(context: typer.Context, as_json: AsJson = False, home: Home = None) -> None:
    """List the pools of the store: what runs explored and evaluated, and what studies compared."""
    if context.invoked_subcommand is not None:
        if as_json:
            raise UserError(f"--json stands after the command: solrl pools {context.invoked_subcommand} … --json")
        context.obj = home
        return
    from flows.pool_uses import pool_kinds, pool_uses
    from solrl_tasks.store.pool import survey_pools

    store = open_store(home)
    found, uses = survey_pools(store), pool_uses(store)
    pools = found.pools
    if as_json:
        listed = [_content(pool, uses.get(pool.key, [])) for pool in pools]
        lost = [_unreadable(key, why, uses.get(key, [])) for key, why in found.unreadable.items()]
        typer.echo(json.dumps(sorted(listed + lost, key=lambda one: str(one["key"])), indent=2))
        return
    table = make_table(*COLUMNS)
    for pool in pools:
        table.add_row(*_row(store, pool, ", ".join(pool_kinds(uses.get(pool.key, [])))))
    console.print(table)
    say(f"{counted(len(pools), 'pool')}, {format_bytes(sum(pool.bytes for pool in pools))}")
    for key, why in found.unreadable.items():
        say(f"{key[:SHORT]} cannot be read: {why}. {REMEDY}")


@app.command()
def show(
    context: typer.Context,
    key: Annotated[str, typer.Argument(help="Key of the pool, or its beginning.")],
    as_json: AsJson = False,
    home: Home = None,
) -> None:
    """Show what a pool was made from, how far it is filled, and who uses it."""
    from flows.pool_uses import pool_uses
    from solrl_tasks.store.pool import Pool

    store = open_store(home or context.obj)
    pool = _find(store, key)
    content = _content(pool, pool_uses(store).get(pool.key, []))
    content["damage"] = Pool.load(store, pool.key).prompts_fault() or None
    if as_json:
        typer.echo(json.dumps(content, indent=2))
        return
    content["kind"] = ", ".join(content["kind"])
    for name, value in content.items():
        if isinstance(value, dict):
            say(f"{name}:")
            for inner, found in value.items():
                say(f"  {inner}: {found if isinstance(found, str) else json.dumps(found)}")
        else:
            say(f"{name}: {value if isinstance(value, str) else json.dumps(value)}")


@app.command()
def rescore(
    context: typer.Context,
    key: Annotated[str, typer.Argument(help="Key of the pool, or its beginning.")],
    reward: Annotated[str, typer.Option("--reward", help="Reward by name, or module:function.")],
    options: Annotated[str | None, typer.Option("--options", help="Its options, JSON.")] = None,
    label: Annotated[str | None, typer.Option("--label", help="Name in the pool, where a recipe has such.")] = None,
    home: Home = None,
) -> None:
    """Add a reward to a pool from the images that it keeps, without sampling anything."""
    from solrl_tasks.config.recipe import ModelSpec, RewardSpec
    from solrl_tasks.rewards.scoring import make_reward
    from solrl_tasks.stages.rescore import rescore as score_again
    from solrl_tasks.store.pool import Pool
    from solrl_tasks.workers.inline import InlineWorker
    from solrl_tasks.workers.numerics import default_device

    store = open_store(home or context.obj)
    pool = Pool.load(store, _find(store, key).key)
    spec = RewardSpec(name=label or reward, use=reward if label else None, options=_parse_options(options))
    try:
        make_reward(spec)
    except (ValueError, LookupError) as error:
        raise UserError(str(error)) from error
    device = default_device()
    with console.status(f"scoring {spec.name}") as status:

        def told(done: int, total: int) -> None:
            status.update(f"{spec.name}: {done} of {counted(total, 'block')}")

        done = score_again(pool, spec, InlineWorker(ModelSpec(), device), device, told)
    before = done.total - done.scored
    say(
        f"{done.reward}: {counted(done.scored, 'block')} of pool {pool.key[:SHORT]} scored in {done.seconds:.1f} "
        "device-seconds, "
        f"{before} were there before; nothing was sampled"
    )
    if done.unexplored:
        say(f"Not explored yet: {counted(done.unexplored, 'block')}. A run that explores more of it scores that too")
    for failure in done.failures[:SHOWN_FAILURES]:
        say(f"  {failure}")


@app.command()
def export(
    context: typer.Context,
    key: Annotated[str, typer.Argument(help="Key of a pool, or of samples, or its beginning.")],
    out: Annotated[Path, typer.Option("--out", help="Parquet file to write; one that is there is replaced.")],
    home: Home = None,
) -> None:
    """Write a pool, or samples, as a Parquet table: one row a prompt and candidate, one column a reward."""
    from solrl_tasks.frames import write_parquet
    from solrl_tasks.store.errors import StoreError

    store = open_store(home or context.obj)
    if out.is_dir():
        raise UserError(f"--out {out} is a folder: name a file")
    try:
        rows = write_parquet(store, key, out)
    except StoreError as error:
        raise UserError(str(error)) from error
    except OSError as error:
        raise UserError(f"--out {out} cannot be written: {error}") from error
    say(f"{counted(rows, 'row')} in {out}")


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
    everything = plan_gc(store, 0.0)
    plan = [item for item in everything if item.age >= min_age_hours * 3600.0]
    table = make_table("kind", "key", "size", "why")
    for item in plan:
        table.add_row(item.kind, item.key[:SHORT], format_bytes(item.bytes), item.why)
    if plan:
        console.print(table)
    if delete:
        say(f"Removed {format_bytes(collect(store, plan))}.")
    else:
        then = "; nothing was removed: add --delete to remove it" if plan else ""
        say(f"{_amount(plan)}, that nothing refers to{then}")
    young = [item for item in everything if item not in plan]
    if young:
        say(f"Changed within {min_age_hours:g} hours, so it stays: {_amount(young)}; --min-age-hours sets another age")


@app.command()
def compact(
    context: typer.Context,
    key: Annotated[str, typer.Argument(help="Key of a finished pool, or of samples, or its beginning.")],
    home: Home = None,
) -> None:
    """Pack a finished pool into few files: same values and digest, read as before. Kills leave it whole."""
    from solrl_tasks.store.contents import Contents
    from solrl_tasks.store.packing import pack

    store = open_store(home or context.obj)
    found = Contents.find(store, key)
    done = pack(store, found.kind, found.key)
    what = ", ".join(done.packed) or "nothing"
    files, size = (f"{before} -> {after}" for before, after in (done.files, map(format_bytes, done.bytes)))
    say(f"{found.kind}/{found.key[:SHORT]}: {what} packed; {files} files, {size}")
    if done.before:
        say(f"  packed before: {', '.join(done.before)}")
    if done.large:
        say(f"  as they were, because their blocks are large already: {', '.join(done.large)}")


def _amount(items: "list[Garbage]") -> str:
    return f"{counted(len(items), 'object')}, {format_bytes(sum(item.bytes for item in items))}"


def _content(pool: "PoolInfo", uses: "list[PoolUse]") -> dict[str, Any]:
    from flows.pool_uses import pool_kinds

    return {
        "key": pool.key,
        "kind": pool_kinds(uses),
        "spec": pool.spec,
        "prompts": pool.rows,
        "candidates": pool.candidates,
        "chunk": pool.chunk,
        "filled": pool.filled,
        "bytes": pool.bytes,
        "environments": pool.records,
        "used_by": [str(use) for use in uses],
        "damage": None,
    }


def _unreadable(key: str, why: str, uses: "list[PoolUse]") -> dict[str, Any]:
    """As ``_content``, of a pool whose spec is damaged: nothing else is known of it."""
    from flows.pool_uses import pool_kinds

    unknown = dict.fromkeys(("spec", "prompts", "candidates", "chunk", "filled", "bytes", "environments"))
    return {"key": key, "kind": pool_kinds(uses), **unknown, "used_by": [str(use) for use in uses], "damage": why}


def _row(store: "Store", pool: "PoolInfo", kind: str) -> tuple[str, ...]:
    from solrl_tasks.store.models import model_name

    spec = pool.spec
    policy = str(spec.get("policy", "?"))
    worst = min((pool.filled[name] for name in pool.rewards), default=0.0)
    rewards = ", ".join(pool.rewards) or "none yet"
    images = f" + {pool.pictures}" if pool.pictures else ""
    return (
        pool.key[:SHORT],
        kind,
        model_name(store, str(spec.get("base", "?"))),
        policy[:SHORT],
        str(spec.get("engine", {}).get("name", "?")),
        str(spec.get("steps", "?")) + (f" at {spec['conditioning']['resolution']} px" if "lowered" in spec else ""),
        f"{pool.rows} x {pool.candidates}",
        f"{100 * worst:.0f} %",
        rewards + images,
        format_bytes(pool.bytes),
    )


def _parse_options(text: str | None) -> dict[str, Any]:
    try:
        options = json.loads(text) if text else {}
    except json.JSONDecodeError as error:
        raise UserError(f"--options is {text!r}, which is not JSON ({error.msg} at column {error.colno})") from error
    if not isinstance(options, dict):
        raise UserError(f"--options is {text!r}: give an object, such as '{{\"batch\": 8}}'")
    return options


def _find(store: "Store", key: str) -> "PoolInfo":
    from solrl_tasks.store.pool import survey_pools

    survey = survey_pools(store)
    pools = survey.pools
    found = [pool for pool in pools if pool.key.startswith(key)]
    lost = [
        f"{name} cannot be read: {why}. {REMEDY}" for name, why in survey.unreadable.items() if name.startswith(key)
    ]
    if lost and not found:
        raise UserError("; ".join(lost))
    if len(found) == 1:
        return found[0]
    if found:
        raise UserError(
            f"{key!r} begins {counted(len(found), 'key')}: {', '.join(pool.key for pool in found)}; give more of it"
        )
    raise UserError(f"no pool begins with {key!r}; `solrl pools` lists the {len(pools)} there are")
