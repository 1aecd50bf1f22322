"""``solrl study theory`` and ``solrl study cost-split``: what candidates gain, and what a speed-up is made of."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flows.commands.options import AsJson, Home, MlflowPort
from flows.console import console, make_table, say
from flows.errors import UserError
from flows.settings import Settings
from solrl_tasks.config.words import counted

if TYPE_CHECKING:
    from flows.gains import Gained
    from solrl_tasks.reports.page import Page


def theory(
    run: Annotated[str | None, typer.Option(help="Run whose audited groups are read.")] = None,
    explored: Annotated[str | None, typer.Option(help="Key of a pool of explored candidates.")] = None,
    reference: Annotated[str | None, typer.Option(help="Key of the pool of the same seeds, precise.")] = None,
    reward: Annotated[str | None, typer.Option(help="Which reward, where pools share several.")] = None,
    prompts: Annotated[int | None, typer.Option(min=1, help="Held-out prompts.  [default: 8]")] = None,
    candidates: Annotated[int | None, typer.Option(min=2, help="Seeds a prompt.  [default: the recipe's]")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Explore steps.  [default: the recipe's]")] = None,
    engine: Annotated[str | None, typer.Option(help="Precision that explores.  [default: the recipe's]")] = None,
    keep: Annotated[int | None, typer.Option(min=2, help="Seeds kept.  [default: the recipe's]")] = None,
    policy_run: Annotated[str | None, typer.Option(help="Run whose policy samples.  [default: none]")] = None,
    policy_step: Annotated[int | None, typer.Option(min=0, help="Its iteration.  [default: the last]")] = None,
    config: Annotated[str | None, typer.Option(help="Recipe file.  [default: configs/embedded.yaml]")] = None,
    threshold: Annotated[
        float | None, typer.Option(min=1e-6, help="Elasticity of the marginal rule.  [default: 0.5]")
    ] = None,
    prices_from: Annotated[str | None, typer.Option(help="Run whose prices count.  [default: recorded blocks]")] = None,
    explore_seconds: Annotated[
        float | None, typer.Option(min=1e-9, help="Device seconds of a candidate.  [default: as measured]")
    ] = None,
    regenerate_seconds: Annotated[
        float | None, typer.Option(min=1e-9, help="Those of regenerating a kept one.  [default: as measured]")
    ] = None,
    update_seconds: Annotated[
        float | None, typer.Option(min=1e-9, help="Those of a kept one's update.  [default: of --prices-from]")
    ] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Only tell what is missing and what it takes.")] = False,
    as_json: AsJson = False,
    home: Home = None,
    mlflow_port: MlflowPort = None,
) -> None:
    """Say how many candidates to explore: contrast measured, exact and promised, at measured prices."""
    from flows.commands.study_ranks import print_plan
    from flows.gains import Asked, plain_result, plan_gains, study_gains
    from solrl_tasks.stages.reporter import SilentReporter
    from solrl_tasks.tracking.terminal import RichReporter

    settings = Settings.read(home, mlflow_port=mlflow_port)
    settings.apply()
    asked = Asked(
        run=run,
        explored=explored,
        reference=reference,
        reward=reward,
        prompts=prompts,
        candidates=candidates,
        steps=steps,
        engine=engine,
        keep=keep,
        policy_run=policy_run,
        policy_step=policy_step,
        config=config,
        threshold=threshold,
        prices_from=prices_from,
        explore_seconds=explore_seconds,
        regenerate_seconds=regenerate_seconds,
        update_seconds=update_seconds,
    )
    if plan:
        print_plan(plan_gains(settings, asked), as_json)
        return
    if as_json:
        gained = study_gains(settings, asked, SilentReporter())
        typer.echo(json.dumps(plain_result(gained), indent=2, allow_nan=False))
        return
    with RichReporter(console) as reporter:
        gained = study_gains(settings, asked, reporter)
    _print(gained)


def cost_split(
    files: Annotated[list[Path], typer.Argument(help="Reports of `solrl bench rollout --json`, and of `update`.")],
    out: Annotated[Path | None, typer.Option(help="Folder for the page, report.html and report.md.")] = None,
) -> None:
    """Say how much of a speed-up is compiling, fewer steps, precision and overlap, from reports of bench."""
    from solrl_tasks.bench.reports.file import read_report
    from solrl_tasks.reports.stored import draw
    from solrl_tasks.studies.cost_split import split_costs, split_page

    page = split_page(split_costs([read_report(file) for file in files]))
    _print_page(page)
    if out is not None:
        try:
            out.mkdir(parents=True, exist_ok=True)
        except FileExistsError as error:
            raise UserError(f"--out is {out}, which is a file: name a folder") from error
        for name, content in draw(page).items():
            (out / name).write_bytes(content)
        say(f"Page   {out / 'report.html'}")


def _print(gained: "Gained") -> None:
    from solrl_tasks.studies.theory_page import theory_page

    _print_page(theory_page(gained.theory, [], {}))
    evidence = gained.theory.evidence
    say(f"{counted(evidence.computed, 'block')} computed; kept as run {gained.run_id}")


def _print_page(page: "Page") -> None:
    """The summary and the tables of a page, with the notes below them."""
    from solrl_tasks.reports.page import Table, Text

    say(page.summary.replace("**", ""))
    for block in page.blocks:
        if isinstance(block, Table):
            say()
            say(block.caption)
            table = make_table(*block.columns)
            for row in block.rows:
                table.add_row(*row)
            console.print(table)
            for line in (block.note, block.provenance.line if block.provenance else ""):
                if line:
                    say(line)
        elif isinstance(block, Text):
            say()
            say(block.markdown)
