"""What a prompt's rollout costs, by every way of making it."""

import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from typing import Annotated, Final

import numpy as np
import torch
from pydantic import Field, JsonValue, model_validator

from solrl_tasks.bench.arms import DEFAULT_ARMS, PIPELINE, PRECISE, Plan, parse_arm
from solrl_tasks.bench.clock import median
from solrl_tasks.bench.environment import describe_environment
from solrl_tasks.bench.pipeline import EagerPipeline
from solrl_tasks.bench.profile import profile
from solrl_tasks.bench.report import Arm, Complete, Memory, ModelFacts, RolloutReport, Sampling, Split
from solrl_tasks.bench.subject import PROMPTS, Subject
from solrl_tasks.config.base import Frozen
from solrl_tasks.config.extensions import build
from solrl_tasks.config.recipe import LoraSpec, ModelSpec, RewardSpec
from solrl_tasks.engines.base import require_engine
from solrl_tasks.models.lora import LoraState
from solrl_tasks.sampling.identity import initial_noise
from solrl_tasks.workers.jobs import RolloutJob, Work, WorkResult
from solrl_tasks.workers.memory import give_back
from solrl_tasks.workers.rollout import Rollout

EXPLORATION_SEED: Final = 7
WARM_STEPS: Final = 2
"""Of the call that compiles: no step is unlike another."""
ENOUGH_SECONDS: Final = 12.0
"""Spent on repeats of one measurement, after which it is not repeated again."""
Count = Annotated[int, Field(ge=1)]


class RolloutRequest(Frozen):
    """What to measure.

    Attributes:
        chunk: images computed together; ``keep_chunk`` of them where the kept are sampled again.
        timed: chunks timed together, at least two more than none so that a rate can be told from a tail.
        repeats: of whatever is timed alone.
        options: of engines, by name.
        complete: arms of which one whole rollout is run besides.
        profile: say where the network's time goes.
    """

    model: ModelSpec
    arms: Annotated[tuple[str, ...], Field(min_length=1)] = DEFAULT_ARMS
    candidates: Count = 96
    keep: Count = 24
    explore_steps: Count = 6
    full_steps: Count = 10
    chunk: Count = 24
    keep_chunk: Count = 24
    timed: Annotated[int, Field(ge=2)] = 3
    repeats: Count = 3
    sampler: str = "dpm2"
    reward: RewardSpec
    lora: LoraSpec = LoraSpec(targets="attention")
    options: dict[str, dict[str, JsonValue]] = Field(default_factory=dict)
    complete: tuple[str, ...] = ()
    profile: bool = False

    @model_validator(mode="after")
    def _arms_are_known(self) -> "RolloutRequest":
        for name in self.arms:
            parse_arm(name)
        strange = [name for name in self.complete if name not in self.arms]
        if strange:
            raise ValueError(
                f"{', '.join(strange)} cannot be run completely, being none of the arms: {', '.join(self.arms)}"
            )
        return self


def require_engines(arms: Sequence[str], device: torch.device) -> None:
    """Refuse arms that the device cannot run before anything is loaded.

    Raises:
        EngineError: an engine is not for this device; the message names those that are.
        UnknownExtensionError: there is no such engine.
    """
    for plan in map(parse_arm, arms):
        if plan.engine != PIPELINE:
            require_engine(plan.engine, device)


