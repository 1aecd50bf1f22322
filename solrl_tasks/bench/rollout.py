"""What a prompt's rollout costs, by every way of making it."""

import statistics
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial

import numpy as np
import torch

from solrl_tasks.bench.arms import PIPELINE, PRECISE, Plan, parse_arm
from solrl_tasks.bench.environment import describe_environment
from solrl_tasks.bench.pipeline import EagerPipeline
from solrl_tasks.bench.reports.facts import ModelFacts
from solrl_tasks.bench.reports.rollout import Arm, Complete, RolloutReport, Split
from solrl_tasks.bench.reports.sampling import Sampling
from solrl_tasks.bench.rollout_request import RolloutRequest
from solrl_tasks.bench.sampling import SamplingBench, works_of
from solrl_tasks.bench.subject import Subject
from solrl_tasks.config.extensions import build
from solrl_tasks.models.lora import LoraState
from solrl_tasks.sampling.identity import initial_noise
from solrl_tasks.workers.jobs import RolloutJob, WorkResult
from solrl_tasks.workers.memory import give_back


class RolloutBench:
    """Measures one arm after the other in one process; what two arms share is measured once."""

    def __init__(self, request: RolloutRequest, device: torch.device, note: Callable[[str], None]) -> None:
        self.request = request
        self.subject = Subject(request.model, device, request.lora, request.options)
        self.note = note
        self._environment = describe_environment(device)
        self._device = self.subject.device
        self._clock = self.subject.clock
        self._samplings = SamplingBench(request, self.subject, note)

    def run(self) -> Iterator[RolloutReport]:
        """The report so far, after every arm: what a command that is stopped has measured is not lost."""
        arms: list[Arm] = []
        self._prepare()
        for plan in map(parse_arm, self.request.arms):
            self.note(f"{plan.name} …")
            arms.append(self._attempt(plan))
            yield self._report(arms)
        if self.request.profile:
            self._samplings.add_profiles()
            yield self._report(arms)

    # What arms share

    def _prepare(self) -> None:
        model = self.request.model
        self.note(f"{model.source}: loading, encoding, counting …")
        self.note(f"  text {self.text_seconds:.3f} s a prompt")
        flops = self.facts.flops
        self.note(f"  {flops.parameters / 1e9:.2f} B weights, {flops.total / 1e12:.3f} TFLOP an image and step")
        self.note(f"  decode {self.decode_seconds:.3f} s and score {self.score_seconds:.3f} s a chunk")

    @cached_property
    def text_seconds(self) -> float:
        """One prompt's encoding."""
        return self.subject.time_text(self.request.repeats)

    @cached_property
    def facts(self) -> ModelFacts:
        """The model, its operations counted."""
        return self.subject.facts()

    @cached_property
    def _latents(self) -> torch.Tensor:
        shape = self._device.family.latent_shape
        return initial_noise(range(self.request.chunk), shape)

    @cached_property
    def decode_seconds(self) -> float:
        """One chunk's decoding."""
        latents = self._latents.to(self._device.device)
        return self._repeated(lambda: self._device.decode(latents))

    @cached_property
    def score_seconds(self) -> float:
        """One chunk's scoring."""
        images, _ = self._device.decode(self._latents)
        return self._repeated(lambda: self._samplings.score(images))

    def _repeated(self, call: Callable[[], object]) -> float:
        call()
        return statistics.median([self._clock.wall(call)[0] for _ in range(self.request.repeats)])

    # Arms

    def _attempt(self, plan: Plan) -> Arm:
        try:
            return self._arm(plan)
        except Exception as error:  # one arm that fails must not take the others with it
            told = traceback.format_exc()
            self.note(f"{plan.name} failed: {type(error).__name__}: {error}\n{told}")
        # Only here, outside the handler, has the error let go of the tensors in its frames.
        give_back()
        return Arm(name=plan.name, error=told)

    def _arm(self, plan: Plan) -> Arm:
        request = self.request
        steps = request.explore_steps if plan.two_stage else request.full_steps
        first = self._samplings.measure(plan.engine, steps, request.chunk)
        second = self._samplings.measure(PRECISE, request.full_steps, request.keep_chunk) if plan.two_stage else ""
        parts = [(self._samplings.found[first], _count(request.candidates, request.chunk))]
        if second:
            parts.append((self._samplings.found[second], _count(request.keep, request.keep_chunk)))
        engines = {sampling.engine for sampling, _ in parts} - {PIPELINE}
        sync = sum(self._samplings.sync_seconds[engine] for engine in engines)
        seconds = sum(sampling.seconds_of(chunks) for sampling, chunks in parts)
        scaled = seconds + sync
        return Arm(
            name=plan.name,
            explored=first,
            regenerated=second,
            images=request.candidates + (request.keep if second else 0),
            kept=request.keep,
            seconds=self.text_seconds + scaled,
            split=self._split(parts, sync, seconds),
            complete=self._complete(plan, scaled) if plan.name in request.complete else None,
        )

    def _split(self, parts: Sequence[tuple[Sampling, int]], sync: float, seconds: float) -> Split:
        denoise = [chunks * sampling.denoise for sampling, chunks in parts]
        images = sum(chunks * sampling.chunk for sampling, chunks in parts)
        score = self.score_seconds * images / self.request.chunk
        decode = self.decode_seconds * images / self.request.chunk
        if parts[0][0].engine == PIPELINE:
            # Its own decoding ends in PIL images; nothing runs beside anything.
            decode = max(seconds - sum(denoise) - score, 0.0)
        return Split(
            text=self.text_seconds,
            sync=sync,
            denoise_explore=denoise[0],
            denoise_regenerate=sum(denoise[1:]),
            decode=decode,
            score=score,
            overlap=sum(denoise) + decode + score - seconds,
        )

    def _complete(self, plan: Plan, scaled: float) -> Complete:
        """One prompt's whole rollout with new weights, selection included."""
        self.note("  complete")
        _ = self._other_lora, self.subject.conditioning
        run = self._complete_pipeline if plan.engine == PIPELINE else partial(self._complete_rollout, plan)
        return Complete(seconds=self._clock.wall(run)[0], scaled_seconds=scaled)

    def _complete_pipeline(self) -> None:
        pipeline = EagerPipeline(self._device.family, self.subject.conditioning)
        for _ in range(_count(self.request.candidates, self.request.chunk)):
            self._samplings.score(pipeline.images(self.request.chunk, self.request.full_steps))

    @cached_property
    def _other_lora(self) -> LoraState:
        return self.subject.lora(2)

    def _complete_rollout(self, plan: Plan) -> None:
        request = self.request
        steps = request.explore_steps if plan.two_stage else request.full_steps
        job = self._samplings.job(plan.engine, steps, request.chunk, self._other_lora)
        self._device.sync(job.engine, job.lora)
        results = self._samplings.roll(job, works_of(job, _count(request.candidates, request.chunk)))
        if plan.two_stage:
            kept = self._select(job, results)
            precise = self._samplings.job(PRECISE, request.full_steps, request.keep_chunk, self._other_lora)
            self._device.sync(precise.engine, precise.lora)
            self._samplings.roll(precise, works_of(precise, _count(request.keep, request.keep_chunk), kept))

    def _select(self, job: RolloutJob, results: Sequence[WorkResult]) -> list[int]:
        scores = np.full(self.request.candidates, np.nan)
        for result in results:
            (values,) = result.rewards.values()
            for candidate, value in zip(result.work.candidates, values, strict=True):
                if candidate < len(scores):
                    scores[candidate] = value
        seeds = np.array(job.seeds(0, range(len(scores))), dtype=np.uint64)
        rule = build("selection rule", "best_worst", {})
        return [int(index) for index in rule.select(scores, self.request.keep, seeds)]

    def _report(self, arms: Sequence[Arm]) -> RolloutReport:
        request = self.request
        return RolloutReport(
            environment=self._environment,
            model=self.facts,
            candidates=request.candidates,
            keep=request.keep,
            explore_steps=request.explore_steps,
            full_steps=request.full_steps,
            chunk=request.chunk,
            sampler=request.sampler,
            reward=request.reward.name,
            lora=self.subject.lora_name,
            text_seconds=self.text_seconds,
            decode_seconds=self.decode_seconds,
            score_seconds=self.score_seconds,
            sync_seconds=dict(self._samplings.sync_seconds),
            samplings=dict(self._samplings.found),
            arms=tuple(arms),
        )


def _count(images: int, chunk: int) -> int:
    return -(-images // chunk)
