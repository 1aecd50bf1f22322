"""The metrics of a finished step, from what the store holds."""

import time
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from solrl_tasks.analysis.estimates import Estimate
from solrl_tasks.config.recipe import RewardSpec
from solrl_tasks.stages.comparison import Comparison, comparison_metrics, policy_metrics
from solrl_tasks.stages.course import Course
from solrl_tasks.stages.evaluate import estimate
from solrl_tasks.stages.outcome import StageOutcome, failure_note
from solrl_tasks.stages.plan import plan_baseline
from solrl_tasks.stages.ranks import audit_metrics, kept_metrics
from solrl_tasks.stages.scores import normalised, pool_scales, proxy_scores, sample_scores
from solrl_tasks.stages.session import Session
from solrl_tasks.store.pool import Pool
from solrl_tasks.store.refs import Ref
from solrl_tasks.store.samples import Samples
from solrl_tasks.tracking.summary import StageCost, Summary, split_finite

Metrics = dict[str, float | Estimate]
SECONDS_PER_HOUR = 3600.0


def build_summary(session: Session, course: Course, images: list[str]) -> Summary:
    """Everything that is worth a curve, with standard errors where there are any.

    Metrics that cannot be known are absent: ranks of whole groups outside audits, and whatever is not finite (counted
    in a note).
    """
    metrics: Metrics = {}
    if course.pool is not None and course.samples is not None:
        metrics |= _training_metrics(session, course)
    metrics |= _evaluation_metrics(session, course)
    return make_summary(session, course.step, metrics, course.outcomes, _refs(session, course), images)


def make_summary(
    session: Session,
    step: int,
    metrics: Metrics,
    outcomes: Mapping[str, StageOutcome],
    refs: dict[str, Ref],
    images: list[str],
    notes: Sequence[str] = (),
) -> Summary:
    """A step's record from its metrics and from what its stages came to; costs are added."""
    plain = {name: value.mean if isinstance(value, Estimate) else value for name, value in metrics.items()}
    stderr = {name: value.stderr for name, value in metrics.items() if isinstance(value, Estimate)}
    plain |= _costs(session, step, outcomes)
    finite, dropped = split_finite(plain)
    absent = [f"not finite and therefore absent: {', '.join(dropped)}"] if dropped else []
    return Summary(
        run_id=session.run.run_id,
        step=step,
        timestamp_ms=int(time.time() * 1000),
        metrics=finite,
        stderr={name: value for name, value in split_finite(stderr)[0].items() if name in finite},
        stages={name: _stage_cost(outcome) for name, outcome in outcomes.items()},
        refs=refs,
        notes=[*notes, *absent, *_notes(outcomes.values())],
        images=images,
    )


def _refs(session: Session, course: Course) -> dict[str, Ref]:
    refs = {name: outcome.ref for name, outcome in course.outcomes.items() if outcome.ref is not None}
    refs |= {"parent": course.parent, "policy": course.policy}
    if course.evaluation is not None:
        job = course.evaluation
        refs["evaluate_pool"] = job.open(session).ref(job.reward_ids(), job.candidates)
    return refs


def _training_metrics(session: Session, course: Course) -> Metrics:
    assert course.pool is not None
    assert course.samples is not None
    pool, samples = course.pool.open(session), course.samples.open(session)
    rewards = session.recipe.rewards
    scales = pool_scales(course.pool, pool, rewards)
    proxy = proxy_scores(course.pool, pool, rewards)
    precise = sample_scores(samples, rewards, scales)
    kept = course.samples.kept
    metrics: Metrics = {
        "reward/proxy": estimate(proxy),
        "reward/bf16": estimate(precise[kept]),
        **_end_rewards(precise[kept]),
        **_each_reward(course, pool, samples, rewards),
        **_selection_metrics(course, proxy, precise[kept]),
        **kept_metrics(proxy, precise, course.samples.indices, session.recipe.tracking.alarm_rho),
        "explore/candidates": float(proxy.size),
    }
    if course.audit is not None:
        rows = [course.pool.prompts.keys.index(key) for key in course.audit.prompts.keys]
        there = {name: scale.take(rows) for name, scale in scales.items()}
        audited = sample_scores(course.audit.open(session), rewards, there)
        metrics |= audit_metrics(proxy[rows], audited, session.recipe.select.keep)
    update = course.outcomes["update"].details["metrics"]
    assert isinstance(update, dict)
    return metrics | {name: float(value) for name, value in update.items() if isinstance(value, int | float)}


