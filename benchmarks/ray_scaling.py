"""Explore, regenerate and update by one Ray actor and by several: seconds of each, and their ratio.

    python benchmarks/ray_scaling.py --family flux --actors 1 2 --out ray-scaling.json
    python benchmarks/ray_scaling.py --tiny --actors 1 2

Weights and the policy are random, which changes nothing of what work costs. Each number of actors is hired for itself,
does ``--warm`` short rounds of two chunks for each actor that are not counted (they load, compile and meet), and then
``--rounds`` that are. A round is a sync of the explore engine, the exploration of ``--prompts`` x ``--candidates``, the
regeneration of ``--keep`` of each, and one update on those. Prompts are new in the first counted round: text encoders
stay on the device by default, for moving them would be most of an exploration as short as this. ``--tiny`` takes a
network so small that a CPU does it in seconds: it shows that the benchmark runs, and nothing about scaling.
"""

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from solrl_tasks.config.recipe import ExtensionSpec, ModelSpec, RewardSpec, UpdateSpec, WorkersSpec
from solrl_tasks.sampling.identity import initial_noise
from solrl_tasks.sampling.prompts import Prompt, PromptSet
from solrl_tasks.workers.jobs import RolloutJob, TrainJob, Work
from solrl_tasks.workers.ray_worker import RayWorker, hired
from solrl_tasks.workers.state import PolicyState

FULL: dict[str, dict[str, Any]] = {
    "flux": {"source": "random:flux.1-dev", "max_sequence_length": 512, "guidance": 3.5},
    "sd3": {"source": "random:sd3.5-large", "max_sequence_length": 256, "shift": 3.0},
    "sana": {"source": "random:sana-1.6b", "max_sequence_length": 300},
}
STAGES = ("sync", "explore", "regenerate", "update")
REWARDS = (RewardSpec(name="colourfulness"),)


def model_of(arguments: argparse.Namespace) -> ModelSpec:
    """The model section of the family."""
    if arguments.tiny:
        fields = {**FULL[arguments.family], "source": f"random:tiny-{arguments.family}", "max_sequence_length": 32}
    else:
        fields = FULL[arguments.family]
    side = 32 if arguments.tiny else arguments.resolution
    return ModelSpec(family=arguments.family, resolution=side, text_encoders=arguments.text_encoders, **fields)


def prompts_of(arguments: argparse.Namespace) -> PromptSet:
    """As many different ones as asked for."""
    return PromptSet(tuple(Prompt(f"picture {number}") for number in range(arguments.prompts)))


def rollout_job(arguments: argparse.Namespace, engine: str, steps: int, policy: PolicyState, seed: int) -> RolloutJob:
    """Sampling with the old policy."""
    return RolloutJob(
        engine=ExtensionSpec(name=engine),
        lora=policy.old,
        sampler="dpm2",
        steps=steps,
        prompts=prompts_of(arguments),
        exploration_seed=seed,
        rewards=REWARDS,
        chunk=arguments.chunk,
    )


def blocks(arguments: argparse.Namespace, candidates: int) -> Iterator[Work]:
    """Every candidate of every prompt, a chunk at a time."""
    for row in range(arguments.prompts):
        for start in range(0, candidates, arguments.chunk):
            yield Work((row, start), row, tuple(range(start, min(start + arguments.chunk, candidates))), REWARDS)


def train_job(arguments: argparse.Namespace, shape: tuple[int, ...], iteration: int) -> TrainJob:
    """Samples as a regeneration leaves them, but for their contents."""
    prompts = prompts_of(arguments)
    rows = np.repeat(np.arange(arguments.prompts), arguments.keep).tolist()
    update = {"micro_batch": arguments.micro_batch, "gradient_checkpointing": arguments.checkpointing}
    return TrainJob(
        x0=initial_noise(range(len(rows)), shape),
        advantage=np.linspace(-1.0, 1.0, len(rows)),
        texts=tuple(prompts[row].text for row in rows),
        prompt_keys=tuple(prompts.keys[row] for row in rows),
        candidates=tuple(range(len(rows))),
        steps=arguments.steps,
        update=UpdateSpec.model_validate(update),
        run_seed=0,
        iteration=iteration,
    )


def sampled(worker: RayWorker, job: RolloutJob, works: Iterator[Work]) -> tuple[int, ...]:
    """Do all blocks, and say what each actor had of them: their number and the seconds in which it was busy with them.

    Returns:
        The shape of latents.
    """
    began = time.perf_counter()
    shape: tuple[int, ...] = ()
    share: dict[str, list[float]] = {}
    first = last = 0.0
    for result in worker.rollout(job, works):
        assert result.latents is not None
        last = time.perf_counter() - began
        first = first or last
        shape = tuple(result.latents.shape[1:])
        share.setdefault(result.actor, []).append(result.seconds)
    told = ", ".join(f"{name} {len(spent)} in {sum(spent):.2f} s" for name, spent in sorted(share.items()))
    print(f"    blocks: {told}; the first after {first:.2f} s, the last after {last:.2f} s", flush=True)
    return shape


