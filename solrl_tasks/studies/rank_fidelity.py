"""Rank fidelity: how far cheap proxies can be trusted, from pools that are mostly there already.

Proxies are engines x steps x samplers x resolutions; references are precise pools at one or more step counts. All
sample the same seeds of the same prompts with the same policy.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, Self

from pydantic import Field, JsonValue, ValidationError, model_validator

from solrl_tasks.config.base import Frozen
from solrl_tasks.config.extensions import build, find_extension
from solrl_tasks.config.load import describe
from solrl_tasks.config.recipe import ExtensionSpec, Positive, Recipe, SamplingSpec
from solrl_tasks.config.words import counted
from solrl_tasks.sampling.identity import exploration_seed
from solrl_tasks.stages.jobs import PoolJob
from solrl_tasks.stages.recorded import PolicyName, StudyError, find_policy, resolve_policy
from solrl_tasks.stages.resolutions import check_resolution, sampled_model
from solrl_tasks.stages.session import Session
from solrl_tasks.stages.specs import BASE, PolicyChoice
from solrl_tasks.store.keys import digest
from solrl_tasks.store.root import Store

COUNTS: Final = (4, 8, 12)
"""How many of the best and of the worst are matched, where nothing else is asked."""
REFERENCES: Final = (10, 40)
"""Step counts of the references, where nothing else is asked."""
StepCount = Annotated[int, Field(ge=1, le=200)]


class RankSettings(Frozen):
    """Everything that a study of ranks is asked besides the recipe; both together name the study.

    Attributes:
        engines, steps, samplers, resolutions: of the proxies; each is tried with every other. A resolution is the side
            in pixels.
        references: step counts of the references, which the recipe's regeneration samples.
        prompts: held-out prompts, from the first.
        counts: each k of top-k and bottom-k.
        policy_run, policy_step: run and iteration whose policy samples; None is the untrained model.
        level, resamples, seed: of the bootstrap over prompts.
    """

    engines: Annotated[tuple[ExtensionSpec, ...], Field(min_length=1)]
    steps: Annotated[tuple[StepCount, ...], Field(min_length=1)]
    samplers: Annotated[tuple[str, ...], Field(min_length=1)]
    resolutions: Annotated[tuple[int, ...], Field(min_length=1)]
    references: Annotated[tuple[StepCount, ...], Field(min_length=1)] = REFERENCES
    prompts: Positive = 4
    counts: Annotated[tuple[Positive, ...], Field(min_length=1)] = COUNTS
    policy_run: str | None = None
    policy_step: int | None = None
    level: Annotated[float, Field(gt=0, lt=1)] = 0.95
    resamples: Annotated[int, Field(ge=100, le=1_000_000)] = 4000
    seed: int = 0

    @model_validator(mode="after")
    def _each_once(self) -> Self:
        for name in ("engines", "steps", "samplers", "resolutions", "references", "counts"):
            values = list(getattr(self, name))
            if any(value in values[:at] for at, value in enumerate(values)):
                shown = [value.name if isinstance(value, ExtensionSpec) else value for value in values]
                raise ValueError(f"{name} is {shown}: name each once")
        return self

    def digest(self, recipe: Recipe) -> str:
        """What tells the study from others: the same settings of the same recipe are the same study."""
        return digest([recipe.model_dump(mode="json"), self.model_dump(mode="json")])[:8]


@dataclass(frozen=True)
class Proxy:
    """One cheap way of sampling.

    Attributes:
        label: distinct within a study.
        series: the label without the steps: proxies of one series make a curve.
        resolution: the side in pixels, also where it is the model's own.
    """

    label: str
    series: str
    engine: ExtensionSpec
    steps: int
    sampler: str
    resolution: int


@dataclass(frozen=True)
class RankStudy:
    """What to compare.

    Attributes:
        base: prompts, policy, seeds, candidates and rewards; its sampling is the recipe's exploration.
        reference: how references are sampled, but for their steps.
        keep: K of contrast, regret and true ranks.
        model_side: the model's resolution.
    """

    base: PoolJob
    settings: RankSettings
    reference: SamplingSpec
    keep: int
    model_side: int

    def proxies(self) -> list[Proxy]:
        """Every proxy, series by series, each in the order of its steps."""
        asked = self.settings
        names = engine_names(asked.engines)
        found = []
        for place, sampler, side in itertools.product(range(len(asked.engines)), asked.samplers, asked.resolutions):
            for steps in sorted(asked.steps):
                label = f"{names[place]}, {steps} steps, {sampler}, {side} px"
                series = f"{names[place]}, {sampler}, {side} px"
                found.append(Proxy(label, series, asked.engines[place], steps, sampler, side))
        return found

    def proxy_job(self, proxy: Proxy) -> PoolJob:
        """The pool of a proxy."""
        update = {
            "engine": proxy.engine,
            "steps": proxy.steps,
            "sampler": proxy.sampler,
            "resolution": None if proxy.resolution == self.model_side else proxy.resolution,
        }
        return replace(self.base, sampling=self.base.sampling.model_copy(update=update))

    def reference_job(self, steps: int) -> PoolJob:
        """The pool of a reference: whole groups, at the same seeds."""
        return precise_job(self.base, self.reference, steps)

    def jobs(self) -> dict[str, PoolJob]:
        """Every pool by a label, references first."""
        references = {self.reference_label(steps): self.reference_job(steps) for steps in self.settings.references}
        jobs = references | {proxy.label: self.proxy_job(proxy) for proxy in self.proxies()}
        return {label: replace(job, about=label) for label, job in jobs.items()}

    def reference_label(self, steps: int) -> str:
        """What a reference is called."""
        return f"reference: {self.reference.engine.name}, {steps} steps, {self.reference.sampler}"


def engine_names(engines: Sequence[ExtensionSpec]) -> list[str]:
    """A distinct name for each engine: its own, with its options where another has the same."""
    plain = [engine.name for engine in engines]
    return [
        name if plain.count(name) == 1 else f"{name} ({_shown(engine.options)})"
        for name, engine in zip(plain, engines, strict=True)
    ]


def settle_settings(recipe: Recipe, asked: Mapping[str, Any]) -> RankSettings:
    """Complete settings; what is None or left out has the value of the recipe.

    Args:
        asked: fields of ``RankSettings``; an engine is a name or an ``ExtensionSpec``. Of counts that are left out,
            those that are more than half of the candidates are dropped.

    Raises:
        StudyError: a value is not usable; the message names the field.
    """
    explore = recipe.explore
    given = {name: value for name, value in asked.items() if value is not None}
    given["engines"] = tuple(_engine(explore.engine, one) for one in given.get("engines", (explore.engine,)))
    given.setdefault("samplers", (explore.sampler,))
    given.setdefault("resolutions", (explore.resolution or recipe.model.resolution,))
    half = recipe.explore.candidates // 2
    given.setdefault("counts", tuple(count for count in COUNTS if count <= half) or (half,))
    try:
        settings = RankSettings.model_validate(given)
    except ValidationError as error:
        raise StudyError(describe(error)) from error
    if max(settings.counts) > explore.candidates:
        raise StudyError(
            f"counts are {list(settings.counts)}, but there are {counted(explore.candidates, 'candidate')} a prompt"
        )
    return settings


def name_policy(store: Store, settings: RankSettings) -> RankSettings:
    """The same settings with the iteration that the last one of a run is now: it may not be the last one tomorrow.

    Raises:
        StudyError: there is no such iteration, or one of no run is asked for.
        MissingObjectError: there is no such run.
    """
    found = resolve_policy(store, PolicyName(settings.policy_run, settings.policy_step, "old"))
    return settings.model_copy(update={"policy_step": found.step})


def make_study(session: Session, settings: RankSettings) -> RankStudy:
    """The study in a session, checked: nothing is computed and no weights are loaded.

    Raises:
        StudyError: there are fewer held-out prompts, there is no such policy, a resolution does not suit the model, or
            a sampler does not walk a grid of so few steps.
        EngineError: an engine cannot run here.
    """
    policy = find_policy(session, PolicyName(settings.policy_run, settings.policy_step, "old"))
    study = RankStudy(
        base=held_out_job(session, settings.prompts, policy),
        settings=settings,
        reference=session.recipe.regenerate,
        keep=session.recipe.select.keep,
        model_side=session.recipe.model.resolution,
    )
    for engine in settings.engines:
        session.worker.site.require_engine(engine.name)
    try:
        for job in study.jobs().values():
            _check(session, job.sampling)
    except (ValueError, LookupError) as error:
        raise StudyError(str(error)) from error
    return study


def held_out_job(session: Session, prompts: int, policy: PolicyChoice = BASE) -> PoolJob:
    """A pool of the first held-out prompts, explored as the recipe says; the untrained model by default.

    Raises:
        StudyError: there are fewer held-out prompts.
    """
    recipe, heldout = session.recipe, session.prepared.heldout
    if prompts > len(heldout):
        raise StudyError(f"prompts is {prompts}, but the held-out set has only {len(heldout)}")
    return PoolJob(
        step=0,
        stage="explore",
        prompts=heldout.subset(list(range(prompts))),
        policy=policy,
        exploration_seed=exploration_seed(recipe.seed, 0),
        sampling=recipe.explore,
        candidates=recipe.explore.candidates,
        rewards=recipe.rewards,
        reuse=recipe.explore.reuse,
    )


def precise_job(base: PoolJob, reference: SamplingSpec, steps: int) -> PoolJob:
    """Whole groups of the same seeds, sampled as what is trained on, in blocks of the exploration's size."""
    return replace(base, sampling=reference.model_copy(update={"steps": steps, "chunk": base.chunk}))


def _engine(configured: ExtensionSpec, asked: str | ExtensionSpec) -> ExtensionSpec:
    if isinstance(asked, ExtensionSpec):
        return asked
    # Options in the recipe belong to the engine in the recipe.
    return configured if asked == configured.name else ExtensionSpec(name=asked)


def _check(session: Session, sampling: SamplingSpec) -> None:
    model = session.recipe.model
    check_resolution(model, sampling, "resolutions")
    sampler = build("sampler", sampling.sampler, {})
    if hasattr(sampler, "check"):
        family = find_extension("family", model.family)
        sampler.check(family.grid_of(sampled_model(model, sampling), sampling.steps))


def _shown(options: Mapping[str, JsonValue]) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted(options.items())) or "no options"
