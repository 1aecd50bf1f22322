"""Does the proxy rank: pools of the untrained model on held-out prompts, each sampled by a process of its own."""

import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from solrl_tasks.analysis.estimates import Estimate, mean_estimate
from solrl_tasks.analysis.ranks import fidelity
from solrl_tasks.config.base import Frozen
from solrl_tasks.config.recipe import ExtensionSpec, Recipe, SamplingSpec
from solrl_tasks.models.dtypes import device_class
from solrl_tasks.reports.provenance import engine_kind, hardware_name
from solrl_tasks.sampling.identity import exploration_seed
from solrl_tasks.stages.explore import explore
from solrl_tasks.stages.jobs import PoolJob
from solrl_tasks.stages.scores import proxy_scores
from solrl_tasks.stages.session import Session, open_session
from solrl_tasks.stages.specs import BASE
from solrl_tasks.store.keys import digest
from solrl_tasks.store.records import environment_record

TOPS: Final = (4, 8, 12)
"""How many of the best are compared."""

Scores = NDArray[np.float64]


@dataclass(frozen=True)
class RankPool:
    """A pool to fill, in what a pickle holds.

    Attributes:
        engine: and its options.
        like: whose sampler it takes: the recipe's exploration or regeneration.
        deadline: not begun after it, in seconds since the epoch.
    """

    root: Path
    recipe: Recipe
    base: Path
    engine: ExtensionSpec
    steps: int
    like: Literal["explore", "regenerate"]
    prompts: int
    deadline: float

    @property
    def label(self) -> str:
        """Engine and steps."""
        return f"{self.engine.name}-{self.steps}"

    @property
    def run_id(self) -> str:
        """The run that holds the pool."""
        known = digest([self.recipe.model_dump(mode="json"), self.engine.model_dump(mode="json"), self.prompts])[:6]
        return f"ranks-{self.label}-{known}"


@dataclass(frozen=True)
class Filled:
    """What became of a pool.

    Attributes:
        scores: ``[P, N]``, NaN where invalid; None where it failed or was not begun.
        kind: whether the engine computes in hardware what its name says.
        error: why there are no scores.
    """

    scores: Scores | None = None
    kind: Literal["real", "emulated"] = "emulated"
    hardware: str = ""
    error: str = ""


class ProxyRow(Frozen):
    """A proxy against a reference: estimates over prompts.

    Attributes:
        overlap: by k, the share of the proxy's k best that are among the reference's k best; as ``top_overlap_k`` of
            ``analysis.ranks.matches``.
        match: by k, the share of the others that the proxy's k best are better than; as ``top_match_k`` there.
        contrast: that selection by the proxy achieves, of the one by the reference.
    """

    engine: str
    kind: Literal["real", "emulated"]
    steps: int
    reference_engine: str
    reference_steps: int
    spearman: Estimate
    kendall: Estimate
    overlap: dict[int, Estimate]
    match: dict[int, Estimate]
    contrast: Estimate


class Ranking(Frozen):
    """All proxies against all references, on the same prompts and seeds.

    Attributes:
        pools: runs that hold the pools; with other settings there are others.
    """

    pools: tuple[str, ...]
    reward: str
    hardware: str
    prompts: int
    candidates: int
    keep: int
    rows: tuple[ProxyRow, ...]


def rank_pools(
    root: Path,
    recipe: Recipe,
    engines: Sequence[str],
    references: Sequence[int],
    prompts: int,
    deadline: float = float("inf"),
    base: Path = Path(),
) -> list[RankPool]:
    """The pools: every engine at the recipe's explore steps, and the precise engine at each number of reference steps.

    The longest comes first: all are filled at once, and the last to end decides.
    """
    precise, options = recipe.regenerate.engine, recipe.explore.engine.options

    def pool(engine: ExtensionSpec, steps: int, like: Literal["explore", "regenerate"]) -> RankPool:
        return RankPool(root, recipe, base, engine, steps, like, prompts, deadline)

    kept = {name: value for name, value in options.items() if name == "execution"}
    known = {recipe.explore.engine.name: recipe.explore.engine, precise.name: precise}
    chosen = [known.get(name, ExtensionSpec(name=name, options=kept)) for name in engines]
    found = [pool(precise, steps, "regenerate") for steps in references]
    found += [pool(engine, recipe.explore.steps, "explore") for engine in chosen]
    unique = {(one.engine.name, one.steps, getattr(recipe, one.like).sampler): one for one in found}
    return sorted(unique.values(), key=lambda one: -one.steps)


