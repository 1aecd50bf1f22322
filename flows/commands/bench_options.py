"""What is asked of ``solrl bench``: its options, and what they come to."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
import yaml

from flows.console import say
from flows.errors import UserError

if TYPE_CHECKING:
    import torch

    from solrl_tasks.bench.models import TextEncoders
    from solrl_tasks.bench.subject import Subject
    from solrl_tasks.config.recipe import LoraSpec, ModelSpec, RewardSpec

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
Chunk = Annotated[
    int | None, typer.Option("--chunk", min=1, help="Images together.  [default: the family's, at most the candidates]")
]
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


def words(text: str | None) -> list[str]:
    return [word.strip() for word in (text or "").split(",") if word.strip()]


def checked(make: Callable[[], Any]) -> Any:
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


def engine_options(texts: list[str] | None) -> dict[str, dict[str, Any]]:
    from solrl_tasks.config.extensions import find_extension, parse_options

    options: dict[str, dict[str, Any]] = {}
    for dotted, value in _pairs(texts, "--option").items():
        engine, dot, name = dotted.rpartition(".")
        if not dot or not engine:
            raise UserError(f"--option {dotted!r}: give ENGINE.NAME=VALUE, such as fp8.execution=eager")
        options.setdefault(engine, {})[name] = value
    for engine, given in options.items():
        checked(partial(parse_options, "engine", find_extension("engine", engine), given))
    return options


def model_of(
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

    model: ModelSpec = checked(make)
    return model


def chunk_of(family: str) -> int:
    from solrl_tasks.bench.models import CHUNK, CHUNKS

    return CHUNKS.get(family, CHUNK)


def reward_of(name: str | None, options: list[str] | None) -> "RewardSpec":
    from solrl_tasks.config.recipe import RewardSpec
    from solrl_tasks.rewards.scoring import make_reward

    default, settings = RANDOM_CLIP
    chosen = settings if name is None else {}
    spec = RewardSpec(name=name or default, options={**chosen, **_pairs(options, "--reward-option")})
    checked(lambda: make_reward(spec))
    return spec


def lora_of(rank: int, targets: str) -> "LoraSpec":
    from solrl_tasks.config.recipe import LoraSpec

    return LoraSpec(rank=rank, alpha=2.0 * rank, targets=targets)


def complete_of(text: str | None, arms: str | None, device: "torch.device") -> tuple[str, ...]:
    """The arms to run wholly."""
    if text is None:
        return ()
    return arms_of(arms, device) if text == "all" else tuple(words(text))


def arms_of(text: str | None, device: "torch.device") -> tuple[str, ...]:
    from solrl_tasks.bench.arms import DEFAULT_ARMS, PIPELINE, parse_arm
    from solrl_tasks.bench.rollout_request import require_engines
    from solrl_tasks.engines.base import report_engines

    if text is not None:
        arms = tuple(words(text))
        checked(lambda: [parse_arm(arm) for arm in arms])
        require_engines(arms, device)
        return arms
    engines = report_engines(device)
    usable = {PIPELINE, *(name for name, found in engines.items() if found.ok)}
    for arm in DEFAULT_ARMS:
        engine = parse_arm(arm).engine
        if engine not in usable:
            say(f"{arm} is left out: {engines[engine].reason}")
    return tuple(arm for arm in DEFAULT_ARMS if parse_arm(arm).engine in usable)


def subject_of(model: "ModelSpec", lora: "LoraSpec", options: list[str] | None) -> "Subject":
    from solrl_tasks.bench.subject import Subject
    from solrl_tasks.workers.numerics import default_device

    return Subject(model, default_device(), lora, engine_options(options))


def explorer() -> str:
    """fp8 where the hardware multiplies at it, else what runs anywhere."""
    from solrl_tasks.engines.base import report_engines
    from solrl_tasks.workers.numerics import default_device

    device = default_device()
    real = device.type == "cuda" and report_engines(device)["fp8"].ok
    return "fp8" if real else "nvfp4-emulated"
