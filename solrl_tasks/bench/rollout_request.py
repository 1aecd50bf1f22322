"""What is asked of a measurement of rollouts."""

from collections.abc import Sequence
from typing import Annotated

import torch
from pydantic import Field, JsonValue, model_validator

from solrl_tasks.bench.arms import DEFAULT_ARMS, PIPELINE, parse_arm
from solrl_tasks.config.base import Frozen
from solrl_tasks.config.recipe import LoraSpec, ModelSpec, RewardSpec
from solrl_tasks.engines.base import require_engine

Count = Annotated[int, Field(ge=1)]


class RolloutRequest(Frozen):
    """What to measure.

    Attributes:
        chunk: images computed together; ``keep_chunk`` of them where the kept are sampled again.
        timed: chunks timed together, at least two more than none so that a rate can be told from a tail.
        repeats: of whatever is timed alone.
        options: of engines, by name.
        complete: arms of which one whole rollout is run besides.
        profile: say where the network's time goes.
    """

    model: ModelSpec
    arms: Annotated[tuple[str, ...], Field(min_length=1)] = DEFAULT_ARMS
    candidates: Count = 96
    keep: Count = 24
    explore_steps: Count = 6
    full_steps: Count = 10
    chunk: Count = 24
    keep_chunk: Count = 24
    timed: Annotated[int, Field(ge=2)] = 3
    repeats: Count = 3
    sampler: str = "dpm2"
    reward: RewardSpec
    lora: LoraSpec = LoraSpec(targets="attention")
    options: dict[str, dict[str, JsonValue]] = Field(default_factory=dict)
    complete: tuple[str, ...] = ()
    profile: bool = False

    @model_validator(mode="after")
    def _arms_are_known(self) -> "RolloutRequest":
        for name in self.arms:
            parse_arm(name)
        strange = [name for name in self.complete if name not in self.arms]
        if strange:
            raise ValueError(
                f"{', '.join(strange)} cannot be run completely, being none of the arms: {', '.join(self.arms)}"
            )
        return self


def require_engines(arms: Sequence[str], device: torch.device) -> None:
    """Refuse arms that the device cannot run before anything is loaded.

    Raises:
        EngineError: an engine is not for this device; the message names those that are.
        UnknownExtensionError: there is no such engine.
    """
    for plan in map(parse_arm, arms):
        if plan.engine != PIPELINE:
            require_engine(plan.engine, device)