def _end_rewards(precise: NDArray[np.float64]) -> Metrics:
    worst = precise.shape[1] // 2
    best = precise.shape[1] - worst
    return {"reward/bf16_best": estimate(precise[:, :best]), "reward/bf16_worst": estimate(precise[:, best:])}


def _each_reward(course: Course, pool: Pool, samples: Samples, rewards: tuple[RewardSpec, ...]) -> Metrics:
    if len(rewards) == 1 and not normalised(rewards):
        return {}
    assert course.pool is not None
    assert course.samples is not None
    metrics: Metrics = {}
    for spec, identity in zip(rewards, course.pool.reward_ids(), strict=True):
        explored = pool.rewards(identity, course.pool.candidates).astype(np.float64)
        metrics[f"reward/proxy_{spec.name}"] = estimate(explored)
        metrics[f"reward/bf16_{spec.name}"] = estimate(samples.rewards(identity).astype(np.float64))
    return metrics


def _selection_metrics(course: Course, proxy: NDArray[np.float64], precise: NDArray[np.float64]) -> Metrics:
    counts = course.outcomes["select"].details["counts"]
    assert isinstance(counts, dict)
    pool_std, kept_std = _spread(proxy), _spread(precise)
    return {
        "select/kept_groups": float(str(counts["kept"])),
        "select/left_out_few_finite": float(str(counts["few_finite"])),
        "select/left_out_no_spread": float(str(counts["no_spread"])),
        "select/invalid_candidates": float(str(counts["invalid"])),
        "select/pool_std": pool_std,
        "select/kept_std": kept_std,
        "select/std_ratio": kept_std / pool_std if pool_std > 0 else float("nan"),
    }


def _spread(scores: NDArray[np.float64]) -> float:
    """Standard deviation of valid scores around the mean of their group, [P, N]."""
    groups = scores[np.isfinite(scores).any(axis=1)]
    return float(np.nanstd(groups - np.nanmean(groups, axis=1, keepdims=True))) if len(groups) else float("nan")


def _evaluation_metrics(session: Session, course: Course) -> Metrics:
    job = course.evaluation
    if job is None:
        return {}
    metrics = policy_metrics(session, job)
    if course.step > 0:
        metrics |= comparison_metrics(Comparison.of(session, job, plan_baseline(session)))
    return metrics


def _costs(session: Session, step: int, outcomes: Mapping[str, StageOutcome]) -> dict[str, float]:
    metrics: dict[str, float] = {}
    for name, outcome in outcomes.items():
        metrics[f"seconds/{name}"] = outcome.seconds
        metrics[f"gpu_hours/attributed_{name}"] = outcome.attributed_seconds / SECONDS_PER_HOUR
    spent, ever = session.run.journal.shares(step)
    metrics |= {f"gpu_hours/spent_{name}": seconds / SECONDS_PER_HOUR for name, seconds in spent.items()}
    metrics["gpu_hours/spent"] = sum(ever.values()) / SECONDS_PER_HOUR
    metrics["gpu_hours/attributed"] = _attributed(session, step, outcomes) / SECONDS_PER_HOUR
    for outcome in outcomes.values():
        if outcome.stage == "explore":
            metrics["explore/blocks_computed"] = float(str(outcome.details["blocks_computed"]))
            metrics["explore/blocks_reused"] = float(str(outcome.details["blocks_reused"]))
    return metrics


def _attributed(session: Session, step: int, outcomes: Mapping[str, StageOutcome]) -> float:
    now = sum(outcome.attributed_seconds for outcome in outcomes.values())
    earlier = 0.0
    if step > 0:
        before = session.run.summary(step - 1) or {"metrics": {}}
        earlier = float(before["metrics"].get("gpu_hours/attributed", 0.0)) * SECONDS_PER_HOUR
    return earlier + now


def _stage_cost(outcome: StageOutcome) -> StageCost:
    return StageCost(
        seconds=outcome.seconds,
        device_seconds=outcome.device_seconds,
        attributed_seconds=outcome.attributed_seconds,
        state=outcome.state,
    )


def _notes(outcomes: Iterable[StageOutcome]) -> list[str]:
    notes = []
    for outcome in outcomes:
        failures = outcome.details.get("failures")
        if isinstance(failures, list) and failures:
            notes.append(failure_note(outcome.stage, [str(failure) for failure in failures]))
    return notes
