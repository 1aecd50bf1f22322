"""``solrl bench``: what rollouts, updates, syncs and whole iterations cost on this machine."""

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from flows.bench_run import own_home, run_iterations
from flows.commands.bench_options import (
    Candidates,
    Checkpointing,
    Chunk,
    EngineOption,
    ExploreSteps,
    Family,
    FullSteps,
    Json,
    KeepSeeds,
    MicroBatch,
    Mlflow,
    Rank,
    Resolution,
    RewardName,
    RewardOption,
    Set,
    Source,
    Targets,
    TextTokens,
    arms_of,
    checked,
    chunk_of,
    complete_of,
    engine_options,
    explorer,
    lora_of,
    model_of,
    reward_of,
    subject_of,
    words,
)
from flows.commands.options import Home, MlflowPort, PrefectPort
from flows.console import console, make_table, say
from flows.errors import UserError
from flows.settings import Settings

if TYPE_CHECKING:
    from solrl_tasks.bench.reports.file import Report

app = typer.Typer(no_args_is_help=True)

EXPERIMENT: Final = "solrl-bench"


@app.callback()
def bench() -> None:
    """Measure what rollouts, updates, syncs and iterations cost."""
    # Words of the libraries about prompts that are cut off would stand between the figures.
    for library in ("TRANSFORMERS", "DIFFUSERS"):
        os.environ.setdefault(f"{library}_VERBOSITY", "error")


@app.command()
def rollout(
    family: Family = "flux",
    source: Source = None,
    resolution: Resolution = None,
    max_sequence_length: TextTokens = None,
    fields: Set = None,
    candidates: Candidates = 96,
    keep: KeepSeeds = 24,
    explore_steps: ExploreSteps = 6,
    full_steps: FullSteps = 10,
    chunk: Chunk = None,
    keep_chunk: Annotated[
        int | None, typer.Option("--keep-chunk", min=1, help="Kept images together.  [default: --chunk, up to --keep]")
    ] = None,
    timed: Annotated[int, typer.Option("--timed", min=2, help="Chunks timed together.")] = 3,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Of whatever is timed alone.")] = 3,
    arms: Annotated[
        str | None,
        typer.Option("--arms", help="Comma-separated: eager-pipeline, ENGINE-full, ENGINE-two-stage."),
    ] = None,
    complete: Annotated[
        str | None,
        typer.Option("--complete", help="Comma-separated arms of which one whole rollout is run as well, or all."),
    ] = None,
    profile: Annotated[bool, typer.Option("--profile", help="Say where the network's time goes.")] = False,
    sampler: Annotated[str, typer.Option("--sampler", help="Solver.")] = "dpm2",
    reward: RewardName = None,
    reward_options: RewardOption = None,
    targets: Targets = "paper",
    rank: Rank = 32,
    options: EngineOption = None,
    json: Json = None,
    mlflow: Mlflow = False,
    home: Home = None,
    mlflow_port: MlflowPort = None,
) -> None:
    """Time a prompt's rollout by every arm in one process. Arms that fail do not stop the others."""
    from solrl_tasks.bench.rollout import RolloutBench
    from solrl_tasks.bench.rollout_request import RolloutRequest
    from solrl_tasks.workers.numerics import default_device

    device = default_device()
    together = chunk or min(chunk_of(family), candidates)
    request = checked(
        lambda: RolloutRequest(
            model=model_of(family, source, resolution, max_sequence_length, fields),
            arms=arms_of(arms, device),
            candidates=candidates,
            keep=keep,
            explore_steps=explore_steps,
            full_steps=full_steps,
            chunk=together,
            keep_chunk=keep_chunk or min(together, keep),
            timed=timed,
            repeats=repeats,
            sampler=sampler,
            reward=reward_of(reward, reward_options),
            lora=lora_of(rank, targets),
            options=engine_options(options),
            complete=complete_of(complete, arms, device),
            profile=profile,
        )
    )
    report = None
    for report in RolloutBench(request, device, say).run():
        _save(report, json)
    assert report is not None
    _finish(report, mlflow, home, mlflow_port)
    failed = [arm.name for arm in report.arms if arm.error]
    if failed:
        raise UserError(f"{', '.join(failed)} could not be measured; the reasons stand above")


