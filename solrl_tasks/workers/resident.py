"""What a device loads once and keeps: the pipeline, engines, rewards, features, encoded prompts."""

from functools import cached_property
from pathlib import Path

import torch

from solrl_tasks.config.extensions import build, find_extension
from solrl_tasks.config.recipe import ExtensionSpec, ModelSpec, RewardSpec
from solrl_tasks.engines.base import Engine, require_engine
from solrl_tasks.features.base import NamedFeature, make_feature
from solrl_tasks.models.embeddings import EmbeddingCache
from solrl_tasks.models.families.base import Family
from solrl_tasks.rewards.base import NamedReward
from solrl_tasks.rewards.scoring import make_reward
from solrl_tasks.workers.counters import Counters
from solrl_tasks.workers.jobs import Guidance


class Resident:
    """Nothing is loaded before it is needed; base weights are loaded once, never changed, and shared by all engines."""

    def __init__(self, model: ModelSpec, device: torch.device, cache: Path | None) -> None:
        self.model = model
        self.device = device
        self.counters = Counters()
        self.engines: dict[str, Engine] = {}
        self.rewards: dict[str, NamedReward] = {}
        self.features: dict[str, NamedFeature] = {}
        self._cache = cache
        self._families: dict[tuple[Guidance | None, int], Family] = {}
        self._encoders: dict[Guidance, EmbeddingCache] = {}

    @cached_property
    def family(self) -> Family:
        """The loaded pipeline."""
        self.counters.loads += 1
        family: Family = find_extension("family", self.model.family).load(self.model, self.device)
        return family

    @cached_property
    def embeddings(self) -> EmbeddingCache:
        """Encoded prompts; text encoders are on the device only while a new one is encoded."""
        return EmbeddingCache(self._cache, self.family)

    def family_for(self, guidance: Guidance | None, resolution: int | None = None) -> Family:
        """The pipeline under another guidance and at another resolution; None is the model's own. All share networks.

        Raises:
            FamilyError: it has no latents of that size.
        """
        side = self.model.resolution if resolution is None else resolution
        if guidance is None and side == self.model.resolution:
            return self.family
        if (guidance, side) not in self._families:
            family = self.family if side == self.model.resolution else self.family.at_resolution(side)
            if guidance is not None:
                family = family.with_guidance(guidance.guidance, guidance.guidance_scale)
            self._families[guidance, side] = family
        return self._families[guidance, side]

    def embeddings_for(self, guidance: Guidance | None) -> EmbeddingCache:
        """Prompts encoded for another guidance; what is on disk is shared."""
        if guidance is None:
            return self.embeddings
        if guidance not in self._encoders:
            self._encoders[guidance] = EmbeddingCache(self._cache, self.family_for(guidance))
        return self._encoders[guidance]

    def engine(self, spec: ExtensionSpec) -> Engine:
        """The engine of a spec, attached to the base on first use.

        Raises:
            EngineError: the device cannot run it; the message names the engines that it can.
        """
        key = spec.model_dump_json()
        if key not in self.engines:
            require_engine(spec.name, self.device)
            engine: Engine = build("engine", spec.name, dict(spec.options), self.device)
            engine.attach(self.family.transformer, self.family.scope)
            self.engines[key] = engine
        return self.engines[key]

    def reward(self, spec: RewardSpec) -> NamedReward:
        """The reward of a spec, whatever weight, scale and patience it is given."""
        key = spec.model_dump_json(exclude={"weight", "normalize", "timeout"})
        if key not in self.rewards:
            self.rewards[key] = make_reward(spec, self.device)
        return self.rewards[key]

    def feature(self, spec: ExtensionSpec) -> NamedFeature:
        """The feature of a spec."""
        key = spec.model_dump_json()
        if key not in self.features:
            self.features[key] = make_feature(spec, self.device)
        return self.features[key]
