"""Tiny models, and reports made by hand."""

import pytest
import torch

from solrl_tasks.bench.reports.rollout import RolloutReport
from solrl_tasks.bench.rollout_request import RolloutRequest
from solrl_tasks.bench.subject import Subject
from solrl_tasks.config.recipe import LoraSpec, ModelSpec, RewardSpec
from tests.support.bench_reports import whole_rollout

LORA = LoraSpec(rank=2, alpha=4.0, targets="attention")


def tiny_model(family: str = "flux") -> ModelSpec:
    """The smallest network of a family's real class, drawn at random."""
    return ModelSpec(family=family, source=f"random:tiny-{family}", resolution=64, max_sequence_length=16)


@pytest.fixture
def request_of():
    """Makes small requests; named fields replace the usual."""

    def make(family: str = "flux", **changes) -> RolloutRequest:
        fields = {
            "model": tiny_model(family),
            "arms": ("bf16-full",),
            "candidates": 5,
            "keep": 3,
            "explore_steps": 2,
            "full_steps": 3,
            "chunk": 2,
            "keep_chunk": 2,
            "timed": 2,
            "repeats": 1,
            "reward": RewardSpec(name="colourfulness"),
            "lora": LORA,
            **changes,
        }
        return RolloutRequest.model_validate(fields)

    return make


@pytest.fixture(scope="session")
def subject() -> Subject:
    """A device with the tiny FLUX, shared: tests must not depend on what its engines hold."""
    return Subject(tiny_model(), torch.device("cpu"), LORA)


@pytest.fixture
def rollout_report() -> RolloutReport:
    return whole_rollout()
