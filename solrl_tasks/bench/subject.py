"""What every measurement starts from: a device with its model, encoded prompts, and LoRAs that change something."""

import statistics
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property, partial
from typing import Final

import numpy as np
import torch
from pydantic import JsonValue

from solrl_tasks.bench.clock import Clock
from solrl_tasks.bench.flops import count_flops
from solrl_tasks.bench.reports.facts import ModelFacts
from solrl_tasks.config.extensions import find_extension
from solrl_tasks.config.recipe import ExtensionSpec, LoraSpec, ModelSpec
from solrl_tasks.engines.base import Engine
from solrl_tasks.models.dtypes import device_class
from solrl_tasks.models.families.base import Conditioning
from solrl_tasks.models.lora import LoraState, init_lora
from solrl_tasks.sampling.identity import stream
from solrl_tasks.sampling.prompts import Prompt, PromptSet
from solrl_tasks.workers.device import Device

PROMPTS: Final = PromptSet(
    tuple(
        Prompt(text)
        for text in (
            "a watercolour of a lighthouse on a cliff above a stormy sea, gulls in the foreground",
            "a photograph of an old bicycle leaning against a yellow wall in the evening sun",
            "an isometric drawing of a small library with a spiral staircase and many plants",
            "a close-up of a clockmaker's hands repairing a brass watch under a lamp",
        )
    )
)
"""What is sampled: figures do not depend on the words, only on their being several."""

LORA_SCALE: Final = 0.01
"""Standard deviation of the second factor: as small as trained ones are, and not zero, so that every sync is real."""


class Subject:
    """A device with one model on it, as a run would have it.

    Args:
        options: of engines by name, for every measurement alike.
    """

    def __init__(
        self,
        model: ModelSpec,
        device: torch.device,
        lora: LoraSpec,
        options: Mapping[str, Mapping[str, JsonValue]] | None = None,
    ) -> None:
        self.model = model
        self.device = Device(model, device)
        self.clock = Clock(device)
        self.lora_spec = lora
        self._options = options or {}

    def engine_spec(self, name: str) -> ExtensionSpec:
        """An engine as a recipe would name it."""
        return ExtensionSpec(name=name, options=dict(self._options.get(name, {})))

    def engine(self, name: str) -> Engine:
        """The device's engine of that name, attached."""
        return self.device.engine(self.engine_spec(name))

    def lora(self, seed: int) -> LoraState:
        """An adapter as a run would have it after some updates; another for every seed."""
        spec = self.lora_spec
        family = self.device.family
        state = init_lora(family.transformer, family.lora_targets(spec.targets), spec.rank, spec.alpha, seed)
        return replace(state, weights={name: _moved(name, value, seed) for name, value in state.weights.items()})

    @property
    def lora_name(self) -> str:
        """For reports."""
        return f"rank {self.lora_spec.rank}, {self.lora_spec.targets}"

    @cached_property
    def conditioning(self) -> Conditioning:
        """The first prompt as the device encodes it; the text encoders may have left the device since."""
        return self.device.resident.embeddings.get((PROMPTS[0].text,)).to(self.device.device)

    def time_text(self, repeats: int) -> float:
        """Median seconds of encoding one prompt with the encoders in place; ``conditioning`` is made on the way."""
        family = self.device.family
        family.encode([PROMPTS[0].text])
        texts = [PROMPTS[1 + turn % (len(PROMPTS) - 1)].text for turn in range(repeats)]
        seconds = [self.clock.wall(partial(family.encode, [text]))[0] for text in texts]
        _ = self.conditioning
        return statistics.median(seconds)

    def facts(self) -> ModelFacts:
        """What is measured, with its operations counted."""
        family = self.device.family
        kind = device_class(self.device.device)
        return ModelFacts(
            family=self.model.family,
            source=self.model.source,
            resolution=self.model.resolution,
            dtypes=find_extension("family", self.model.family).numerics(self.model, kind),
            flops=count_flops(family, self.conditioning),
        )


def _moved(name: str, value: torch.Tensor, seed: int) -> torch.Tensor:
    if not name.endswith("lora_B"):
        return value
    drawn = stream("bench-lora", name, seed).standard_normal(tuple(value.shape), dtype=np.float32)
    return torch.from_numpy(LORA_SCALE * drawn)
