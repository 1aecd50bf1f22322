"""What one optimizer step of the policy costs."""

from collections.abc import Callable

import numpy as np
import torch

from solrl_tasks.bench.environment import describe_environment
from solrl_tasks.bench.reports.update import UpdateReport
from solrl_tasks.bench.subject import PROMPTS, Subject
from solrl_tasks.config.recipe import UpdateSpec
from solrl_tasks.sampling.identity import initial_noise, stream
from solrl_tasks.workers.jobs import TrainJob


def bench_update(
    subject: Subject, update: UpdateSpec, samples: int, steps: int, repeats: int, note: Callable[[str], None]
) -> UpdateReport:
    """Train on random latents, each update from the policy that the one before left.

    Args:
        samples: kept samples of an iteration.
        steps: of the sampler that would have made them; its noise levels are those that are trained on.
        repeats: updates after the first, which is not counted.
    """
    environment = describe_environment(subject.device.device)
    device, clock = subject.device, subject.clock
    facts = subject.facts()
    lora = update.lora
    policy = device.initial_policy(lora.rank, lora.alpha, lora.targets, lora.seed)
    seconds: list[float] = []
    for turn in range(repeats + 1):
        note(f"update {turn} of {repeats}" + (", not counted" if turn == 0 else ""))
        if turn == 1:
            clock.reset_peak()  # encoding prompts is not part of it
        job = _job(subject, update, samples, steps, turn)
        policy, result = device.train(job, policy)
        seconds.append(result.seconds)
    return UpdateReport(
        environment=environment,
        model=facts,
        samples=samples,
        rows=samples * update.times_per_sample * update.optimizer_steps,
        micro_batch=update.micro_batch,
        gradient_checkpointing=update.gradient_checkpointing,
        lora=subject.lora_name,
        first_seconds=seconds[0],
        seconds=tuple(seconds[1:]),
        peak_bytes=clock.peak(),
        memory=device.memory(),
    )


def _job(subject: Subject, update: UpdateSpec, samples: int, steps: int, turn: int) -> TrainJob:
    rows = [sample % len(PROMPTS) for sample in range(samples)]
    x0: torch.Tensor = initial_noise(range(samples), subject.device.family.latent_shape)
    advantage = stream("bench-advantage", turn).standard_normal(samples)
    return TrainJob(
        x0=x0,
        advantage=np.asarray(advantage, dtype=np.float64),
        texts=tuple(PROMPTS[row].text for row in rows),
        prompt_keys=tuple(PROMPTS.keys[row] for row in rows),
        candidates=tuple(range(samples)),
        steps=steps,
        update=update,
        run_seed=0,
        iteration=turn + 1,
    )