class RolloutBench:
    """Measures one arm after the other in one process; what two arms share is measured once."""

    def __init__(self, request: RolloutRequest, device: torch.device, note: Callable[[str], None]) -> None:
        self.request = request
        self.subject = Subject(request.model, device, request.lora, request.options)
        self.note = note
        self._environment = describe_environment(device)
        self._device = self.subject.device
        self._clock = self.subject.clock
        self._samplings: dict[str, Sampling] = {}
        self._sync: dict[str, float] = {}

    def run(self) -> Iterator[RolloutReport]:
        """The report so far, after every arm: what a command that is stopped has measured is not lost."""
        arms: list[Arm] = []
        self._prepare()
        for plan in map(parse_arm, self.request.arms):
            self.note(f"{plan.name} …")
            arms.append(self._attempt(plan))
            yield self._report(arms)
        if self.request.profile:
            self._add_profiles()
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
    def _lora(self) -> LoraState:
        return self.subject.lora(1)

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
        work = Work(None, 0, tuple(range(len(images))), (self.request.reward,), images=images)
        return self._repeated(lambda: self._roll(self._job(PRECISE, 1, self.request.chunk), [work]))

    def _repeated(self, call: Callable[[], object]) -> float:
        call()
        return median([self._clock.wall(call)[0] for _ in range(self.request.repeats)])

    # One stage

    def _sampling(self, engine: str, steps: int, chunk: int) -> str:
        key = f"{engine}@{steps}x{chunk}"
        if key not in self._samplings:
            self.note(f"  {key}")
            measure = self._measure_pipeline if engine == PIPELINE else self._measure_engine
            self._samplings[key] = measure(engine, steps, chunk)
        return key

    def _measure_engine(self, name: str, steps: int, chunk: int) -> Sampling:
        self._swap(name)
        job, timed = self._job(name, steps, chunk), self.request.timed
        short = self._job(name, min(steps, WARM_STEPS), chunk)
        first = self._clock.wall(partial(self._roll, short, _works(short, 1)))[0]
        self._clock.reset_peak()
        one = self._clock.wall(partial(self._roll, job, _works(job, 1)))[0]
        many = self._clock.wall(partial(self._roll, job, _works(job, timed)))[0]
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
                self._score(pipeline.images(chunk, steps))

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
        stages, (work,) = Rollout(self._device.resident, job), _works(job, 1)
        noise = stages.draw(work)
        return partial(stages.sample, work, noise)

    def _spans(self, call: Callable[[], object]) -> tuple[float, ...]:
        """As often as was asked for, unless that takes too long for what it adds."""
        spans: list[float] = []
        while len(spans) < self.request.repeats and sum(spans) < ENOUGH_SECONDS:
            spans.append(self._clock.span(call))
        return tuple(spans)

    def _add_profiles(self) -> None:
        """One for every engine and chunk, when all is timed: what a profiler leaves behind slows down what follows."""
        done: set[tuple[str, int]] = set()
        for key, sampling in self._samplings.items():
            case = (sampling.engine, sampling.chunk)
            if sampling.engine == PIPELINE or case in done:
                continue
            done.add(case)
            self.note(f"profile of {sampling.engine}")
            self._swap(sampling.engine)
            call = self._denoiser(self._job(sampling.engine, min(sampling.steps, WARM_STEPS), sampling.chunk))
            found = profile(call, self._device.device)
            self._samplings[key] = sampling.model_copy(update={"profile": found})

    def _swap(self, engine: str) -> None:
        """Bring an engine to the arm's LoRA, timing the swap: the first sync, which fills every layer, goes before."""
        spec = self.subject.engine_spec(engine)
        if engine not in self._sync:
            self._device.sync(spec, None)
            self._sync[engine] = self._clock.wall(partial(self._device.sync, spec, self._lora))[0]
        else:
            self._device.sync(spec, self._lora)

    def _memory(self) -> Memory | None:
        found = self._clock.peak()
        if found is None:
            return None
        engines = {name: sum(self.subject.engine(name).memory().values()) for name in self._sync}
        return Memory(peak=found, engines=engines)

    def _job(self, engine: str, steps: int, chunk: int, lora: LoraState | None = None) -> RolloutJob:
        return RolloutJob(
            engine=self.subject.engine_spec(engine),
            lora=lora or self._lora,
            sampler=self.request.sampler,
            steps=steps,
            prompts=PROMPTS,
            exploration_seed=EXPLORATION_SEED,
            rewards=(self.request.reward,),
            chunk=chunk,
            rows=(0,),
        )

    def _roll(self, job: RolloutJob, blocks: Sequence[Work]) -> list[WorkResult]:
        return list(self._device.rollout(job, blocks))

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
        first = self._sampling(plan.engine, steps, request.chunk)
        second = self._sampling(PRECISE, request.full_steps, request.keep_chunk) if plan.two_stage else ""
        parts = [(self._samplings[first], _count(request.candidates, request.chunk))]
        if second:
            parts.append((self._samplings[second], _count(request.keep, request.keep_chunk)))
        engines = {sampling.engine for sampling, _ in parts} - {PIPELINE}
        sync = sum(self._sync[engine] for engine in engines)
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
            self._score(pipeline.images(self.request.chunk, self.request.full_steps))

    @cached_property
    def _other_lora(self) -> LoraState:
        return self.subject.lora(2)

    def _complete_rollout(self, plan: Plan) -> None:
        request = self.request
        steps = request.explore_steps if plan.two_stage else request.full_steps
        job = self._job(plan.engine, steps, request.chunk, self._other_lora)
        self._device.sync(job.engine, job.lora)
        results = self._roll(job, _works(job, _count(request.candidates, request.chunk)))
        if plan.two_stage:
            kept = self._select(job, results)
            precise = self._job(PRECISE, request.full_steps, request.keep_chunk, self._other_lora)
            self._device.sync(precise.engine, precise.lora)
            self._roll(precise, _works(precise, _count(request.keep, request.keep_chunk), kept))

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

    def _score(self, images: np.ndarray) -> None:
        work = Work(None, 0, tuple(range(len(images))), (self.request.reward,), images=images)
        self._roll(self._job(PRECISE, 1, len(images)), [work])

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
            sync_seconds=dict(self._sync),
            samplings=dict(self._samplings),
            arms=tuple(arms),
        )


def _count(images: int, chunk: int) -> int:
    return -(-images // chunk)


def _works(job: RolloutJob, chunks: int, candidates: Sequence[int] | None = None) -> list[Work]:
    """Blocks of the first prompt; the last one is filled up, as in a run."""
    chosen = list(candidates) if candidates is not None else list(range(chunks * job.chunk))
    blocks = [tuple(chosen[start : start + job.chunk]) for start in range(0, len(chosen), job.chunk)]
    return [Work(position, 0, block, job.rewards) for position, block in enumerate(blocks)]
