"""Update: the next policy from the precise samples."""

import time
from contextlib import AbstractContextManager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from solrl_tasks.config.recipe import RewardSpec
from solrl_tasks.config.words import counted
from solrl_tasks.objectives.advantages import Advantages, advantages
from solrl_tasks.rewards.base import reward_id
from solrl_tasks.rewards.scoring import make_reward
from solrl_tasks.sampling.identity import candidate_seed
from solrl_tasks.sampling.sde.walk import window_starts
from solrl_tasks.stages.jobs import PoolJob, SamplesJob
from solrl_tasks.stages.outcome import StageOutcome, shown_actors
from solrl_tasks.stages.scores import normalised, pool_scales, proxy_scores, sample_scores
from solrl_tasks.stages.session import Session
from solrl_tasks.stages.specs import initial_policy_spec, policy_spec
from solrl_tasks.store.keys import key
from solrl_tasks.store.lock import Lock
from solrl_tasks.store.policies import find_policy, load_policy
from solrl_tasks.store.refs import Ref
from solrl_tasks.store.samples import Samples
from solrl_tasks.workers.jobs import Paths, TrainJob, TrainResult
from solrl_tasks.workers.policies import load_state, save_state


class NothingToLearnError(RuntimeError):
    """No sample of an iteration can be trained on."""


@dataclass(frozen=True)
class UpdateJob:
    """One update. ``parent`` is the policy that explored; ``pool`` lends its statistics where the recipe says so."""

    step: int
    parent: Ref
    pool: PoolJob
    samples: SamplesJob
    rewards: tuple[RewardSpec, ...]


def first_policy(session: Session) -> Ref:
    """The policy before any update, made if the store lacks it."""
    spec = initial_policy_spec(session)
    found = find_policy(session.store, spec)
    if found is not None:
        return found
    lora = session.recipe.update.lora
    state = session.worker.initial_policy(lora.rank, lora.alpha, lora.targets, lora.seed)
    return save_state(session.store, spec, state, metrics={}, seconds=0.0)


def update(session: Session, job: UpdateJob) -> StageOutcome:
    """Train on the kept samples; the policy is stored whole, or not at all.

    Raises:
        NothingToLearnError: no group was kept, or no kept sample has a finite reward.
        TrainingError: the loss or the gradient is not finite.
    """
    started = time.perf_counter()
    session.reporter.stage_started(job.step, "update", session.recipe.update.objective.name)
    samples = job.samples.open(session)
    spec = _spec(session, job, samples)
    trained: TrainResult | None = None
    ref = find_policy(session.store, spec)
    if ref is None:
        with _alone(session, job, spec):
            # Another run with the same data and recipe may have trained it meanwhile.
            ref = find_policy(session.store, spec)
            if ref is None:
                ref, trained = _train(session, job, samples, spec)
    stored = load_policy(session.store, ref)
    meta = stored.meta
    outcome = StageOutcome(
        stage="update",
        state="Reused" if trained is None else "Completed",
        ref=ref,
        message=f"optimizer step {meta['optimizer_step']}, loss {meta['metrics']['train/loss']:.4f}"
        + shown_actors(trained.actors if trained else {}),
        seconds=time.perf_counter() - started,
        device_seconds=trained.seconds if trained else 0.0,
        attributed_seconds=stored.making["seconds"],
        details={"metrics": meta["metrics"], "actors": {**trained.actors} if trained else {}},
    )
    session.reporter.stage_finished(job.step, outcome)
    return outcome


def _alone(session: Session, job: UpdateJob, spec: dict[str, object]) -> AbstractContextManager[Lock]:
    # Not the lock of the policy itself, which is taken to move a damaged one aside.
    purpose = f"run {session.run.run_id}: update of iteration {job.step}"
    return session.store.object_lock("policies", f"training-{key(spec)}", purpose).hold(wait=True)


def _spec(session: Session, job: UpdateJob, samples: Samples) -> dict[str, object]:
    ids = [reward_id(make_reward(reward)) for reward in job.rewards]
    pool_digest = None
    if session.recipe.update.advantage == "pool" or normalised(job.rewards):
        pool_digest = job.pool.open(session).digest(ids, job.pool.candidates)
    return policy_spec(session, job.parent, samples.digest(ids), pool_digest, job.step)


def _train(session: Session, job: UpdateJob, samples: Samples, spec: dict[str, object]) -> tuple[Ref, TrainResult]:
    learned = _advantages(session, job, samples)
    train_job = _train_job(session, job, samples, learned)
    parent = load_state(session.store, job.parent)
    state, result = session.worker.train(train_job, parent)
    session.run.journal.append({"iteration": job.step, "stage": "update", "seconds": result.seconds})
    metrics = {
        **result.metrics,
        "train/advantage_abs": float(np.nanmean(np.abs(learned.values))),
        "select/invalid_samples": float(learned.excluded),
    }
    return save_state(session.store, spec, state, metrics, result.seconds), result


def _advantages(session: Session, job: UpdateJob, samples: Samples) -> Advantages:
    explored = job.pool.open(session)
    scores = sample_scores(samples, job.rewards, pool_scales(job.pool, explored, job.rewards))
    kept = job.samples.kept
    pool = None
    if session.recipe.update.advantage == "pool":
        pool = proxy_scores(job.pool, explored, job.rewards)
    spec = session.recipe.update
    result = advantages(scores, kept, spec.advantage, pool, mean=spec.advantage_mean, std=spec.advantage_std)
    if not result.used.any():
        raise NothingToLearnError(
            f"iteration {job.step}: none of {counted(len(kept), 'group')} can be trained on ({int(kept.sum())} were "
            "kept). "
            "Look at select/ and reward/ metrics: rewards may be constant or failing"
        )
    return result


def _train_job(session: Session, job: UpdateJob, samples: Samples, learned: Advantages) -> TrainJob:
    rows, columns = np.nonzero(learned.used)
    latents = samples.latents()
    prompts = job.samples.prompts
    keys = tuple(prompts.keys[int(row)] for row in rows)
    candidates = tuple(int(job.samples.indices[row, column]) for row, column in zip(rows, columns, strict=True))
    return TrainJob(
        x0=torch.from_numpy(latents[rows, columns]),
        advantage=learned.values[rows, columns],
        texts=tuple(prompts[int(row)].text for row in rows),
        prompt_keys=keys,
        candidates=candidates,
        steps=job.samples.sampling.steps,
        update=session.recipe.update,
        run_seed=session.recipe.seed,
        iteration=job.step,
        paths=_paths(job.samples, samples, (rows, columns), keys, candidates),
        metadata=tuple(prompts[int(row)].metadata for row in rows),
        rewards=job.rewards,
    )


def _paths(
    job: SamplesJob,
    samples: Samples,
    where: tuple[NDArray[np.intp], NDArray[np.intp]],
    keys: tuple[str, ...],
    candidates: tuple[int, ...],
) -> Paths | None:
    if job.noise is None:
        return None
    seeds = [candidate_seed(job.exploration_seed, key, index) for key, index in zip(keys, candidates, strict=True)]
    starts = window_starts(job.noise.window, seeds)
    return Paths(job.noise, torch.from_numpy(samples.paths()[where]), tuple(starts))
