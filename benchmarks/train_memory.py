"""One update of a full-size network: seconds a sample and peak memory, by family.

    python benchmarks/train_memory.py --out train-memory.json
    python benchmarks/train_memory.py --families flux --micro-batch 8 --no-checkpointing

Weights and latents are random, which changes nothing of what an update costs. Each family trains LoRA on ``--prompts``
x ``--samples`` latents for ``--updates`` updates after one that is not counted. A family that fails, for want of memory
for instance, is reported with its error and does not stop the others. ``--tiny`` takes networks so small that a CPU
trains them in seconds.
"""

import argparse
import json
import statistics
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import torch

from solrl_tasks.config.recipe import ModelSpec, UpdateSpec
from solrl_tasks.engines.base import hardware_name
from solrl_tasks.sampling.identity import initial_noise
from solrl_tasks.sampling.prompts import Prompt, PromptSet
from solrl_tasks.workers.device import Device
from solrl_tasks.workers.jobs import TrainJob
from solrl_tasks.workers.memory import give_back, listed
from solrl_tasks.workers.numerics import default_device, describe_numerics
from solrl_tasks.workers.state import PolicyState

FULL = {
    "flux": {"source": "random:flux.1-dev", "max_sequence_length": 512, "guidance": 3.5},
    "sd3": {"source": "random:sd3.5-large", "max_sequence_length": 256},
    "sana": {"source": "random:sana-1.6b", "max_sequence_length": 300},
}
TINY = {family: {"source": f"random:tiny-{family}", "resolution": 32} for family in FULL}


def model_of(family: str, arguments: argparse.Namespace) -> ModelSpec:
    """The model section of a family."""
    if arguments.tiny:
        return ModelSpec.model_validate({"family": family, **TINY[family]})
    return ModelSpec.model_validate({"family": family, "resolution": arguments.resolution, **FULL[family]})


def job_of(device: Device, arguments: argparse.Namespace, iteration: int) -> TrainJob:
    """Samples as a run's regeneration would leave them, but for their contents."""
    prompts = PromptSet(tuple(Prompt(f"picture {number}") for number in range(arguments.prompts)))
    rows = np.repeat(np.arange(arguments.prompts), arguments.samples).tolist()
    update = {
        "micro_batch": arguments.micro_batch,
        "gradient_checkpointing": not arguments.no_checkpointing,
        "times_per_sample": arguments.times,
        "lora": {"rank": arguments.rank, "alpha": 2 * arguments.rank, "targets": arguments.targets},
    }
    return TrainJob(
        x0=initial_noise(range(len(rows)), device.family.latent_shape),
        advantage=np.linspace(-1.0, 1.0, len(rows)),
        texts=tuple(prompts[row].text for row in rows),
        prompt_keys=tuple(prompts.keys[row] for row in rows),
        candidates=tuple(range(len(rows))),
        steps=10,
        update=UpdateSpec.model_validate(update),
        run_seed=0,
        iteration=iteration,
    )


def measure(family: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """What one family's updates took."""
    model, where = model_of(family, arguments), default_device()
    device = Device(model, where)
    lora = job_of(device, arguments, 1).update.lora
    started = time.perf_counter()
    policy: PolicyState = device.initial_policy(lora.rank, lora.alpha, lora.targets, lora.seed)
    print(
        f"{family}: loaded, {len(policy.current.paths)} layers adapted, {time.perf_counter() - started:.1f} s",
        flush=True,
    )
    policy, first = device.train(job_of(device, arguments, 1), policy)
    print(f"{family}: first update {first.seconds:.1f} s", flush=True)
    cuda = where.type == "cuda"
    if cuda:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(where)
    seconds = []
    for turn in range(arguments.updates):
        policy, result = device.train(job_of(device, arguments, turn + 2), policy)
        seconds.append(result.seconds)
        print(f"{family}: update {result.seconds:.2f} s, loss {result.metrics['train/loss']:.4f}", flush=True)
    rows = arguments.prompts * arguments.samples * arguments.times
    memory = device.memory()
    print(f"{family}: {listed(memory)}", flush=True)
    return {
        "model": model.model_dump(mode="json"),
        "adapted_layers": len(policy.current.paths),
        "adapter_weights": sum(weights.numel() for weights in policy.current.weights.values()),
        "rows": rows,
        "first_seconds": first.seconds,
        "seconds": seconds,
        "seconds_per_row": statistics.median(seconds) / rows,
        "peak_gib": torch.cuda.max_memory_allocated(where) / 2**30 if cuda else None,
        "reserved_gib": torch.cuda.max_memory_reserved(where) / 2**30 if cuda else None,
        "memory": memory,
        "numerics": describe_numerics(model, None, where),
        "metrics": result.metrics,
    }


def main() -> None:
    """Measure family after family, writing down each as it is done."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--families", nargs="+", choices=list(FULL), default=list(FULL))
    parser.add_argument("--resolution", type=int, default=512)
    parser.add_argument("--prompts", type=int, default=2)
    parser.add_argument("--samples", type=int, default=24, help="of a prompt")
    parser.add_argument("--times", type=int, default=1, help="noise levels of a sample")
    parser.add_argument("--micro-batch", type=int, default=8)
    parser.add_argument("--rank", type=int, default=32)
    parser.add_argument("--targets", default="paper")
    parser.add_argument("--updates", type=int, default=1)
    parser.add_argument("--no-checkpointing", action="store_true")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--out", type=Path, default=None)
    arguments = parser.parse_args()
    options = {name: value for name, value in vars(arguments).items() if name not in ("families", "out")}
    report: dict[str, Any] = {
        "hardware": hardware_name(default_device()),
        "torch": torch.__version__,
        "options": options,
        "families": {},
    }
    for family in arguments.families:
        try:
            report["families"][family] = measure(family, arguments)
        except Exception as error:
            report["families"][family] = {"error": f"{type(error).__name__}: {error}"}
            print(f"{family} failed: {error}\n{traceback.format_exc()}", flush=True)
        # The device of the family before must be gone before the next one is loaded.
        give_back()
        if arguments.out is not None:
            arguments.out.write_text(json.dumps(report, indent=1), encoding="utf-8")
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
