"""Evaluate: held-out prompts, the same seeds every time, every configured reward."""

import io
import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from solrl_tasks.analysis.estimates import Estimate, mean_estimate
from solrl_tasks.stages.explore import explore
from solrl_tasks.stages.jobs import PoolJob
from solrl_tasks.stages.outcome import StageOutcome
from solrl_tasks.stages.session import Session
from solrl_tasks.stages.specs import evaluation_spec
from solrl_tasks.store.evaluations import Evaluation, find_evaluation, load_evaluation, save_evaluation
from solrl_tasks.store.pool import Pool

GRID_PROMPTS = 8
GRID_SEEDS = 4


@dataclass(frozen=True)
class EvaluateJob:
    """A measurement on held-out prompts; its images are a pool of their own, so it resumes block by block."""

    step: int
    pool: PoolJob


def evaluate(session: Session, job: EvaluateJob) -> StageOutcome:
    """Score the held-out prompts with the policy's eval EMA.

    Returns:
        The evaluation's reference. ``details["rewards"]`` has mean, standard error (over prompts: seeds of one prompt
        are not independent) and count by reward.
    """
    started = time.perf_counter()
    filled = explore(session, job.pool)
    found = stored_evaluation(session, job.pool) or _make(session, job.pool)
    estimates = found.content["estimates"]
    return StageOutcome(
        stage="evaluate",
        state=filled.state,
        ref=found.ref,
        message=", ".join(f"{name} {_shown(e['mean'])} ± {_shown(e['stderr'])}" for name, e in estimates.items()),
        seconds=time.perf_counter() - started,
        device_seconds=filled.device_seconds,
        attributed_seconds=filled.attributed_seconds,
        details={"rewards": estimates, **filled.details},
    )


def stored_evaluation(session: Session, job: PoolJob) -> Evaluation | None:
    """The evaluation in the store, if it was made from what the filled pool holds now."""
    return find_evaluation(session.store, _spec(job, job.open(session)))


def held_out_scores(job: PoolJob, pool: Pool) -> dict[str, NDArray[np.float64]]:
    """Scores by reward name, [P, seeds]; NaN is invalid."""
    return {
        spec.name: pool.rewards(identity, job.candidates).astype(np.float64)
        for spec, identity in zip(job.rewards, job.reward_ids(), strict=True)
    }


def estimate(scores: NDArray[np.float64]) -> Estimate:
    """Mean over prompts of the mean over seeds, with its standard error over prompts."""
    with np.errstate(invalid="ignore"):
        valid = np.isfinite(scores)
        means = np.where(valid, scores, 0.0).sum(axis=1) / np.maximum(valid.sum(axis=1), 1)
    return mean_estimate(np.where(valid.any(axis=1), means, np.nan))


def _spec(job: PoolJob, pool: Pool) -> dict[str, object]:
    return evaluation_spec(pool.ref(job.reward_ids(), job.candidates), job.rewards, job.candidates)


def _make(session: Session, job: PoolJob) -> Evaluation:
    pool = job.open(session)
    scores = held_out_scores(job, pool)
    content = {
        "estimates": {name: estimate(values).model_dump(mode="json") for name, values in scores.items()},
        "prompts": [prompt.text for prompt in job.prompts.prompts],
        "scores": {name: _listed(values) for name, values in scores.items()},
    }
    images = {"samples.png": _sample_grid(job, pool)} if job.keep != "none" else {}
    return load_evaluation(session.store, save_evaluation(session.store, _spec(job, pool), content, images))


def _shown(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f}"


def _listed(values: NDArray[np.float64]) -> list[list[float | None]]:
    return [[float(v) if np.isfinite(v) else None for v in row] for row in values]


def _sample_grid(job: PoolJob, pool: Pool) -> bytes:
    rows = [
        np.concatenate(list(pool.pictures(row, range(min(GRID_SEEDS, job.candidates)))), axis=1)
        for row in range(min(GRID_PROMPTS, len(job.prompts)))
    ]
    buffer = io.BytesIO()
    Image.fromarray(np.concatenate(rows, axis=0)).save(buffer, format="PNG")
    return buffer.getvalue()
