"""Reports of measurements, made by hand."""

from collections.abc import Mapping, Sequence

from solrl_tasks.bench.flops import ModelFlops
from solrl_tasks.bench.report import Arm, Environment, ModelFacts, RolloutReport, Sampling


def environment(hardware: str = "NVIDIA H200") -> Environment:
    return Environment(
        hardware=hardware,
        device_class="sm_90",
        driver="580.1",
        threads=4,
        libraries={"torch": "2.11.0"},
        command="solrl bench rollout --json x.json",
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


def sampling_of(engine: str, kind: str = "real") -> Sampling:
    return Sampling.model_validate(
        {
            "engine": engine,
            "kind": kind,
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
        }
    )


def rollout_of(arms: Sequence[Arm], samplings: Mapping[str, Sampling]) -> RolloutReport:
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
        samplings=dict(samplings),
        arms=tuple(arms),
    )
