"""Proxy and true rewards of whole groups, and what each cost: from jobs, from pools, or from a run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from solrl_tasks.config.recipe import ModelSpec, Recipe, RewardSpec, SamplingSpec
from solrl_tasks.config.words import counted
from solrl_tasks.reports.provenance import joined
from solrl_tasks.rewards.base import reward_id
from solrl_tasks.rewards.scoring import make_reward
from solrl_tasks.selection.scores import measure_scale, weighted_scores
from solrl_tasks.stages.explore import explore
from solrl_tasks.stages.iteration import Call, direct
from solrl_tasks.stages.jobs import PoolJob
from solrl_tasks.stages.recorded import PolicyName, StudyError, find_policy
from solrl_tasks.stages.recorded_recipe import recorded_recipe
from solrl_tasks.stages.resolutions import sampled_model
from solrl_tasks.stages.session import Session
from solrl_tasks.store.costs import block_seconds
from solrl_tasks.store.pool import Pool
from solrl_tasks.store.root import Store
from solrl_tasks.store.runs import view_run
from solrl_tasks.store.samples import Samples
from solrl_tasks.studies.rank_fidelity import held_out_job, precise_job
from solrl_tasks.tracking.summary import Summary

Floats = NDArray[np.float64]

SAME: Final = ("base", "policy", "exploration_seed", "seed_scheme")
"""Fields of the specs of two pools without which the same index is not the same seed of the same policy."""


@dataclass(frozen=True)
class Side:
    """How one of the two rewards came about.

    Attributes:
        engine, steps, resolution: that sampled; the side is in pixels.
        record: environment of its blocks; empty where it is lost.
        seconds: median device seconds of one candidate, over blocks or iterations, so that the first one, which
            loads and compiles, does not count.
        price_origin: in words, where the seconds are from.
    """

    engine: str
    steps: int
    resolution: int
    record: Mapping[str, Any]
    seconds: float
    price_origin: str

    def __str__(self) -> str:
        return f"{self.engine} in {counted(self.steps, 'step')} at {self.resolution} px"


@dataclass(frozen=True)
class Evidence:
    """Whole groups that were both explored and sampled precisely, from the same seeds of the same policy.

    Attributes:
        proxy, true: [P, N] scores; non-finite where invalid.
        keep: K.
        reward: in words.
        update: device seconds of one kept candidate's part in an update; None where it is not known.
        origin: in words, where the groups are from; ``update_origin`` likewise.
        pools: keys of what was read.
        computed: blocks that were sampled for it now.
    """

    proxy: Floats
    true: Floats
    keep: int
    reward: str
    explored: Side
    reference: Side
    update: float | None
    origin: str
    update_origin: str
    pools: tuple[str, ...]
    computed: int = 0


UNKNOWN_UPDATE: Final = "not known, and counted as nothing"


@dataclass(frozen=True)
class PairJobs:
    """The two pools of a study: whole groups of the same seeds, explored and sampled precisely."""

    explored: PoolJob
    reference: PoolJob
    keep: int

    def named(self) -> dict[str, PoolJob]:
        """By what they are in the study."""
        return {"explored": self.explored, "reference": self.reference}


def pair_jobs(session: Session, prompts: int, policy: PolicyName) -> PairJobs:
    """Exploration and regeneration of the recipe on its first held-out prompts; a study of ranks has the same pools.

    Raises:
        StudyError: there are fewer held-out prompts, or no such policy.
    """
    recipe = session.recipe
    explored = held_out_job(session, prompts, find_policy(session, policy))
    return PairJobs(explored, precise_job(explored, recipe.regenerate, recipe.regenerate.steps), recipe.select.keep)


def measured_evidence(session: Session, jobs: PairJobs, policy: PolicyName, call: Call = direct) -> Evidence:
    """The groups of two pools, of which only what they lack is sampled.

    Args:
        policy: of the jobs, to be named in words.
        call: runs a stage.
    """
    computed = 0
    for name, job in jobs.named().items():
        outcome = call(explore, session, job)
        assert outcome.ref is not None
        session.run.note_ref(0, name, outcome.ref)
        computed += int(str(outcome.details["blocks_computed"]))
    explored, reference = jobs.explored.open(session), jobs.reference.open(session)
    specs, count = jobs.explored.rewards, jobs.explored.candidates
    ids = {spec.name: identity for spec, identity in zip(specs, jobs.explored.reward_ids(), strict=True)}
    raw = [{name: pool.rewards(ids[name], count) for name in ids} for pool in (explored, reference)]
    proxy, true = _scores(specs, raw[0], raw[1], list(range(len(jobs.explored.prompts))))
    return Evidence(
        proxy=proxy,
        true=true,
        keep=jobs.keep,
        reward=_named(specs),
        explored=_side(session.store, explored, list(ids.values())),
        reference=_side(session.store, reference, list(ids.values())),
        update=None,
        origin=(
            f"{counted(len(proxy), 'held-out prompt')} x {counted(count, 'seed')} of {policy}, recipe "
            f"{session.recipe.name}"
        ),
        update_origin=UNKNOWN_UPDATE,
        pools=(explored.key, reference.key),
        computed=computed,
    )


def pooled_evidence(
    store: Store,
    explored: str,
    reference: str,
    reward: str | None = None,
    keep: int | None = None,
) -> Evidence:
    """Groups of two pools by key; nothing is computed.

    Args:
        reward: ``name@version`` or the name alone; needed where both pools have several.
        keep: K; a quarter of the candidates if left out.

    Raises:
        StudyError: the pools are of other seeds or another policy, have no prompt or reward in common, or lack blocks.
        MissingObjectError: there is no such pool.
    """
    proxy, true = Pool.load(store, find_key(store, explored)), Pool.load(store, find_key(store, reference))
    if proxy.key == true.key:
        raise StudyError(
            f"explored and reference are both pool {proxy.key}: every proxy is as good as itself. Give the pool of the "
            "same seeds sampled precisely as the reference; `solrl pools` lists those there are"
        )
    changed = [name for name in SAME if proxy.spec.get(name) != true.spec.get(name)]
    if changed:
        raise StudyError(
            f"pools {proxy.key} and {true.key} differ in {', '.join(changed)}: the same index is then not the same "
            "seed of the same policy. Give two pools of one study"
        )
    name = _common_reward(proxy, true, reward)
    shared = [row for row in proxy.rows if row in true.rows]
    n = min(_filled(proxy, name), _filled(true, name))
    if not shared or n < 2:
        raise StudyError(
            f"pools {proxy.key} and {true.key} have {counted(len(shared), 'prompt')} in common and "
            f"{counted(n, 'candidate')} of {name} that "
            "both hold: explore whole groups in both first"
        )
    places = [[pool.rows.index(row) for row in shared] for pool in (proxy, true)]
    return Evidence(
        proxy=proxy.rewards(name, n)[places[0]].astype(np.float64),
        true=true.rewards(name, n)[places[1]].astype(np.float64),
        keep=keep or max(2, n // 4),
        reward=name,
        explored=_side(store, proxy, [name]),
        reference=_side(store, true, [name]),
        update=None,
        origin=f"{counted(len(shared), 'prompt')} x {counted(n, 'seed')} of pools {proxy.key[:12]} and {true.key[:12]}",
        update_origin=UNKNOWN_UPDATE,
        pools=(proxy.key, true.key),
    )


def audited_evidence(store: Store, run_id: str) -> Evidence:
    """The groups that a run audited, and its own prices; nothing is computed.

    Raises:
        StudyError: the run audited nothing, or did so with other numbers of candidates.
        MissingObjectError: there is no such run.
        DamagedError: a summary of it is damaged: its audits would be left out unseen.
    """
    view = view_run(store, run_id)
    recipe = recorded_recipe(view)
    summaries = [Summary.model_validate(content) for _, content in sorted(view.whole_summaries().items())]
    audited = [summary for summary in summaries if {"explore", "audit"} <= summary.refs.keys()]
    if not audited:
        raise StudyError(
            f"run {run_id} has no audit among its committed iterations: whole groups of it were never sampled "
            "precisely. Set audit.every of its recipe, or name pools"
        )
    pairs = [_audited(store, recipe, summary) for summary in audited]
    groups, last = sum(len(proxy) for proxy, _ in pairs), audited[-1]
    unpriced = Evidence(
        proxy=np.concatenate([proxy for proxy, _ in pairs]),
        true=np.concatenate([true for _, true in pairs]),
        keep=recipe.select.keep,
        reward=_named(recipe.rewards),
        explored=_unpriced(recipe.model, recipe.explore, _record(Pool.load(store, last.refs["explore"]))),
        reference=_unpriced(recipe.model, recipe.regenerate, _record(Samples.load(store, last.refs["audit"]))),
        update=None,
        origin=(
            f"{counted(groups, 'audited group')} x {counted(recipe.explore.candidates, 'seed')} of run {run_id}, "
            "whose policy changed between them"
        ),
        update_origin=UNKNOWN_UPDATE,
        pools=tuple(summary.refs[name].key for summary in audited for name in ("explore", "audit")),
    )
    return with_prices_of(store, unpriced, run_id)


def with_prices_of(store: Store, evidence: Evidence, run_id: str) -> Evidence:
    """The same groups at the prices of a run: what a candidate, a kept one and its update took there.

    Seconds of one run were measured side by side; those of two pools and of a run on a machine that is sometimes busy
    were not.

    Raises:
        StudyError: the run trained nothing, or sampled by other engines or step counts.
        MissingObjectError: there is no such run.
        DamagedError: a summary of it is damaged.
    """
    view = view_run(store, run_id)
    recipe = recorded_recipe(view)
    _require_same_work(evidence.explored, evidence.reference, recipe, run_id)
    summaries = [Summary.model_validate(content) for _, content in sorted(view.whole_summaries().items())]
    origin = f"median over iterations of run {run_id}"
    kept = recipe.prompts.per_iteration * recipe.select.keep
    candidates = recipe.prompts.per_iteration * recipe.explore.candidates
    explore_seconds, regenerate_seconds, update_seconds = (
        _stage_price(summaries, stage, images, run_id)
        for stage, images in (("explore", candidates), ("regenerate", kept), ("update", kept))
    )
    return replace(
        evidence,
        explored=replace(evidence.explored, seconds=explore_seconds, price_origin=origin),
        reference=replace(evidence.reference, seconds=regenerate_seconds, price_origin=origin),
        update=update_seconds,
        update_origin=origin,
    )


def find_key(store: Store, start: str) -> str:
    """The pool whose key begins so.

    Raises:
        StudyError: there is none, or several.
    """
    found = sorted(path.name for path in store.folder("pools").glob("[0-9a-f]*") if path.name.startswith(start))
    if not found:
        raise StudyError(f"no pool of the store begins with {start!r}: `solrl pools` lists those there are")
    if len(found) > 1:
        raise StudyError(f"{counted(len(found), 'pool')} of the store begin with {start!r}: give more of the key")
    return found[0]


def _audited(store: Store, recipe: Recipe, summary: Summary) -> tuple[Floats, Floats]:
    pool, samples = Pool.load(store, summary.refs["explore"]), Samples.load(store, summary.refs["audit"])
    ids = {spec.name: reward_id(make_reward(spec)) for spec in recipe.rewards}
    explored = {name: pool.rewards(identity, recipe.explore.candidates) for name, identity in ids.items()}
    precise = {name: samples.rewards(identity) for name, identity in ids.items()}
    rows = list(range(recipe.audit.prompts))
    proxy, true = _scores(recipe.rewards, explored, precise, rows)
    return proxy[rows], true


def _scores(
    rewards: Sequence[RewardSpec],
    explored: Mapping[str, NDArray[np.float32]],
    precise: Mapping[str, NDArray[np.float32]],
    rows: list[int],
) -> tuple[Floats, Floats]:
    """Both sides on the scale of what was explored, so that their difference means something."""
    weights = {spec.name: spec.weight for spec in rewards}
    scales = {
        spec.name: measure_scale(explored[spec.name], "group" if spec.normalize == "group" else "pool")
        for spec in rewards
        if spec.normalize != "none" and spec.weight != 0
    }
    there = {name: scale.take(rows) for name, scale in scales.items()}
    return weighted_scores(explored, weights, scales), weighted_scores(precise, weights, there)


def require_prices(store: Store, run_id: str, recipe: Recipe) -> None:
    """Refuse a run whose prices could not be those of groups that are still to be sampled by a recipe.

    Raises:
        StudyError: the run trained nothing, or sampled by other engines or step counts.
        MissingObjectError: there is no such run.
        DamagedError: a summary of it is damaged.
    """
    view = view_run(store, run_id)
    priced = recorded_recipe(view)
    explored, reference = (_unpriced(recipe.model, spec, {}) for spec in (recipe.explore, recipe.regenerate))
    _require_same_work(explored, reference, priced, run_id)
    _stage_price([Summary.model_validate(content) for content in view.whole_summaries().values()], "update", 1, run_id)


def _require_same_work(explored: Side, reference: Side, priced: Recipe, run_id: str) -> None:
    for side, spec in ((explored, priced.explore), (reference, priced.regenerate)):
        other = _unpriced(priced.model, spec, {})
        if (side.engine, side.steps, side.resolution) != (other.engine, other.steps, other.resolution):
            raise StudyError(f"run {run_id} sampled by {other}, the groups by {side}: its prices are not theirs")


def _stage_price(summaries: Sequence[Summary], stage: str, images: int, run_id: str) -> float:
    spent = [summary.stages[stage].attributed_seconds for summary in summaries if stage in summary.stages]
    if not spent:
        raise StudyError(
            f"no iteration of run {run_id} has a stage {stage!r}, so it has no prices: name a run that has trained, "
            "see `solrl runs`"
        )
    return float(np.median(spent)) / images


def _unpriced(model: ModelSpec, sampling: SamplingSpec, record: Mapping[str, Any]) -> Side:
    side = sampled_model(model, sampling).resolution
    return Side(sampling.engine.name, sampling.steps, side, record, 0.0, "")


def _side(store: Store, pool: Pool, rewards: Sequence[str]) -> Side:
    seconds = block_seconds(store, pool.key, rewards)
    return Side(
        engine=str(pool.spec["engine"]["name"]),
        steps=int(pool.spec["steps"]),
        resolution=int(pool.spec["conditioning"]["resolution"]),
        record=_record(pool),
        seconds=float(np.median(seconds)) / pool.chunk,
        price_origin=f"median of {counted(len(seconds), 'block')}",
    )


def _record(stored: Pool | Samples) -> Mapping[str, Any]:
    return joined(stored.records().values())


def _named(rewards: Sequence[RewardSpec]) -> str:
    used = [spec for spec in rewards if spec.weight != 0]
    return used[0].name if len(used) == 1 else " + ".join(f"{spec.weight:g} {spec.name}" for spec in used)


def _common_reward(one: Pool, other: Pool, asked: str | None) -> str:
    prefix = "rewards/"
    both = sorted({name.removeprefix(prefix) for name in set(one.arrays()) & set(other.arrays()) if prefix in name})
    fitting = [name for name in both if asked is None or asked in (name, name.rpartition("@")[0])]
    if len(fitting) != 1:
        found = f"both have {', '.join(both)}" if both else "they have none in common"
        asks = "name one reward" if asked is None else f"reward is {asked!r}, but it is to be one"
        raise StudyError(f"{asks} that pools {one.key} and {other.key} both have: {found}")
    return fitting[0]


def _filled(pool: Pool, reward: str) -> int:
    """Candidates from the first on that every prompt has."""
    lacking = pool.missing([reward], pool.columns, verify=False)
    return min((block.start for block in lacking), default=pool.columns)
