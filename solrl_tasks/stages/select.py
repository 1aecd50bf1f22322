"""Select: which seeds are worth sampling precisely."""

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from solrl_tasks.config.extensions import build
from solrl_tasks.config.recipe import RewardSpec, SelectSpec
from solrl_tasks.config.words import counted
from solrl_tasks.rewards.base import reward_id
from solrl_tasks.rewards.scoring import make_reward
from solrl_tasks.sampling.identity import candidate_seed
from solrl_tasks.selection.groups import select_groups
from solrl_tasks.stages.jobs import PoolJob
from solrl_tasks.stages.outcome import StageOutcome
from solrl_tasks.stages.scores import proxy_scores
from solrl_tasks.stages.session import Session
from solrl_tasks.stages.specs import selection_spec
from solrl_tasks.store.pool import Pool
from solrl_tasks.store.selections import Selection, find_selection, load_selection, save_selection


@dataclass(frozen=True)
class SelectJob:
    """A selection from a filled pool."""

    step: int
    pool: PoolJob
    rewards: tuple[RewardSpec, ...]
    select: SelectSpec


def select(session: Session, job: SelectJob) -> StageOutcome:
    """Keep K seeds of every prompt, by the scores of the explored candidates.

    Raises:
        NoValidCandidateError: no candidate of any prompt has a finite score.
    """
    started = time.perf_counter()
    session.reporter.stage_started(job.step, "select", f"{job.select.keep} of {job.pool.candidates}")
    found = stored_selection(session, job)
    selection = found or _make(session, job)
    counts = dict(selection.notes["counts"])
    outcome = StageOutcome(
        stage="select",
        state="Reused" if found else "Completed",
        ref=selection.ref,
        message=_message(counts, job.select.keep),
        seconds=time.perf_counter() - started,
        details={"counts": counts},
    )
    session.reporter.stage_finished(job.step, outcome)
    return outcome


def stored_selection(session: Session, job: SelectJob) -> Selection | None:
    """The selection in the store, if it was made from what the pool holds now."""
    return find_selection(session.store, _spec(job, job.pool.open(session)))


def _spec(job: SelectJob, pool: Pool) -> dict[str, object]:
    candidates = job.pool.candidates
    values = pool.ref([reward_id(make_reward(reward)) for reward in job.rewards], candidates)
    return selection_spec(values, job.rewards, candidates, job.select.keep, job.select.rule)


def _make(session: Session, job: SelectJob) -> Selection:
    pool = job.pool.open(session)
    scores = proxy_scores(job.pool, pool, job.rewards)
    rule = build("selection rule", job.select.rule, {})
    chosen = select_groups(scores, _seeds(job.pool), job.select.keep, rule)
    notes = {
        "counts": chosen.counts,
        "reasons": {str(row): reason for row, reason in chosen.reasons.items()},
    }
    spec = _spec(job, pool)
    return load_selection(session.store, save_selection(session.store, spec, chosen.indices, notes))


def _seeds(job: PoolJob) -> NDArray[np.uint64]:
    rows = [
        [candidate_seed(job.exploration_seed, key, index) for index in range(job.candidates)]
        for key in job.prompts.keys
    ]
    return np.array(rows, dtype=np.uint64)


def _message(counts: dict[str, int], keep: int) -> str:
    text = f"{counted(counts['kept'], 'group')} of {keep}"
    left_out = [f"{counts[name]} {name.replace('_', ' ')}" for name in ("few_finite", "no_spread") if counts[name]]
    if left_out:
        text += f", left out: {', '.join(left_out)}"
    return text + (f", {counted(counts['invalid'], 'invalid candidate')}" if counts["invalid"] else "")
