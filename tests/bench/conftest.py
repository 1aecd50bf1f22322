"""Tiny models, and reports made by hand."""

import pytest
import torch

from solrl_tasks.bench.flops import ModelFlops
from solrl_tasks.bench.report import Arm, Environment, Memory, ModelFacts, RolloutReport, Sampling, Split
from solrl_tasks.bench.rollout import RolloutRequest
from solrl_tasks.bench.subject import Subject
from solrl_tasks.config.recipe import LoraSpec, ModelSpec, RewardSpec

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


def environment(hardware: str = "NVIDIA H200", command: str = "solrl bench rollout --json out/x.json") -> Environment:
    return Environment(
        hardware=hardware,
        device_class="sm_90",
        driver="580.1",
        threads=4,
        libraries={"torch": "2.11.0"},
        command=command,
        started="2026-01-02T03:04:05+00:00",
    )


def model_facts() -> ModelFacts:
    flops = ModelFlops(
        total=20 * 10**12,
        quantisable=16 * 10**12,
        parameters=12 * 10**9,
        quantisable_parameters=8 * 10**9,
        quantisable_layers=400,
    )
    return ModelFacts(family="flux", source="random:x", resolution=512, dtypes={}, flops=flops)


def sampling(engine: str, steps: int, one: float, many: float, denoise: float) -> Sampling:
    memory = Memory(peak=60 * 2**30, engines={"bf16": 16 * 2**30, "fp8": 8 * 2**30})
    return Sampling(
        engine=engine,
        kind="real",
        compute=engine,
        execution="compiled",
        steps=steps,
        chunk=24,
        first_seconds=30.0,
        one_seconds=one,
        chunks=3,
        chunks_seconds=many,
        denoise_seconds=(denoise, denoise, denoise + 5.0),
        memory=memory,
    )


@pytest.fixture
def rollout_report() -> RolloutReport:
    split = Split(
        text=0.1,
        sync=0.1,
        denoise_explore=30.0,
        denoise_regenerate=8.0,
        decode=4.0,
        score=1.0,
        overlap=4.5,
    )
    return RolloutReport(
        environment=environment(),
        model=model_facts(),
        candidates=96,
        keep=24,
        explore_steps=6,
        full_steps=10,
        chunk=24,
        sampler="dpm2",
        reward="clipscore",
        lora="rank 32, paper",
        text_seconds=0.1,
        decode_seconds=0.8,
        score_seconds=0.2,
        sync_seconds={"bf16": 0.05, "fp8": 0.05},
        samplings={
            "bf16@10x24": sampling("bf16", 10, 11.0, 31.0, 9.6),
            "fp8@6x24": sampling("fp8", 6, 5.0, 13.0, 3.6),
            "fp8@10x24": sampling("fp8", 10, 8.0, 22.0, 6.5),
        },
        arms=(
            Arm(name="eager-pipeline", images=96, kept=24, seconds=60.0),
            Arm(name="bf16-full", explored="bf16@10x24", images=96, kept=24, seconds=40.0, split=split),
            Arm(
                name="fp8-two-stage",
                explored="fp8@6x24",
                regenerated="bf16@10x24",
                images=120,
                kept=24,
                seconds=25.0,
                split=split,
            ),
            Arm(name="fp8-full", explored="fp8@10x24", images=96, kept=24, seconds=20.0),
            Arm(name="nvfp4-two-stage", error="Traceback …\nEngineError: engine 'nvfp4' cannot run"),
        ),
    )
