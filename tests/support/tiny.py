"""Tiny random pipelines of the real classes, one a family."""

from pathlib import Path
from typing import Any

import pytest
import torch

from solrl_tasks.config.extensions import find_extension
from solrl_tasks.config.recipe import ModelSpec
from solrl_tasks.models.dtypes import choose
from solrl_tasks.models.families.base import Family
from solrl_tasks.models.pipelines import load_pipeline, load_text_encoders, text_encoder_names
from solrl_tasks.models.sources import fetch

FAMILIES = ("flux", "sd3", "sana")
EACH = pytest.mark.parametrize("name", FAMILIES)
PROMPTS = ["a red circle", "two blue squares on black"]
NEGATIVE = "a green ring"
GUIDED = {"guidance_scale": 3.0, "negative_prompt": NEGATIVE}
CPU = torch.device("cpu")
FULL = ("flux.1-dev", "flux.1-schnell", "sd3.5-large", "sd3.5-medium", "sana-1.6b")


def tiny_spec(family: str, **changes: Any) -> ModelSpec:
    """The model section for a family's tiny pipeline."""
    return ModelSpec(**{"family": family, "source": f"random:tiny-{family}", "resolution": 32, **changes})


def full_spec(name: str, **changes: Any) -> ModelSpec:
    """The model section for a full-size architecture."""
    family = {"flu": "flux", "sd3": "sd3", "san": "sana"}[name[:3]]
    return ModelSpec(**{"family": family, "source": f"random:{name}", "resolution": 512, **changes})


def load(spec: ModelSpec) -> Family:
    """The family of a spec, on the CPU."""
    family: Family = find_extension("family", spec.family).load(spec, CPU)
    return family


def save_tiny(family: str, folder: Path) -> Path:
    """Write a family's tiny pipeline as any other pipeline is."""
    spec = tiny_spec(family)
    dtypes = choose(spec, "cpu")
    pipeline = load_pipeline(find_extension("family", family).pipeline_class, spec, dtypes, CPU)
    names = text_encoder_names(fetch(spec))
    pipeline.register_modules(**load_text_encoders(spec, names, dtypes.text, CPU))
    pipeline.save_pretrained(folder)
    return folder
