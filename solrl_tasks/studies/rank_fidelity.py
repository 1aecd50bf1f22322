"""Rank fidelity: how far a cheap proxy can be trusted, from pools that are mostly there already."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from solrl_tasks.analysis.estimates import Estimate
from solrl_tasks.analysis.ranks import whole_groups
from solrl_tasks.config.base import Frozen
from solrl_tasks.config.recipe import ExtensionSpec, SamplingSpec
from solrl_tasks.sampling.identity import exploration_seed
from solrl_tasks.stages.explore import explore
from solrl_tasks.stages.iteration import Call, direct
from solrl_tasks.stages.jobs import PoolJob
from solrl_tasks.stages.recorded import StudyError
from solrl_tasks.stages.scores import proxy_scores
from solrl_tasks.stages.session import Session
from solrl_tasks.stages.specs import BASE, PolicyChoice
from solrl_tasks.store.refs import Ref


class ProxyRanks(Frozen):
    """One proxy against the reference: estimates over prompts.

    Attributes:
        metrics: as in ``analysis.ranks.whole_groups``.
        computed: blocks that were sampled for it now; 0 means that it was cached.
    """

    engine: str
    steps: int
    metrics: dict[str, Estimate]
    pool: Ref
    computed: int


class RankFidelity(Frozen):
    """A study's result: every proxy against one reference, on the same prompts and seeds."""

    reference_engine: str
    reference_steps: int
    prompts: int
    candidates: int
    keep: int
    reference: Ref
    proxies: tuple[ProxyRanks, ...]


@dataclass(frozen=True)
class RankStudy:
    """What to compare.

    Attributes:
        base: prompts, policy, seeds, candidates and rewards; its sampling is the recipe's exploration.
        engines: proxies' engines.
        steps: proxies' step counts; every engine is tried with every one.
        reference: what the proxies are compared with.
        keep: K of best/worst overlap and contrast.
    """

    base: PoolJob
    engines: tuple[ExtensionSpec, ...]
    steps: tuple[int, ...]
    reference: SamplingSpec
    keep: int

    def proxies(self) -> list[PoolJob]:
        """The pool of every proxy."""
        return [self._pool(engine, steps) for engine in self.engines for steps in self.steps]

    def truth(self) -> PoolJob:
        """The pool of the reference: whole groups, at the same seeds."""
        sampling = self.reference.model_copy(update={"chunk": self.base.chunk})
        return replace(self.base, sampling=sampling, stage="explore", keep="none")

    def _pool(self, engine: ExtensionSpec, steps: int) -> PoolJob:
        sampling = self.base.sampling.model_copy(update={"engine": engine, "steps": steps})
        return replace(self.base, sampling=sampling)


@dataclass(frozen=True)
class Cost:
    """What a pool of a study still needs, found without loading weights."""

    job: PoolJob
    blocks: int
    missing: int

    @property
    def forwards(self) -> int:
        """Transformer evaluations still to do, per image."""
        return self.missing * self.job.chunk * self.job.sampling.steps


def base_study(
    session: Session, prompts: int, steps: Sequence[int], engines: Sequence[str], policy: PolicyChoice = BASE
) -> RankStudy:
    """The study of a policy, the untrained one by default, on held-out prompts, by the recipe's sampling.

    Raises:
        StudyError: there are fewer held-out prompts.
    """
    recipe = session.recipe
    if prompts > len(session.prepared.heldout):
        raise StudyError(f"prompts is {prompts}, but the held-out set has only {len(session.prepared.heldout)}")
    return RankStudy(
        base=PoolJob(
            step=0,
            stage="explore",
            prompts=session.prepared.heldout.subset(list(range(prompts))),
            policy=policy,
            exploration_seed=exploration_seed(recipe.seed, 0),
            sampling=recipe.explore,
            candidates=recipe.explore.candidates,
            rewards=recipe.rewards,
            reuse=recipe.explore.reuse,
        ),
        engines=tuple(_engine(recipe.explore.engine, name) for name in engines),
        steps=tuple(steps),
        reference=recipe.regenerate,
        keep=recipe.select.keep,
    )


def study_cost(session: Session, study: RankStudy) -> list[Cost]:
    """What is cached and what is missing, pool by pool; loads no weights and computes nothing."""
    jobs = [study.truth(), *study.proxies()]
    return [Cost(job, job.count_blocks(), len(job.missing(session))) for job in jobs]


def measure_ranks(session: Session, study: RankStudy, call: Call = direct) -> RankFidelity:
    """Fill the pools that are missing and compare every proxy with the reference."""
    truth_job = study.truth()
    truth_outcome = call(explore, session, truth_job)
    truth = proxy_scores(truth_job, truth_job.open(session), truth_job.rewards)
    assert truth_outcome.ref is not None
    session.run.note_ref(0, "reference", truth_outcome.ref)
    proxies = []
    for job in study.proxies():
        outcome = call(explore, session, job)
        assert outcome.ref is not None
        engine, steps = job.sampling.engine.name, job.sampling.steps
        session.run.note_ref(0, f"{engine}-{steps}", outcome.ref)
        scores = proxy_scores(job, job.open(session), job.rewards)
        computed = int(str(outcome.details["blocks_computed"]))
        metrics = whole_groups(scores, truth, study.keep)
        proxies.append(ProxyRanks(engine=engine, steps=steps, metrics=metrics, pool=outcome.ref, computed=computed))
    return RankFidelity(
        reference_engine=study.reference.engine.name,
        reference_steps=study.reference.steps,
        prompts=len(study.base.prompts),
        candidates=study.base.candidates,
        keep=study.keep,
        reference=truth_outcome.ref,
        proxies=tuple(proxies),
    )


def _engine(configured: ExtensionSpec, name: str) -> ExtensionSpec:
    return configured if name == configured.name else ExtensionSpec(name=name)
