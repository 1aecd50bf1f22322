"""`python -m solrl_tasks.pretrain`: make a model without any server."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from solrl_tasks.pretrain import stages
from solrl_tasks.pretrain.base import BaseSettings
from solrl_tasks.pretrain.curves import CurveSettings
from solrl_tasks.pretrain.loop import Budget
from solrl_tasks.pretrain.vae import VaeSettings

app = typer.Typer(add_completion=False, help="Train the embedded text-to-image model, stage by stage.")

Folder = Annotated[Path, typer.Argument(help="Working folder: pipeline/, report.json, grid.png.")]
Device = Annotated[str, typer.Option(help="cpu, cuda or auto.")]
Steps = Annotated[int | None, typer.Option(help="End after so many optimizer steps.")]
Seconds = Annotated[float | None, typer.Option(help="End after so many seconds; the learning rate falls to 0 by then.")]
Compile = Annotated[bool, typer.Option(help="Compile the transformer (GPU only).")]


def say(text: str) -> None:
    """Print at once: a killed run shows how far it came."""
    print(text, file=sys.stdout, flush=True)


@app.command()
def autoencoder(
    folder: Folder,
    size: Annotated[str, typer.Option(help="embedded or micro.")] = "embedded",
    steps: Steps = None,
    seconds: Seconds = None,
    batch: int = VaeSettings.batch,
    learning_rate: float = VaeSettings.learning_rate,
    pool: Annotated[int, typer.Option(help="Scenes rendered to draw from.")] = VaeSettings.pool,
    device: Device = "auto",
) -> None:
    """Build the pipeline and train its autoencoder."""
    settings = VaeSettings(batch=batch, learning_rate=learning_rate, pool=pool)
    stages.autoencoder(stages.place_at(folder, device), size, settings, Budget(steps, seconds), say=say)


@app.command()
def base(
    folder: Folder,
    steps: Steps = None,
    seconds: Seconds = None,
    batch: int = BaseSettings.batch,
    learning_rate: float = BaseSettings.learning_rate,
    warmup: int = BaseSettings.warmup,
    scenes: Annotated[int, typer.Option(help="Scenes to train on.")] = 2_000_000,
    seed: Annotated[int, typer.Option(help="Seed of scenes, noise and order.")] = BaseSettings.seed,
    train_text: Annotated[bool, typer.Option(help="Train the text encoders too.")] = True,
    checkpoint: Annotated[Path | None, typer.Option(help="File kept up to date with the averaged weights.")] = None,
    device: Device = "auto",
    compiled: Compile = False,
) -> None:
    """Train the transformer and the text encoders."""
    settings = BaseSettings(batch, learning_rate, warmup, seed=seed, train_text=train_text)
    stages.base(stages.place_at(folder, device, compiled), settings, Budget(steps, seconds), scenes, checkpoint, say)


@app.command()
def straighten(
    folder: Folder,
    steps: Steps = None,
    seconds: Seconds = None,
    batch: int = BaseSettings.batch,
    learning_rate: float = 5e-4,
    pairs: Annotated[int, typer.Option(help="Pairs of noise and picture to make.")] = 1_000_000,
    pair_steps: Annotated[int, typer.Option(help="Heun steps that make a pair.")] = 20,
    device: Device = "auto",
    compiled: Compile = False,
) -> None:
    """Train the base on its own noise-to-picture pairs, so that few steps are enough."""
    settings = BaseSettings(batch=batch, learning_rate=learning_rate, train_text=False)
    place = stages.place_at(folder, device, compiled)
    stages.straighten(place, settings, Budget(steps, seconds), pairs, pair_steps, say)


@app.command()
def curves(
    folder: Folder,
    prompts: int = CurveSettings.prompts,
    seeds: int = CurveSettings.seeds,
    steps: Annotated[str, typer.Option(help="Counts of steps, with commas.")] = "4,6,8,10,20,40",
    shift: Annotated[str, typer.Option(help="Static shifts of the sigma grid, with commas.")] = "3.0",
    workers: Annotated[int, typer.Option(help="Processes that score.")] = 0,
    name: Annotated[str, typer.Option(help="Name of the entry in report.json.")] = "curves",
    device: Device = "auto",
    compiled: Compile = False,
) -> None:
    """Measure reward by steps, spread inside a group and agreement of rankings; draw the grid."""
    counts = tuple(int(part) for part in steps.split(","))
    scorer, place = stages.ScorerPool(workers), stages.place_at(folder, device, compiled)
    for value in (float(part) for part in shift.split(",")):
        settings = CurveSettings(prompts=prompts, seeds=seeds, steps=counts, shift=value)
        stages.curves(place, settings, scorer, f"{name} at shift {value}", say)
    scorer.close()


def _budget(steps: int | None, seconds: float | None) -> Budget | None:
    return None if steps is None and seconds is None else Budget(steps, seconds)


@app.command()
def make(
    folder: Folder,
    size: Annotated[str, typer.Option(help="embedded or micro.")] = "embedded",
    vae_steps: Steps = None,
    vae_seconds: Seconds = None,
    base_steps: Steps = None,
    base_seconds: Seconds = None,
    straighten_steps: Steps = None,
    straighten_seconds: Seconds = None,
    vae_batch: int = VaeSettings.batch,
    batch: int = BaseSettings.batch,
    learning_rate: float = BaseSettings.learning_rate,
    straighten_rate: float = stages.Plan.straighten_rate,
    pool: int = VaeSettings.pool,
    scenes: int = stages.Plan.scenes,
    pairs: int = stages.Plan.pairs,
    curve_prompts: int = CurveSettings.prompts,
    curve_seeds: int = CurveSettings.seeds,
    workers: Annotated[int, typer.Option(help="Processes that score.")] = 0,
    seed: int = BaseSettings.seed,
    train_text: Annotated[bool, typer.Option(help="Train the text encoders too, in the base stage.")] = True,
    device: Device = "auto",
    compiled: Compile = False,
) -> None:
    """All stages in one process; a stage without a budget is left out."""
    plan = stages.Plan(
        size=size,
        vae=_budget(vae_steps, vae_seconds),
        base=_budget(base_steps, base_seconds),
        straighten=_budget(straighten_steps, straighten_seconds),
        scenes=scenes,
        pairs=pairs,
        vae_settings=VaeSettings(batch=vae_batch, pool=pool),
        base_settings=BaseSettings(batch=batch, learning_rate=learning_rate, seed=seed, train_text=train_text),
        straighten_rate=straighten_rate,
        curve_settings=CurveSettings(prompts=curve_prompts, seeds=curve_seeds),
    )
    scorer = stages.ScorerPool(workers)
    stages.run_plan(stages.place_at(folder, device, compiled), plan, scorer, say)
    scorer.close()


@app.command()
def restore(folder: Folder, checkpoint: Annotated[Path, typer.Argument(help="File of `base --checkpoint`.")]) -> None:
    """Put the weights of a checkpoint into the folder's pipeline."""
    stages.restore(stages.place_at(folder, "cpu"), checkpoint)


@app.command()
def export(
    folder: Folder,
    target: Annotated[Path, typer.Argument(help="Folder to write.")],
    shift: Annotated[float, typer.Option(help="Static shift of the sigma grid.")] = CurveSettings.shift,
) -> None:
    """Write the pipeline in bfloat16, as it is shipped."""
    stages.export(stages.place_at(folder, "cpu"), target, shift)


if __name__ == "__main__":
    app()
