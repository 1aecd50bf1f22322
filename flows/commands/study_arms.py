"""``solrl study controls`` and ``solrl study ablation``: arms of a recipe run beside each other, here and now."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from flows.arm_study import DEFAULT_HARDWARE, DEFAULT_VARY, Asked, StudyName, read_changes, read_seeds
from flows.commands.options import AsJson, Home, MlflowPort
from flows.console import complain, console, make_table, say, shown_command
from flows.settings import DEFAULT_CONFIG, Settings
from solrl_tasks.config.words import counted

if TYPE_CHECKING:
    from solrl_tasks.studies.arm_study import ArmStudy

Seeds = Annotated[str, typer.Option("--seeds", help="Of training, such as 1,2,5 or 1-8.")]
Iterations = Annotated[int | None, typer.Option(min=1, help="Of every run.  [default: the recipe's]")]
Arms = Annotated[str | None, typer.Option(help="Which arms run, names with commas; --plan lists them.  [default: all]")]
Parallel = Annotated[int, typer.Option(min=1, help="Processes, spread over all visible GPUs; a CPU is shared.")]
Seconds = Annotated[
    float | None,
    typer.Option(min=0, help="After so many, end with the iterations under way; the same command goes on."),
]
Timing = Annotated[int, typer.Option(min=0, help="Iterations of a run of each arm alone, to time it.")]
ModelledOn = Annotated[str, typer.Option(help="GPU of the modelled cost.")]
Set = Annotated[list[str] | None, typer.Option("--set", help="FIELD=VALUE of all arms; may be repeated.")]
Config = Annotated[str, typer.Option(help="Recipe file.")]
Plan = Annotated[bool, typer.Option("--plan", help="Only tell what is missing and what it takes.")]


def controls(
    seeds: Seeds = "1-3",
    iterations: Iterations = None,
    arms: Arms = None,
    parallel: Parallel = 1,
    seconds: Seconds = None,
    timing: Timing = 0,
    modelled_on: ModelledOn = DEFAULT_HARDWARE,
    changes: Set = None,
    config: Config = DEFAULT_CONFIG,
    plan: Plan = False,
    as_json: AsJson = False,
    home: Home = None,
    mlflow_port: MlflowPort = None,
) -> None:
    """Run the arms that two-stage sampling has to be compared with; the same command goes on where it stopped."""
    asked = Asked(
        study="controls",
        seeds=read_seeds(seeds),
        iterations=iterations,
        arms=_words(arms),
        changes=read_changes(changes or []),
        parallel=parallel,
        seconds=seconds,
        timing=timing,
        modelled_on=modelled_on,
        config=config,
    )
    run_arms(Settings.read(home, mlflow_port=mlflow_port), asked, plan, as_json)


def ablation(
    vary: Annotated[
        list[str] | None, typer.Option("--vary", help="FIELD=VALUE,VALUE or a named factor; may be repeated.")
    ] = None,
    grid: Annotated[bool, typer.Option("--grid", help="All combinations, not one factor at a time.")] = False,
    seeds: Seeds = "1-3",
    iterations: Iterations = None,
    arms: Arms = None,
    parallel: Parallel = 1,
    seconds: Seconds = None,
    timing: Timing = 0,
    modelled_on: ModelledOn = DEFAULT_HARDWARE,
    changes: Set = None,
    config: Config = DEFAULT_CONFIG,
    plan: Plan = False,
    as_json: AsJson = False,
    home: Home = None,
    mlflow_port: MlflowPort = None,
) -> None:
    """Run a recipe beside itself with other values of some fields; the same command goes on where it stopped."""
    asked = Asked(
        study="ablation",
        seeds=read_seeds(seeds),
        iterations=iterations,
        vary=tuple(vary or DEFAULT_VARY),
        grid=grid,
        arms=_words(arms),
        changes=read_changes(changes or []),
        parallel=parallel,
        seconds=seconds,
        timing=timing,
        modelled_on=modelled_on,
        config=config,
    )
    run_arms(Settings.read(home, mlflow_port=mlflow_port), asked, plan, as_json)


def run_arms(settings: Settings, asked: Asked, plan: bool, as_json: bool) -> None:
    """Run a study in this process and show it; exits with 1 where a run failed."""
    from flows.arm_study import plain_result, plan_arms, study_arms
    from flows.arm_watching import TerminalWatcher
    from flows.reporting import use_reporter
    from solrl_tasks.studies.forecast import forecast_rows, forecast_summary
    from solrl_tasks.studies.runs import SilentWatcher
    from solrl_tasks.tracking.terminal import RichReporter

    settings.apply()
    if plan:
        found = plan_arms(settings, asked)
        if as_json:
            typer.echo(json.dumps(found.as_json(), indent=2, allow_nan=False))
        else:
            _print_rows(forecast_rows(found))
            say(forecast_summary(found))
        return
    if as_json:
        run_id, study = study_arms(settings, asked, SilentWatcher())
        typer.echo(json.dumps(plain_result(run_id, study), indent=2, allow_nan=False))
    else:
        with RichReporter(console) as reporter, use_reporter(reporter), TerminalWatcher(console) as watcher:
            run_id, study = study_arms(settings, asked, watcher)
        _print(asked.study, run_id, study)
    if study.failed:
        complain(f"{counted(len(study.failed), 'run')} failed: {', '.join(one.run_id for one in study.failed)}")
        raise typer.Exit(1)


def _print(name: StudyName, run_id: str, study: "ArmStudy") -> None:
    from solrl_tasks.studies.arms_page import ERRORS, arm_rows, arms_summary

    say()
    _print_rows(arm_rows(study))
    say(ERRORS)
    say(arms_summary(study).replace("**", "").replace("`", ""))
    say(f"Report of the {name}: {shown_command('solrl')} report {run_id}")


def _print_rows(rows: list[dict[str, str]]) -> None:
    table = make_table(*rows[0])
    for row in rows:
        table.add_row(*row.values())
    console.print(table)


def _words(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(word.strip() for word in text.split(",") if word.strip())
