"""``solrl evaluate``: a stored policy measured here and now."""

import json
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from flows.commands.options import Actors, AsJson, Home, MlflowPort, RayAddress, Workers
from flows.console import console, make_table, say
from flows.settings import Settings

if TYPE_CHECKING:
    from flows.evaluating import Evaluated


class Role(StrEnum):
    """Which of a policy's adapters."""

    ema = "ema"
    current = "current"
    old = "old"


At = Annotated[int | None, typer.Option(min=0, help="Which iteration.  [default: the last]")]


def evaluate(
    run: Annotated[str, typer.Argument(help="Run id.")],
    iteration: At = None,
    role: Annotated[Role, typer.Option(help="Which of its adapters.")] = Role.ema,
    reward: Annotated[
        list[str] | None, typer.Option("--reward", help="Reward that scores; may be repeated.  [default: the run's]")
    ] = None,
    prompts: Annotated[int | None, typer.Option(min=1, help="Held-out prompts.  [default: the run's]")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Images a prompt.  [default: the run's]")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Sampling steps.  [default: the run's]")] = None,
    guidance: Annotated[
        float | None, typer.Option(min=0, help="Told to models that take it as an input.  [default: the run's]")
    ] = None,
    guidance_scale: Annotated[
        float | None, typer.Option(min=1, help="Of classifier-free guidance; 1 is none.  [default: the run's]")
    ] = None,
    heldout: Annotated[
        str | None, typer.Option(help="Other prompts: file, folder, or hf:OWNER/NAME.  [default: the run's]")
    ] = None,
    against: Annotated[str | None, typer.Option(help="Run to compare with.  [default: the untrained model]")] = None,
    against_iteration: At = None,
    against_role: Annotated[Role, typer.Option(help="Which of its adapters.")] = Role.ema,
    config: Annotated[
        str | None, typer.Option(help="The run's recipe file, if its prompts are named from its folder.")
    ] = None,
    workers: Workers = None,
    actors: Actors = None,
    ray_address: RayAddress = None,
    as_json: AsJson = False,
    home: Home = None,
    mlflow_port: MlflowPort = None,
) -> None:
    """Score a policy on held-out prompts beside the untrained model, or another policy, in this process."""
    from flows.evaluating import Asked, evaluate_policy
    from solrl_tasks.stages.reporter import SilentReporter
    from solrl_tasks.tracking.terminal import RichReporter

    settings = Settings.read(home, mlflow_port=mlflow_port)
    settings.apply()
    asked = Asked(
        run_id=run,
        iteration=iteration,
        role=role.value,
        rewards=tuple(reward) if reward else None,
        prompts=prompts,
        seeds=seeds,
        steps=steps,
        guidance=guidance,
        guidance_scale=guidance_scale,
        heldout=heldout,
        against=against,
        against_iteration=against_iteration,
        against_role=against_role.value,
        config=config,
        workers=workers,
        actors=actors,
        ray_address=ray_address,
    )
    if as_json:
        evaluated = evaluate_policy(settings, asked, SilentReporter())
        content = {"run_id": evaluated.run_id, **evaluated.summary.model_dump(mode="json")}
        typer.echo(json.dumps(content, indent=2, allow_nan=False))
        return
    with RichReporter(console) as reporter:
        evaluated = evaluate_policy(settings, asked, reporter)
    _print(evaluated)


def _print(evaluated: "Evaluated") -> None:
    from flows.report import where_to_read
    from solrl_tasks.tracking.evaluation import columns, evaluation_lines, evaluation_rows

    summary = evaluated.summary
    rows = evaluation_rows(summary)
    table = make_table(*columns(rows))
    for row in rows:
        table.add_row(*row.values())
    say()
    for note in summary.notes:
        say(note)
    console.print(table)
    say("± is one standard error over prompts")
    for line in evaluation_lines(summary):
        say(line)
    say(f"Kept as run {evaluated.run_id}" + (f", in MLflow at {evaluated.url}" if evaluated.url else ""))
    if evaluated.report:
        say(f"Report {where_to_read(evaluated.run_id, evaluated.report)}")