@app.command()
def update(
    family: Family = "flux",
    source: Source = None,
    resolution: Resolution = None,
    max_sequence_length: TextTokens = None,
    fields: Set = None,
    samples: Annotated[int, typer.Option("--samples", min=1, help="Kept samples of an iteration.")] = 24,
    times: Annotated[int, typer.Option("--times", min=1, help="Noise levels of a sample.")] = 1,
    micro_batch: MicroBatch = 8,
    checkpointing: Checkpointing = True,
    steps: FullSteps = 10,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Updates after the first.")] = 3,
    targets: Targets = "paper",
    rank: Rank = 32,
    json: Json = None,
    mlflow: Mlflow = False,
    home: Home = None,
    mlflow_port: MlflowPort = None,
) -> None:
    """Time an optimizer step of the LoRA on random samples: seconds a row, and peak memory."""
    from solrl_tasks.bench.update import bench_update
    from solrl_tasks.config.recipe import UpdateSpec

    lora = lora_of(rank, targets)
    spec = UpdateSpec(lora=lora, times_per_sample=times, micro_batch=micro_batch, gradient_checkpointing=checkpointing)
    subject = subject_of(model_of(family, source, resolution, max_sequence_length, fields), spec.lora, None)
    report = bench_update(subject, spec, samples, steps, repeats, say)
    _save(report, json)
    _finish(report, mlflow, home, mlflow_port)


@app.command()
def sync(
    family: Family = "flux",
    source: Source = None,
    resolution: Resolution = None,
    max_sequence_length: TextTokens = None,
    fields: Set = None,
    engines: Annotated[
        str | None, typer.Option("--engines", help="Comma-separated.  [default: all that run here]")
    ] = None,
    swaps: Annotated[int, typer.Option("--swaps", min=1, help="Adapters after the first sync.")] = 3,
    chunk: Chunk = None,
    targets: Targets = "paper",
    rank: Rank = 32,
    options: EngineOption = None,
    json: Json = None,
    mlflow: Mlflow = False,
    home: Home = None,
    mlflow_port: MlflowPort = None,
) -> None:
    """Time what new weights cost each engine, and count the graphs that are compiled after a swap."""
    from solrl_tasks.bench.sync import bench_sync
    from solrl_tasks.engines.base import report_engines, require_engine
    from solrl_tasks.workers.numerics import default_device

    device = default_device()
    names = words(engines) or [name for name, found in report_engines(device).items() if found.ok]
    for name in names:
        require_engine(name, device)
    model = model_of(family, source, resolution, max_sequence_length, fields)
    subject = subject_of(model, lora_of(rank, targets), options)
    report = bench_sync(subject, names, swaps, chunk or chunk_of(family), say)
    _save(report, json)
    _finish(report, mlflow, home, mlflow_port)
    if report.failed:
        raise UserError(f"{', '.join(report.failed)} could not be measured; the reasons stand above")