def round_of(
    worker: RayWorker, arguments: argparse.Namespace, policy: PolicyState, number: int
) -> tuple[PolicyState, dict[str, float]]:
    """One round: the next policy, so that every sync has something to do, and the seconds of each stage."""
    seconds, at = {}, time.perf_counter()

    def lap(stage: str) -> None:
        nonlocal at
        now = time.perf_counter()
        seconds[stage], at = now - at, now
        print(f"  {stage}: {seconds[stage]:.2f} s", flush=True)

    explore = rollout_job(arguments, arguments.engine, arguments.explore_steps, policy, number)
    worker.sync(explore.engine, explore.lora)
    lap("sync")
    sampled(worker, explore, blocks(arguments, arguments.candidates))
    lap("explore")
    precise = rollout_job(arguments, "bf16", arguments.steps, policy, number)
    shape = sampled(worker, precise, blocks(arguments, arguments.keep))
    lap("regenerate")
    job = train_job(arguments, shape, number + 1)
    at = time.perf_counter()
    policy, trained = worker.train(job, policy)
    lap("update")
    print(f"    of which the devices: {trained.actors or trained.seconds}", flush=True)
    return policy, seconds


def short(arguments: argparse.Namespace) -> argparse.Namespace:
    """The work of a round that is not counted, in the shapes of the counted ones.

    No actor goes without, and it is the same work for every number of actors, so that their policies can be compared.
    """
    count = 2 * max(arguments.actors) * arguments.chunk
    return argparse.Namespace(**{**vars(arguments), "prompts": 1, "candidates": count, "keep": count})


def measure(arguments: argparse.Namespace, actors: int) -> dict[str, Any]:
    """Seconds by stage of every counted round, by so many actors."""
    spec = WorkersSpec(kind="ray", actors=actors, cpus=arguments.cpus, address=arguments.address)
    began = time.perf_counter()
    with hired(spec, model_of(arguments), None, print) as worker:
        print(f"{actors} actors: there after {time.perf_counter() - began:.1f} s", flush=True)
        policy, rounds = worker.initial_policy(32, 64.0, "all", 0), []
        print(f"  first policy: after {time.perf_counter() - began:.1f} s", flush=True)
        for number in range(arguments.warm + arguments.rounds):
            warm = number < arguments.warm
            policy, seconds = round_of(worker, short(arguments) if warm else arguments, policy, number)
            print(f"{actors} actors, round {number}: {seconds}", flush=True)
            if not warm:
                rounds.append(seconds)
        return {
            "actors": actors,
            "hardware": worker.site.hardware,
            "environment": worker.site.environment(),
            "rounds": rounds,
            "median": {stage: statistics.median(one[stage] for one in rounds) for stage in STAGES},
            "policy": policy.current.digest,
            "memory": worker.memory(),
        }


def report_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """All numbers of actors, the first of which the others are compared with."""
    found = [measure(arguments, actors) for actors in arguments.actors]
    first = found[0]["median"]
    for one in found:
        one["ratio"] = {stage: first[stage] / one["median"][stage] for stage in STAGES}
    asked = {name: value for name, value in vars(arguments).items() if name != "out"}
    same = len({one["policy"] for one in found}) == 1
    return {"asked": asked, "found": found, "policies_equal": same}


def table(report: dict[str, Any]) -> str:
    """Markdown: seconds, and how many times faster than the first."""
    lines = [f"| actors | {' | '.join(STAGES)} |", f"| --- |{' --- |' * len(STAGES)}"]
    for one in report["found"]:
        cells = [f"{one['median'][stage]:.2f} s ({one['ratio'][stage]:.2f} x)" for stage in STAGES]
        lines.append(f"| {one['actors']} | {' | '.join(cells)} |")
    same = "the same" if report["policies_equal"] else "NOT the same"
    return "\n".join([*lines, "", f"Policies after all rounds are {same} bit for bit."])


def parse() -> argparse.Namespace:
    """Options; the split of a rollout is that of the recipes by default."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--family", choices=sorted(FULL), default="flux")
    parser.add_argument("--resolution", type=int, default=512)
    parser.add_argument("--actors", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--cpus", type=float, default=1.0, help="set aside for each actor")
    parser.add_argument("--address", default=None, help="of a cluster; one is started by default")
    parser.add_argument("--engine", default="fp8", help="that explores")
    parser.add_argument("--prompts", type=int, default=8)
    parser.add_argument("--candidates", type=int, default=96)
    parser.add_argument("--keep", type=int, default=24)
    parser.add_argument("--explore-steps", type=int, default=6)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--chunk", type=int, default=24)
    parser.add_argument("--micro-batch", type=int, default=8)
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--warm", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--text-encoders", choices=("keep", "offload", "release"), default="keep")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--out", type=Path, default=None)
    return parser.parse_args()


def main() -> None:
    """Measure, print the table, keep the report."""
    arguments = parse()
    report = report_of(arguments)
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(report, indent=1), encoding="utf-8")
    print(table(report))


if __name__ == "__main__":
    main()
