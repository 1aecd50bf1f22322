"""Make the embedded model: autoencoder, base, straightening, curves, and the files that are shipped."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from prefect import flow, get_run_logger, task
from prefect.artifacts import create_markdown_artifact
from prefect.cache_policies import NO_CACHE
from pydantic import Field

from solrl_tasks.pretrain import stages
from solrl_tasks.pretrain.base import BaseSettings
from solrl_tasks.pretrain.curves import CurveSettings
from solrl_tasks.pretrain.loop import Budget
from solrl_tasks.pretrain.vae import VaeSettings

Size = Literal["embedded", "micro"]
Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]
Steps = Annotated[int, Field(ge=1)] | None


def _say(text: str) -> None:
    get_run_logger().info(text)


@task(name="autoencoder", cache_policy=NO_CACHE, persist_result=False)
def train_autoencoder(place: stages.Place, size: Size, settings: VaeSettings, budget: Budget) -> dict[str, Any]:
    """Pixels to latents and back."""
    return stages.autoencoder(place, size, settings, budget, say=_say)


@task(name="base", cache_policy=NO_CACHE, persist_result=False)
def train_base(place: stages.Place, settings: BaseSettings, budget: Budget, scenes: int) -> dict[str, Any]:
    """Captions and noise to latents."""
    return stages.base(place, settings, budget, scenes, place.folder / "checkpoint.safetensors", _say)


@task(name="straighten", cache_policy=NO_CACHE, persist_result=False)
def train_straight(place: stages.Place, settings: BaseSettings, budget: Budget, pairs: int) -> dict[str, Any]:
    """The base on pairs of its own."""
    return stages.straighten(place, settings, budget, pairs, say=_say)


@task(name="curves", cache_policy=NO_CACHE, persist_result=False)
def measure_curves(place: stages.Place, settings: CurveSettings) -> dict[str, Any]:
    """Reward by steps and agreement of rankings, also as an artifact of the run."""
    values = stages.curves(place, settings, say=_say)
    rows = [list(point.values()) for point in values["points"]]
    head = list(values["points"][0])
    lines = [f"| {' | '.join(head)} |", "|" + " --- |" * len(head)]
    lines += ["| " + " | ".join("" if cell is None else f"{cell:.3g}" for cell in row) + " |" for row in rows]
    create_markdown_artifact("\n".join(lines), key="pretrain-curves", description="Reward by number of steps")
    return values


@task(name="export", cache_policy=NO_CACHE, persist_result=False)
def export_model(place: stages.Place) -> str:
    """The pipeline in bfloat16, in `model/` of the output folder."""
    target = place.folder / "model"
    stages.export(place, target)
    return str(target)


@flow(name="solrl-pretrain", persist_result=False, validate_parameters=True)
def pretrain(
    output: str,
    size: Size = "embedded",
    vae_seconds: Positive = 80,
    base_seconds: Positive = 355,
    straighten_seconds: Positive | None = None,
    steps: Steps = None,
    vae_batch: Count = 256,
    batch: Count = 2048,
    learning_rate: Positive = 2e-3,
    straighten_rate: Positive = 1e-3,
    pool: Count = 400_000,
    scenes: Count = 1_500_000,
    pairs: Count = 393_216,
    curve_prompts: Count = 32,
    curve_seeds: Count = 64,
    device: str = "auto",
    compiled: bool = False,
) -> str:
    """Train the embedded text-to-image model from nothing; returns the folder of the finished model.

    Args:
        output: folder for everything that is made.
        size: which architecture.
        vae_seconds: wall-clock of the autoencoder's training.
        base_seconds: wall-clock of the base's training.
        straighten_seconds: wall-clock of the straightening; left out without it, as for the shipped model.
        steps: end every training after so many steps, if that comes first.
        vae_batch: pictures a step of the autoencoder.
        batch: scenes a step of the base.
        learning_rate: highest of the base.
        straighten_rate: highest of the straightening.
        pool: pictures that the autoencoder learns from.
        scenes: scenes that the base learns from.
        pairs: pairs of noise and picture that the straightening learns from.
        curve_prompts: held-out prompts that are measured.
        curve_seeds: seeds of each.
        device: cpu, cuda or auto.
        compiled: compile the transformer, on a GPU.
    """
    place, fast = (stages.place_at(Path(output), device, on) for on in (False, compiled))
    settings = BaseSettings(batch=batch, learning_rate=learning_rate)
    bent = BaseSettings(batch=batch, learning_rate=straighten_rate, train_text=False)
    train_autoencoder(place, size, VaeSettings(batch=vae_batch, pool=pool), Budget(steps, vae_seconds))
    train_base(fast, settings, Budget(steps, base_seconds), scenes)
    if straighten_seconds is not None:
        train_straight(fast, bent, Budget(steps, straighten_seconds), pairs)
    measure_curves(place, CurveSettings(prompts=curve_prompts, seeds=curve_seeds))
    return export_model(place)


def main(
    output: Annotated[str, typer.Argument(help="Folder for everything that is made.")],
    size: Annotated[str, typer.Option(help="embedded or micro.")] = "embedded",
    vae_seconds: float = 80,
    base_seconds: float = 355,
    straighten_seconds: Annotated[float | None, typer.Option(help="Straighten too, for so long.")] = None,
    steps: Annotated[int | None, typer.Option(help="End every training after so many steps.")] = None,
    vae_batch: int = 256,
    batch: int = 2048,
    scenes: int = 1_500_000,
    pool: int = 400_000,
    pairs: int = 393_216,
    curve_prompts: int = 32,
    curve_seeds: int = 64,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "auto",
    compiled: Annotated[bool, typer.Option(help="Compile the transformer, on a GPU.")] = False,
) -> None:
    """Run the flow here, without a deployment."""
    pretrain(**locals())


if __name__ == "__main__":
    typer.run(main)
