"""Reports of measurements, made by hand."""

from collections.abc import Mapping, Sequence
from typing import Any

from solrl_tasks.bench.flops import ModelFlops
from solrl_tasks.bench.reports.facts import Environment, ModelFacts
from solrl_tasks.bench.reports.rollout import Arm, RolloutReport, Split
from solrl_tasks.bench.reports.sampling import Memory, Sampling
from solrl_tasks.bench.reports.update import UpdateReport


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


def sampling_of(engine: str, **changes: Any) -> Sampling:
    """What a rollout measured of one engine; named fields replace the usual."""
    fields = {
        "engine": engine,
        "kind": "real",
        "compute": engine,
        "execution": "compiled",
        "steps": 6,
        "chunk": 24,
        "first_seconds": 30.0,
        "one_seconds": 5.0,
        "chunks": 3,
        "chunks_seconds": 13.0,
        "denoise_seconds": (3.6,),
        "memory": None,
        **changes,
    }
    return Sampling.model_validate(fields)


def sampled(engine: str, steps: int, one: float, many: float, denoise: float) -> Sampling:
    """Seconds of one chunk, of three, and of denoising, by an engine that tells its memory."""
    memory = Memory(peak=60 * 2**30, engines={"bf16": 16 * 2**30, "fp8": 8 * 2**30})
    seconds = (denoise, denoise, denoise + 5.0)
    return sampling_of(
        engine, steps=steps, one_seconds=one, chunks_seconds=many, denoise_seconds=seconds, memory=memory
    )


def rollout_of(arms: Sequence[Arm], samplings: Mapping[str, Sampling], **changes: Any) -> RolloutReport:
    """A rollout of 96 candidates, 24 of them kept; named fields replace the usual."""
    fields = {
        "environment": environment(),
        "model": model_facts(),
        "candidates": 96,
        "keep": 24,
        "explore_steps": 6,
        "full_steps": 10,
        "chunk": 24,
        "sampler": "dpm2",
        "reward": "clipscore",
        "lora": "rank 32, paper",
        "text_seconds": 0.1,
        "decode_seconds": 0.8,
        "score_seconds": 0.2,
        "samplings": dict(samplings),
        "arms": tuple(arms),
        **changes,
    }
    return RolloutReport.model_validate(fields)


def whole_rollout() -> RolloutReport:
    """A rollout with all that a report can hold: memory, splits, an arm in two stages, one that failed."""
    split = Split(text=0.1, sync=0.1, denoise_explore=30.0, denoise_regenerate=8.0, decode=4.0, score=1.0, overlap=4.5)
    one, two = {"images": 96, "kept": 24}, {"images": 120, "kept": 24}
    arms = (
        Arm(name="eager-pipeline", **one, seconds=60.0),
        Arm(name="bf16-full", explored="bf16@10x24", **one, seconds=40.0, split=split),
        Arm(name="fp8-two-stage", explored="fp8@6x24", regenerated="bf16@10x24", **two, seconds=25.0, split=split),
        Arm(name="fp8-full", explored="fp8@10x24", **one, seconds=20.0),
        Arm(name="nvfp4-two-stage", error="Traceback …\nEngineError: engine 'nvfp4' cannot run"),
    )
    samplings = {
        "bf16@10x24": sampled("bf16", 10, 11.0, 31.0, 9.6),
        "fp8@6x24": sampled("fp8", 6, 5.0, 13.0, 3.6),
        "fp8@10x24": sampled("fp8", 10, 8.0, 22.0, 6.5),
    }
    return rollout_of(arms, samplings, sync_seconds={"bf16": 0.05, "fp8": 0.05})


def update_of(**changes: Any) -> UpdateReport:
    """An update of 48 rows; named fields replace the usual."""
    fields = {
        "environment": environment(),
        "model": model_facts(),
        "samples": 24,
        "rows": 48,
        "micro_batch": 8,
        "gradient_checkpointing": True,
        "lora": "rank 32, paper",
        "first_seconds": 30.0,
        "seconds": (24.0, 25.0, 23.0),
        "peak_bytes": 70 * 2**30,
        **changes,
    }
    return UpdateReport.model_validate(fields)
