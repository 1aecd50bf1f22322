"""The speed of light of given models: counted, not measured."""

from collections.abc import Sequence

import torch

from solrl_tasks.bench.ceiling import RolloutShape
from solrl_tasks.bench.environment import describe_environment
from solrl_tasks.bench.flops import count_flops
from solrl_tasks.bench.reports.ceiling import CeilingReport
from solrl_tasks.bench.reports.facts import ModelFacts
from solrl_tasks.bench.subject import PROMPTS
from solrl_tasks.config.extensions import find_extension
from solrl_tasks.config.recipe import ModelSpec
from solrl_tasks.models.dtypes import device_class
from solrl_tasks.models.families.base import Family
from solrl_tasks.workers.numerics import default_device


def bench_ceiling(models: Sequence[ModelSpec], shape: RolloutShape) -> CeilingReport:
    """Count every model's operations on networks that have shapes but no data."""
    return CeilingReport(
        environment=describe_environment(default_device()),
        models=tuple(_count(model) for model in models),
        candidates=shape.candidates,
        keep=shape.keep,
        explore_steps=shape.explore_steps,
        full_steps=shape.full_steps,
    )


def _count(model: ModelSpec) -> ModelFacts:
    extension = find_extension("family", model.family)
    family: Family = extension.load(model, torch.device("meta"))
    return ModelFacts(
        family=model.family,
        source=model.source,
        resolution=model.resolution,
        dtypes=extension.numerics(model, device_class(default_device())),
        flops=count_flops(family, family.encode([PROMPTS[0].text])),
    )