@app.command()
def iteration(
    family: Family = "flux",
    source: Source = None,
    resolution: Resolution = None,
    max_sequence_length: TextTokens = None,
    fields: Set = None,
    engine: Annotated[str | None, typer.Option("--engine", help="Explores.  [default: fp8 where it is real]")] = None,
    options: EngineOption = None,
    prompts: Annotated[int, typer.Option("--prompts", min=1, help="Prompts of an iteration.")] = 2,
    iterations: Annotated[int, typer.Option("--iterations", min=1, help="Iterations that count.")] = 2,
    warm_up: Annotated[int, typer.Option("--warm-up", min=0, help="Iterations before, which load and compile.")] = 1,
    candidates: Candidates = 96,
    keep: KeepSeeds = 24,
    explore_steps: ExploreSteps = 6,
    full_steps: FullSteps = 10,
    chunk: Chunk = None,
    held_out: Annotated[int, typer.Option("--held-out", min=0, help="Prompts of an evaluation; 0 is none.")] = 2,
    audit: Annotated[bool, typer.Option("--audit", help="Audit one prompt in every iteration.")] = False,
    micro_batch: MicroBatch = 8,
    checkpointing: Checkpointing = True,
    reward: RewardName = None,
    reward_options: RewardOption = None,
    targets: Targets = "paper",
    rank: Rank = 32,
    json: Json = None,
    mlflow: Mlflow = False,
    home: Home = None,
    prefect_port: PrefectPort = None,
    mlflow_port: MlflowPort = None,
) -> None:
    """Run whole iterations with Prefect, store and MLflow, and say where the time goes.

    Everything is written to a folder that is removed at the end, unless --home names one. Servers are started on free
    ports, unless ports or addresses are named.
    """
    from solrl_tasks.bench.recipe import IterationRequest, iteration_recipe

    explores = engine or explorer()
    request = checked(
        lambda: IterationRequest(
            # Every iteration has new prompts: moving the encoders out and back in would take longer than encoding.
            model=model_of(family, source, resolution, max_sequence_length, fields, "keep"),
            engine=explores,
            options=engine_options(options),
            prompts=prompts,
            iterations=warm_up + iterations,
            candidates=candidates,
            keep=keep,
            explore_steps=explore_steps,
            full_steps=full_steps,
            chunk=chunk or min(chunk_of(family), candidates),
            held_out=held_out,
            audit=audit,
            micro_batch=micro_batch,
            gradient_checkpointing=checkpointing,
            reward=reward_of(reward, reward_options),
            lora=lora_of(rank, targets),
            seed=int(time.time()),
        )
    )
    recipe = checked(lambda: iteration_recipe(request))
    with own_home(home) as folder:
        report = run_iterations(recipe, warm_up, Settings.read(folder, prefect_port, mlflow_port))
        _save(report, json)
        _finish(report, mlflow, home, mlflow_port)


@app.command()
def ceiling(
    families: Annotated[str, typer.Option("--families", help="Comma-separated.")] = "flux,sd3,sana",
    resolutions: Annotated[str, typer.Option("--resolutions", help="Sides in pixels, comma-separated.")] = "512,1024",
    candidates: Candidates = 96,
    keep: KeepSeeds = 24,
    explore_steps: ExploreSteps = 6,
    full_steps: FullSteps = 10,
    json: Json = None,
) -> None:
    """Count operations and say how fast each model's rollout can be at all; nothing is measured or loaded."""
    from solrl_tasks.bench.ceiling import RolloutShape
    from solrl_tasks.bench.possible import bench_ceiling

    models = [
        model_of(family, None, side, None, None)
        for family in words(families)
        for side in checked(lambda: [int(word) for word in words(resolutions)])
    ]
    report = bench_ceiling(models, RolloutShape(candidates, keep, explore_steps, full_steps))
    _save(report, json)
    _show(report)


@app.command()
def table(files: Annotated[list[Path], typer.Argument(help="Reports that --json wrote.")]) -> None:
    """Write the Markdown tables of reports, in the order given."""
    from solrl_tasks.bench.reports.file import read_report
    from solrl_tasks.bench.tables import to_markdown

    for file in files:
        typer.echo(to_markdown(read_report(file)))


# Reports


def _save(report: "Report", path: Path | None) -> None:
    from solrl_tasks.bench.reports.file import write_report

    if path is not None:
        write_report(report, path)


def _show(report: "Report") -> None:
    from solrl_tasks.bench.tables import describe, tables_of

    for shown in tables_of(report):
        say()
        say(shown.title)
        drawn = make_table(*shown.columns)
        for row in shown.rows:
            drawn.add_row(*row)
        console.print(drawn)
        for note in shown.notes:
            say(note)
    say()
    say(describe(report.environment))


def _finish(report: "Report", mlflow: bool, home: Path | None, mlflow_port: int | None) -> None:
    _show(report)
    if not mlflow:
        return
    from solrl_tasks.bench.reports.metrics import metrics_of
    from solrl_tasks.tracking.mlflow_report import log_report

    settings = Settings.read(home, None, mlflow_port)
    tree = report.model_dump(mode="json", include={"environment", "model", "recipe"})
    name = f"{report.bench} {tree.get('model', {}).get('source', '')}".strip()
    root = None if settings.mlflow.is_http else settings.home / "mlflow" / "artifacts"
    content = report.model_dump_json(indent=2)
    shown = log_report(settings.mlflow.url, EXPERIMENT, name, tree, metrics_of(report), content, root)
    say(f"MLflow run   {shown.url or shown.run_id}")
