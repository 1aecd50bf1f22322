"""Evaluate: held-out prompts, the same seeds every time, every configured reward, and how much images vary."""

import io
import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import JsonValue

from solrl_tasks.analysis.distances import diversity
from solrl_tasks.analysis.estimates import Estimate, mean_estimate, unit_means
from solrl_tasks.features.base import make_feature
from solrl_tasks.stages.explore import explore
from solrl_tasks.stages.jobs import PoolJob
from solrl_tasks.stages.outcome import StageOutcome
from solrl_tasks.stages.session import Session
from solrl_tasks.stages.specs import conditioning_spec, evaluation_spec
from solrl_tasks.store.evaluations import Evaluation, find_evaluation, load_evaluation, save_evaluation
from solrl_tasks.store.pool import Pool

GRID_PROMPTS = 8
GRID_SEEDS = 4


@dataclass(frozen=True)
class EvaluateJob:
    """A measurement on held-out prompts; its images are a pool of their own, so it resumes block by block."""

    step: int
    pool: PoolJob

    @property
    def stage(self) -> str:
        """The name under which it is shown and paid for."""
        return self.pool.stage


def evaluate(session: Session, job: EvaluateJob) -> StageOutcome:
    """Score the held-out prompts with the policy that the job names.

    Returns:
        The evaluation's reference. ``details["rewards"]`` has mean, standard error (over prompts: seeds of one prompt
        are not independent) and count by reward.
    """
    started = time.perf_counter()
    filled = explore(session, job.pool)
    found = stored_evaluation(session, job.pool) or _make(session, job.pool)
    estimates = found.content["estimates"]
    return StageOutcome(
        stage=job.stage,
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


def held_out_diversity(job: PoolJob, pool: Pool) -> NDArray[np.float64]:
    """Mean distance between the images of each prompt, [P]; NaN where there are not two."""
    (feature,), (name,) = job.features, job.feature_ids()
    return diversity(pool.features(name, job.candidates), make_feature(feature).metric)


def estimate(scores: NDArray[np.float64]) -> Estimate:
    """Mean over prompts of the mean over seeds, with its standard error over prompts."""
    return mean_estimate(unit_means(scores))


def _spec(job: PoolJob, pool: Pool) -> dict[str, object]:
    features = job.feature_ids()
    values = pool.ref(job.reward_ids(), job.candidates, features)
    return evaluation_spec(values, job.rewards, job.candidates, features)


def _make(session: Session, job: PoolJob) -> Evaluation:
    pool = job.open(session)
    scores = held_out_scores(job, pool)
    varied = held_out_diversity(job, pool)
    content = {
        "estimates": {name: estimate(values).model_dump(mode="json") for name, values in scores.items()},
        "diversity": {
            "estimate": mean_estimate(varied).model_dump(mode="json"),
            "features": job.feature_ids()[0],
            "prompts": _listed(varied),
        },
        "prompts": [prompt.text for prompt in job.prompts.prompts],
        "scores": {name: [_listed(row) for row in values] for name, values in scores.items()},
        "sampling": _sampling(session, job),
    }
    images = {"samples.png": _sample_grid(job, pool)} if job.keep != "none" else {}
    return load_evaluation(session.store, save_evaluation(session.store, _spec(job, pool), content, images))


def _sampling(session: Session, job: PoolJob) -> dict[str, JsonValue]:
    """How the images came about, for readers: all of it stands in the pool's key too."""
    sampling = conditioning_spec(session.recipe.model)
    led = {} if job.guidance is None else {
        "guidance": job.guidance.guidance, "guidance_scale": job.guidance.guidance_scale
    }  # fmt: skip
    return {
        "policy": job.policy.digest,
        "engine": job.sampling.engine.name,
        "sampler": job.sampling.sampler,
        "steps": job.sampling.steps,
        "seed": job.exploration_seed,
        "seeds": job.candidates,
        "guidance": sampling["guidance"],
        "guidance_scale": sampling["guidance_scale"],
        **led,
    }


def _shown(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f}"


def _listed(values: NDArray[np.float64]) -> list[float | None]:
    return [float(v) if np.isfinite(v) else None for v in values]


def _sample_grid(job: PoolJob, pool: Pool) -> bytes:
    rows = [
        np.concatenate(list(pool.pictures(row, range(min(GRID_SEEDS, job.candidates)))), axis=1)
        for row in range(min(GRID_PROMPTS, len(job.prompts)))
    ]
    buffer = io.BytesIO()
    Image.fromarray(np.concatenate(rows, axis=0)).save(buffer, format="PNG")
    return buffer.getvalue()