def fill(task: RankPool) -> Filled:
    """Fill a pool, or take what is there; nothing is raised."""
    if time.time() > task.deadline:
        return Filled(error="not begun: out of time")
    try:
        with open_session(task.root, task.run_id, task.recipe, base=task.base) as session:
            return _fill(session, task)
    except Exception:  # One pool that fails must not end the others.
        return Filled(error=traceback.format_exc())


def compare(pools: Sequence[tuple[RankPool, Filled]], references: Sequence[int], keep: int) -> Ranking:
    """Every pool against the precise pools of the reference steps.

    Raises:
        ValueError: a pool is not filled; the message names it.
    """
    missing = [f"{pool.label}: {found.error.strip()}" for pool, found in pools if found.scores is None]
    if missing or not pools:
        raise ValueError("pools are not filled: " + "; ".join(missing))
    first, filled = pools[0]
    assert filled.scores is not None
    precise = first.recipe.regenerate.engine.name
    truths = {pool.steps: found for pool, found in pools if pool.engine.name == precise}
    rows = [
        _row(pool, found, precise, steps, truths[steps], keep)
        for steps in references
        for pool, found in sorted(pools, key=lambda item: (item[0].steps, item[0].label))
        if pool.steps < steps
    ]
    return Ranking(
        pools=tuple(sorted(pool.run_id for pool, _ in pools)),
        reward=first.recipe.rewards[0].name,
        hardware=filled.hardware,
        prompts=filled.scores.shape[0],
        candidates=filled.scores.shape[1],
        keep=keep,
        rows=tuple(rows),
    )


def _row(pool: RankPool, found: Filled, precise: str, steps: int, truth: Filled, keep: int) -> ProxyRow:
    assert found.scores is not None and truth.scores is not None
    tops = [top for top in TOPS if 2 * top <= found.scores.shape[1]]
    each = fidelity(found.scores, truth.scores, keep, tops)
    whole = {name: mean_estimate(values) for name, values in each.items()}
    return ProxyRow(
        engine=pool.engine.name,
        kind=found.kind,
        steps=pool.steps,
        reference_engine=precise,
        reference_steps=steps,
        spearman=whole["spearman"],
        kendall=whole["kendall"],
        overlap={top: whole[f"top_overlap_{top}"] for top in tops},
        match={top: whole[f"top_match_{top}"] for top in tops},
        contrast=whole["contrast_share"],
    )


def _fill(session: Session, task: RankPool) -> Filled:
    job = _job(session, task)
    outcome = explore(session, job)
    if outcome.ref is not None:
        session.run.note_ref(0, task.label, outcome.ref)
    scores = proxy_scores(job, job.open(session), job.rewards)
    kind = engine_kind(task.engine.name, device_class(session.device))
    return Filled(scores, kind, hardware_name(environment_record(str(session.device))))


def _job(session: Session, task: RankPool) -> PoolJob:
    recipe = session.recipe
    own: SamplingSpec = getattr(recipe, task.like)
    sampling = SamplingSpec(
        engine=task.engine,
        sampler=own.sampler,
        steps=task.steps,
        chunk=recipe.explore.chunk,
        resolution=own.resolution,
    )
    return PoolJob(
        step=0,
        stage="explore",
        prompts=session.prepared.heldout.subset(list(range(task.prompts))),
        policy=BASE,
        exploration_seed=exploration_seed(recipe.seed, 0),
        sampling=sampling,
        candidates=recipe.explore.candidates,
        rewards=recipe.rewards,
        reuse=recipe.explore.reuse,
    )
