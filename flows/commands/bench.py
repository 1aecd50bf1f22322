"""``solrl bench``: what rollouts, updates, syncs and whole iterations cost on this machine."""

import importlib.metadata
import importlib.util
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import urlsplit

import typer
import yaml

from flows.commands.options import Home, MlflowPort, PrefectPort
from flows.console import console, make_table, say
from flows.errors import UserError
from flows.processes import free_port
from flows.settings import Address, Settings

if TYPE_CHECKING:
    import torch

    from solrl_tasks.bench.models import TextEncoders
    from solrl_tasks.bench.report import IterationReport, Report
    from solrl_tasks.bench.subject import Subject
    from solrl_tasks.config.recipe import LoraSpec, ModelSpec, Recipe, RewardSpec
    from solrl_tasks.tracking.summary import Summary

app = typer.Typer(no_args_is_help=True)

EXPERIMENT: Final = "solrl-bench"
RANDOM_CLIP: Final = ("clipscore", {"source": "random"})
"""The reward where none is named: of CLIP's size, without its weights."""

Family = Annotated[str, typer.Option("--family", help="Model family.")]
Source = Annotated[
    str | None, typer.Option("--source", help="Model, as in a recipe.  [default: the family's own, random weights]")
]
Resolution = Annotated[int | None, typer.Option("--resolution", min=16, help="Side in pixels.  [default: 512]")]
TextTokens = Annotated[
    int | None, typer.Option("--max-sequence-length", min=1, help="Text tokens.  [default: the family's]")
]
Set = Annotated[
    list[str] | None, typer.Option("--set", help="Another field of the model section, NAME=VALUE; may be repeated.")
]
EngineOption = Annotated[
    list[str] | None,
    typer.Option("--option", help="Option of an engine, such as fp8.execution=eager; may be repeated."),
]
Chunk = Annotated[int | None, typer.Option("--chunk", min=1, help="Images together.  [default: the family's]")]
Candidates = Annotated[int, typer.Option("--candidates", min=1, help="Explored seeds of a prompt.")]
KeepSeeds = Annotated[int, typer.Option("--keep", min=1, help="Kept seeds of a prompt.")]
ExploreSteps = Annotated[int, typer.Option("--explore-steps", min=1, help="Steps of the exploration.")]
FullSteps = Annotated[int, typer.Option("--full-steps", min=1, help="Steps of precise sampling.")]
RewardName = Annotated[
    str | None, typer.Option("--reward", help="What scores.  [default: clipscore with random weights]")
]
RewardOption = Annotated[
    list[str] | None, typer.Option("--reward-option", help="Option of the reward, NAME=VALUE; may be repeated.")
]
Targets = Annotated[str, typer.Option("--targets", help="Layers that the LoRA adapts.")]
Rank = Annotated[int, typer.Option("--rank", min=1, help="Rank of the LoRA.")]
MicroBatch = Annotated[int, typer.Option("--micro-batch", min=1, help="Rows of one forward and backward.")]
Checkpointing = Annotated[
    bool, typer.Option("--gradient-checkpointing/--no-gradient-checkpointing", help="Compute activations again.")
]
Json = Annotated[Path | None, typer.Option("--json", help="File to write the report to.")]
Mlflow = Annotated[bool, typer.Option("--mlflow", help="Log the report to MLflow, which must be there.")]


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
    complete: Annotated[bool, typer.Option("--complete", help="Run one whole rollout of each arm as well.")] = False,
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
    from solrl_tasks.bench.rollout import RolloutBench, RolloutRequest
    from solrl_tasks.workers.numerics import default_device

    device = default_device()
    together = chunk or _chunk(family)
    request = _checked(
        lambda: RolloutRequest(
            model=_model(family, source, resolution, max_sequence_length, fields),
            arms=_arms(arms, device),
            candidates=candidates,
            keep=keep,
            explore_steps=explore_steps,
            full_steps=full_steps,
            chunk=together,
            keep_chunk=keep_chunk or min(together, keep),
            timed=timed,
            repeats=repeats,
            sampler=sampler,
            reward=_reward(reward, reward_options),
            lora=_lora(rank, targets),
            options=_engine_options(options),
            complete=complete,
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

    lora = _lora(rank, targets)
    spec = UpdateSpec(lora=lora, times_per_sample=times, micro_batch=micro_batch, gradient_checkpointing=checkpointing)
    subject = _subject(_model(family, source, resolution, max_sequence_length, fields), spec.lora, None)
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
    names = _words(engines) or [name for name, found in report_engines(device).items() if found.ok]
    for name in names:
        require_engine(name, device)
    model = _model(family, source, resolution, max_sequence_length, fields)
    report = bench_sync(_subject(model, _lora(rank, targets), options), names, swaps, chunk or _chunk(family), say)
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

    explorer = engine or _explorer()
    request = _checked(
        lambda: IterationRequest(
            # Every iteration has new prompts: moving the encoders out and back in would take longer than encoding.
            model=_model(family, source, resolution, max_sequence_length, fields, "keep"),
            engine=explorer,
            options=_engine_options(options),
            prompts=prompts,
            iterations=warm_up + iterations,
            candidates=candidates,
            keep=keep,
            explore_steps=explore_steps,
            full_steps=full_steps,
            chunk=chunk or _chunk(family),
            held_out=held_out,
            audit=audit,
            micro_batch=micro_batch,
            gradient_checkpointing=checkpointing,
            reward=_reward(reward, reward_options),
            lora=_lora(rank, targets),
            seed=int(time.time()),
        )
    )
    recipe = _checked(lambda: iteration_recipe(request))
    with _own_home(home) as folder:
        report = _run_iterations(recipe, warm_up, Settings.read(folder, prefect_port, mlflow_port))
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
        _model(family, None, side, None, None)
        for family in _words(families)
        for side in _checked(lambda: [int(word) for word in _words(resolutions)])
    ]
    report = bench_ceiling(models, RolloutShape(candidates, keep, explore_steps, full_steps))
    _save(report, json)
    _show(report)


@app.command()
def table(files: Annotated[list[Path], typer.Argument(help="Reports that --json wrote.")]) -> None:
    """Write the Markdown tables of reports, in the order given."""
    from solrl_tasks.bench.report import read_report
    from solrl_tasks.bench.tables import to_markdown

    for file in files:
        typer.echo(to_markdown(read_report(file)))


# What the commands share


def _words(text: str | None) -> list[str]:
    return [word.strip() for word in (text or "").split(",") if word.strip()]


def _checked(make: Callable[[], Any]) -> Any:
    """What ``make`` returns; a refusal becomes an error for people."""
    from pydantic import ValidationError

    from solrl_tasks.config.load import describe

    try:
        return make()
    except ValidationError as error:
        raise UserError(describe(error)) from error
    except ValueError as error:
        raise UserError(str(error)) from error


def _pairs(texts: list[str] | None, option: str) -> dict[str, Any]:
    pairs = {}
    for text in texts or []:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UserError(f"{option} {text!r}: give NAME=VALUE")
        pairs[name] = yaml.safe_load(value)
    return pairs


def _engine_options(texts: list[str] | None) -> dict[str, dict[str, Any]]:
    from solrl_tasks.config.extensions import find_extension, parse_options

    options: dict[str, dict[str, Any]] = {}
    for dotted, value in _pairs(texts, "--option").items():
        engine, dot, name = dotted.rpartition(".")
        if not dot or not engine:
            raise UserError(f"--option {dotted!r}: give ENGINE.NAME=VALUE, such as fp8.execution=eager")
        options.setdefault(engine, {})[name] = value
    for engine, given in options.items():
        _checked(partial(parse_options, "engine", find_extension("engine", engine), given))
    return options


def _model(
    family: str,
    source: str | None,
    resolution: int | None,
    text_tokens: int | None,
    fields: list[str] | None,
    text_encoders: "TextEncoders" = "release",
) -> "ModelSpec":
    from solrl_tasks.bench.models import choose_model
    from solrl_tasks.config.recipe import ModelSpec

    def make() -> ModelSpec:
        chosen = choose_model(family, source, resolution, text_tokens, text_encoders)
        return ModelSpec.model_validate(chosen.model_dump() | _pairs(fields, "--set"))

    model: ModelSpec = _checked(make)
    return model


def _chunk(family: str) -> int:
    from solrl_tasks.bench.models import CHUNK, CHUNKS

    return CHUNKS.get(family, CHUNK)


def _reward(name: str | None, options: list[str] | None) -> "RewardSpec":
    from solrl_tasks.config.recipe import RewardSpec
    from solrl_tasks.rewards.scoring import make_reward

    default, settings = RANDOM_CLIP
    chosen = settings if name is None else {}
    spec = RewardSpec(name=name or default, options={**chosen, **_pairs(options, "--reward-option")})
    _checked(lambda: make_reward(spec))
    return spec


def _lora(rank: int, targets: str) -> "LoraSpec":
    from solrl_tasks.config.recipe import LoraSpec

    return LoraSpec(rank=rank, alpha=2.0 * rank, targets=targets)


def _arms(text: str | None, device: "torch.device") -> tuple[str, ...]:
    from solrl_tasks.bench.arms import DEFAULT_ARMS, PIPELINE, parse_arm
    from solrl_tasks.bench.rollout import require_engines
    from solrl_tasks.engines.base import report_engines

    if text is not None:
        arms = tuple(_words(text))
        _checked(lambda: [parse_arm(arm) for arm in arms])
        require_engines(arms, device)
        return arms
    engines = report_engines(device)
    usable = {PIPELINE, *(name for name, found in engines.items() if found.ok)}
    for arm in DEFAULT_ARMS:
        engine = parse_arm(arm).engine
        if engine not in usable:
            say(f"{arm} is left out: {engines[engine].reason}")
    return tuple(arm for arm in DEFAULT_ARMS if parse_arm(arm).engine in usable)


def _subject(model: "ModelSpec", lora: "LoraSpec", options: list[str] | None) -> "Subject":
    from solrl_tasks.bench.subject import Subject
    from solrl_tasks.workers.numerics import default_device

    return Subject(model, default_device(), lora, _engine_options(options))


def _explorer() -> str:
    """fp8 where the hardware multiplies at it, else what runs anywhere."""
    from solrl_tasks.engines.base import report_engines
    from solrl_tasks.workers.numerics import default_device

    device = default_device()
    real = device.type == "cuda" and report_engines(device)["fp8"].ok
    return "fp8" if real else "nvfp4-emulated"


@contextmanager
def _own_home(asked: Path | None) -> Iterator[Path]:
    if asked is not None:
        yield asked
        return
    with tempfile.TemporaryDirectory(prefix="solrl-bench-") as folder:
        say(f"Everything is written to {folder}, which is removed at the end; --home keeps it")
        yield Path(folder)


def _run_iterations(recipe: "Recipe", warm_up: int, settings: Settings) -> "IterationReport":
    import torch

    from flows.commands.demo import run_here
    from solrl_tasks.bench.environment import describe_environment
    from solrl_tasks.bench.iteration import report_iterations
    from solrl_tasks.workers.numerics import default_device

    device = default_device()
    environment = describe_environment(device)
    settings = _on_free_ports(settings)
    settings.home.mkdir(parents=True, exist_ok=True)
    run_id = f"{recipe.name}-{recipe.seed}"
    config = settings.home / f"{run_id}.yaml"
    config.write_text(yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False), encoding="utf-8")
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    run_here(settings, run_id, str(config), None, "bench iteration")
    summaries = _summaries(settings, run_id)
    peak = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None
    tree = recipe.model_dump(mode="json")
    return report_iterations(environment, tree, _servers(settings), summaries, warm_up, peak)


