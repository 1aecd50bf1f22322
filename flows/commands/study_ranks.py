"""``solrl study rank-fidelity``: how far proxies rank as precise sampling does, measured here and now."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from flows.commands.options import AsJson, Home, MlflowPort
from flows.console import console, make_table, say, shown_command
from flows.errors import UserError
from flows.settings import DEFAULT_CONFIG, Settings
from solrl_tasks.config.words import counted

if TYPE_CHECKING:
    from flows.ranking import Ranked
    from solrl_tasks.studies.plan import StudyPlan

COLUMNS = ("spearman", "contrast_share", "regret_std")


def rank_fidelity(
    steps: Annotated[str, typer.Option(help="Explore steps to compare, such as 2,4,6.")] = "2,4,6,8",
    engines: Annotated[str | None, typer.Option(help="Precisions, with commas.  [default: the recipe's]")] = None,
    samplers: Annotated[str | None, typer.Option(help="Solvers, with commas.  [default: the recipe's]")] = None,
    resolutions: Annotated[
        str | None, typer.Option(help="Sides in pixels, with commas.  [default: the recipe's]")
    ] = None,
    references: Annotated[str, typer.Option(help="Steps of the precise references.")] = "10,40",
    counts: Annotated[
        str | None, typer.Option(help="Each k of top-k and bottom-k.  [default: 4,8,12 where they fit]")
    ] = None,
    prompts: Annotated[int, typer.Option(min=1, help="Held-out prompts.")] = 4,
    candidates: Annotated[int | None, typer.Option(min=2, help="Seeds a prompt.  [default: the recipe's]")] = None,
    keep: Annotated[int | None, typer.Option(min=2, help="Seeds kept.  [default: the recipe's]")] = None,
    policy_run: Annotated[str | None, typer.Option(help="Run whose policy samples.  [default: none]")] = None,
    policy_step: Annotated[int | None, typer.Option(min=0, help="Its iteration.  [default: the last]")] = None,
    config: Annotated[str, typer.Option(help="Recipe file.")] = DEFAULT_CONFIG,
    plan: Annotated[bool, typer.Option("--plan", help="Only tell what is missing and what it takes.")] = False,
    as_json: AsJson = False,
    home: Home = None,
    mlflow_port: MlflowPort = None,
) -> None:
    """Compare proxies with precise references on the same seeds, in this process."""
    from flows.ranking import Asked, plain_result, plan_ranks, study_ranks
    from solrl_tasks.stages.reporter import SilentReporter
    from solrl_tasks.tracking.terminal import RichReporter

    settings = Settings.read(home, mlflow_port=mlflow_port)
    settings.apply()
    asked = Asked(
        steps=_numbers("--steps", steps),
        engines=_words(engines),
        samplers=_words(samplers),
        resolutions=None if resolutions is None else _numbers("--resolutions", resolutions),
        references=_numbers("--references", references),
        counts=None if counts is None else _numbers("--counts", counts),
        prompts=prompts,
        candidates=candidates,
        keep=keep,
        policy_run=policy_run,
        policy_step=policy_step,
        config=config,
    )
    if plan:
        print_plan(plan_ranks(settings, asked), as_json)
        return
    if as_json:
        ranked = study_ranks(settings, asked, SilentReporter())
        typer.echo(json.dumps(plain_result(ranked), indent=2, allow_nan=False))
        return
    with RichReporter(console) as reporter:
        ranked = study_ranks(settings, asked, reporter)
    _print(ranked)


def print_plan(found: "StudyPlan", as_json: bool) -> None:
    """Show a plan of any study as a table and a sentence, or as JSON."""
    from solrl_tasks.studies.plan import plan_rows, plan_summary

    if as_json:
        typer.echo(json.dumps(found.as_json(), indent=2, allow_nan=False))
        return
    rows = plan_rows(found)
    if rows:
        table = make_table(*rows[0])
        for row in rows:
            table.add_row(*row.values())
        console.print(table)
    say(plan_summary(found))


def _print(ranked: "Ranked") -> None:
    from solrl_tasks.studies.rank_report import NAMES, caution, saturation_words, show_bounded

    result = ranked.measured.result
    for reference in result.references:
        say()
        say(f"Against {reference.engine}, {counted(reference.steps, 'step')}, {reference.sampler}")
        table = make_table("proxy", *(NAMES[name] for name in COLUMNS))
        for pool in result.proxies:
            against = next(one for one in pool.against if one.reference == reference.steps)
            label = f"{pool.label}{' (the reference)' if against.same else ''}"
            table.add_row(label, *(show_bounded(against.metrics[name]) for name in COLUMNS))
        console.print(table)
    say(f"mean over prompts [{100 * result.settings.level:g} % bootstrap interval] (standard deviation over prompts)")
    if said := caution(result):
        say(said)
    for one in result.saturation:
        say(
            f"saturation of {one.series}, {NAMES[one.metric]}, against {counted(one.reference, 'step')}: "
            f"{saturation_words(result, one)}"
        )
    say(f"{counted(sum(ranked.measured.computed.values()), 'block')} computed; kept as run {ranked.run_id}")
    say(f"Report of the ranks: {shown_command('solrl')} report {ranked.run_id}")


def _words(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(word.strip() for word in text.split(",") if word.strip())


def _numbers(option: str, text: str) -> tuple[int, ...]:
    try:
        numbers = tuple(int(word) for word in text.split(","))
    except ValueError as error:
        raise UserError(f"{option} is {text!r}: give whole numbers with commas, such as 2,4,6") from error
    return numbers
