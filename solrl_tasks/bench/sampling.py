"""What chunks of an engine cost, from noise to scores."""

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Final

import numpy as np

from solrl_tasks.bench.arms import PIPELINE, PRECISE
from solrl_tasks.bench.pipeline import EagerPipeline
from solrl_tasks.bench.profile import profile
from solrl_tasks.bench.reports.sampling import Memory, Sampling
from solrl_tasks.bench.rollout_request import RolloutRequest
from solrl_tasks.bench.subject import PROMPTS, Subject
from solrl_tasks.models.lora import LoraState
from solrl_tasks.workers.jobs import RolloutJob, Work, WorkResult
from solrl_tasks.workers.rollout import Rollout

EXPLORATION_SEED: Final = 7
WARM_STEPS: Final = 2
"""Of the call that compiles: no step is unlike another."""
ENOUGH_SECONDS: Final = 12.0
"""Spent on repeats of one measurement, after which it is not repeated again."""


class SamplingBench:
    """Measures chunks sampled, decoded and scored by one engine at one number of steps, each case once.

    Attributes:
        found: by case, such as ``bf16@10x24``: engine, steps and images of a chunk.
        sync_seconds: of each engine that was brought to the LoRA, one sync that follows a first.
    """

    def __init__(self, request: RolloutRequest, subject: Subject, note: Callable[[str], None]) -> None:
        self.request, self.subject, self.note = request, subject, note
        self.found: dict[str, Sampling] = {}
        self.sync_seconds: dict[str, float] = {}
        self._device, self._clock = subject.device, subject.clock

    @cached_property
    def lora(self) -> LoraState:
        """The weights that engines hold."""
        return self.subject.lora(1)

    def measure(self, engine: str, steps: int, chunk: int) -> str:
        """Have a case measured, and return its name in ``found``."""
        key = f"{engine}@{steps}x{chunk}"
        if key not in self.found:
            self.note(f"  {key}")
            measure = self._measure_pipeline if engine == PIPELINE else self._measure_engine
            self.found[key] = measure(engine, steps, chunk)
        return key

    def add_profiles(self) -> None:
        """Profile every engine and chunk, when all is timed: what a profiler leaves behind slows down what follows."""
        done: set[tuple[str, int]] = set()
        for key, sampling in self.found.items():
            case = (sampling.engine, sampling.chunk)
            if sampling.engine == PIPELINE or case in done:
                continue
            done.add(case)
            self.note(f"profile of {sampling.engine}")
            self._swap(sampling.engine)
            call = self._denoiser(self.job(sampling.engine, min(sampling.steps, WARM_STEPS), sampling.chunk))
            found = profile(call, self._device.device)
            self.found[key] = sampling.model_copy(update={"profile": found})

    def job(self, engine: str, steps: int, chunk: int, lora: LoraState | None = None) -> RolloutJob:
        """A rollout of the first prompt; with the LoRA of all cases unless another is named."""
        return RolloutJob(
            engine=self.subject.engine_spec(engine),
            lora=lora or self.lora,
            sampler=self.request.sampler,
            steps=steps,
            prompts=PROMPTS,
            exploration_seed=EXPLORATION_SEED,
            rewards=(self.request.reward,),
            chunk=chunk,
            rows=(0,),
        )

    def roll(self, job: RolloutJob, blocks: Sequence[Work]) -> list[WorkResult]:
        """Do it, to the end."""
        return list(self._device.rollout(job, blocks))

    def score(self, images: np.ndarray) -> None:
        """Have images scored, uint8 [B, H, W, 3], as a rollout has them."""
        work = Work(None, 0, tuple(range(len(images))), (self.request.reward,), images=images)
        self.roll(self.job(PRECISE, 1, len(images)), [work])

    def _measure_engine(self, name: str, steps: int, chunk: int) -> Sampling:
        self._swap(name)
        job, timed = self.job(name, steps, chunk), self.request.timed
        short = self.job(name, min(steps, WARM_STEPS), chunk)
        first = self._clock.wall(partial(self.roll, short, works_of(short, 1)))[0]
        self._clock.reset_peak()
        one = self._clock.wall(partial(self.roll, job, works_of(job, 1)))[0]
        many = self._clock.wall(partial(self.roll, job, works_of(job, timed)))[0]
        memory = self._memory()
        alone = self._denoiser(job)
        record = self.subject.engine(name).record()
        return Sampling(
            engine=name,
            kind=record.kind,
            compute=record.compute,
            execution=record.execution,
            steps=steps,
            chunk=chunk,
            first_seconds=first,
            one_seconds=one,
            chunks=timed,
            chunks_seconds=many,
            denoise_seconds=self._spans(alone),
            memory=memory,
        )

    def _measure_pipeline(self, name: str, steps: int, chunk: int) -> Sampling:
        pipeline, timed = EagerPipeline(self._device.family, self.subject.conditioning), self.request.timed

        def chunks(count: int) -> None:
            for _ in range(count):
                self.score(pipeline.images(chunk, steps))

        first = self._clock.wall(partial(pipeline.images, chunk, min(steps, WARM_STEPS)))[0]
        self._clock.reset_peak()
        one = self._clock.wall(partial(chunks, 1))[0]
        many = self._clock.wall(partial(chunks, timed))[0]
        memory = self._memory()
        return Sampling(
            engine=name,
            kind="real",
            compute=str(self._device.family.compute_dtype).removeprefix("torch."),
            execution="eager",
            steps=steps,
            chunk=chunk,
            first_seconds=first,
            one_seconds=one,
            chunks=timed,
            chunks_seconds=many,
            denoise_seconds=self._spans(partial(pipeline.latents, chunk, steps)),
            memory=memory,
        )

    def _denoiser(self, job: RolloutJob) -> Callable[[], object]:
        """One chunk from noise to latents and nothing else, by the device's own stage; the noise is in place."""
        stages, (work,) = Rollout(self._device.resident, job), works_of(job, 1)
        noise = stages.draw(work)
        return partial(stages.sample, work, noise)

    def _spans(self, call: Callable[[], object]) -> tuple[float, ...]:
        """As often as was asked for, unless that takes too long for what it adds."""
        spans: list[float] = []
        while len(spans) < self.request.repeats and sum(spans) < ENOUGH_SECONDS:
            spans.append(self._clock.span(call))
        return tuple(spans)

    def _swap(self, engine: str) -> None:
        """Bring an engine to the arm's LoRA, timing the swap: the first sync, which fills every layer, goes before."""
        spec = self.subject.engine_spec(engine)
        if engine not in self.sync_seconds:
            self._device.sync(spec, None)
            self.sync_seconds[engine] = self._clock.wall(partial(self._device.sync, spec, self.lora))[0]
        else:
            self._device.sync(spec, self.lora)

    def _memory(self) -> Memory | None:
        found = self._clock.peak()
        if found is None:
            return None
        engines = {name: sum(self.subject.engine(name).memory().values()) for name in self.sync_seconds}
        return Memory(peak=found, engines=engines)


def works_of(job: RolloutJob, chunks: int, candidates: Sequence[int] | None = None) -> list[Work]:
    """Blocks of the first prompt; the last one is filled up, as in a run."""
    chosen = list(candidates) if candidates is not None else list(range(chunks * job.chunk))
    blocks = [tuple(chosen[start : start + job.chunk]) for start in range(0, len(chosen), job.chunk)]
    return [Work(position, 0, block, job.rewards) for position, block in enumerate(blocks)]