def _summaries(settings: Settings, run_id: str) -> "list[Summary]":
    from flows.publishing import read_summaries
    from solrl_tasks.store.root import Store
    from solrl_tasks.store.runs import view_run

    return read_summaries(view_run(Store(settings.store_root), run_id))


def _servers(settings: Settings) -> dict[str, str]:
    known = {"Prefect": (settings.prefect.url, "prefect"), "MLflow": (settings.mlflow.url, "mlflow", "mlflow-skinny")}
    return {name: f"{_version(*packages)} by {urlsplit(url).scheme}" for name, (url, *packages) in known.items()}


def _version(*packages: str) -> str:
    """Of the first that is installed."""
    for package in packages:
        with suppress(importlib.metadata.PackageNotFoundError):
            return importlib.metadata.version(package)
    return "of unknown version"


def _on_free_ports(settings: Settings) -> Settings:
    """Servers of this command's own, so that no other run writes to them meanwhile."""
    changes: dict[str, Address] = {}
    for name, address in (("prefect", settings.prefect), ("mlflow", settings.mlflow)):
        if name == "mlflow" and address.origin == "default" and importlib.util.find_spec("flask") is None:
            say("MLflow: its server is not installed here, only its client: the run is written to a database instead")
            url = f"sqlite:///{settings.home}/mlflow/mlflow.db"
            changes[name] = address.model_copy(update={"url": url, "chosen_by": "solrl bench iteration"})
        elif address.origin == "default":
            port = free_port(max([address.port, *(other.port for other in changes.values())]))
            if port is None:
                raise UserError(f"no port is free above {address.port}: name one with --{name}-port")
            changes[name] = address.model_copy(update={"url": address.url.replace(str(address.port), str(port))})
    return settings.model_copy(update=changes)


def _save(report: "Report", path: Path | None) -> None:
    from solrl_tasks.bench.report import write_report

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
    from solrl_tasks.bench.report import metrics_of
    from solrl_tasks.tracking.mlflow_report import log_report

    settings = Settings.read(home, None, mlflow_port)
    tree = report.model_dump(mode="json", include={"environment", "model", "recipe"})
    name = f"{report.bench} {tree.get('model', {}).get('source', '')}".strip()
    root = None if settings.mlflow.is_http else settings.home / "mlflow" / "artifacts"
    content = report.model_dump_json(indent=2)
    shown = log_report(settings.mlflow.url, EXPERIMENT, name, tree, metrics_of(report), content, root)
    say(f"MLflow run   {shown.url or shown.run_id}")
