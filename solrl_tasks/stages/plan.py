"""What each stage of an iteration will be asked, as a pure function of recipe, step and parent policy."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from solrl_tasks.config.recipe import RewardSpec
from solrl_tasks.sampling.identity import draw_prompts, exploration_seed
from solrl_tasks.stages.jobs import PoolJob, SamplesJob
from solrl_tasks.stages.learning import noise_of
from solrl_tasks.stages.resolutions import sampled_model
from solrl_tasks.stages.select import SelectJob
from solrl_tasks.stages.session import Session
from solrl_tasks.stages.specs import PolicyChoice
from solrl_tasks.stages.thumbnails import resolved
from solrl_tasks.stages.update import UpdateJob, first_policy
from solrl_tasks.store.policies import load_policy
from solrl_tasks.store.refs import Ref
from solrl_tasks.workers.jobs import Guidance
from solrl_tasks.workers.state import Role


def choose_policy(session: Session, ref: Ref, role: Role) -> PolicyChoice:
    """A role of a stored policy, under the digest of its weights."""
    return PolicyChoice(ref, role, load_policy(session.store, ref).meta["digests"][role])


def plan_explore(session: Session, step: int, parent: Ref) -> PoolJob:
    """The pool of an iteration: its prompts are drawn from (run seed, step), its noise is fresh."""
    recipe = session.recipe
    train = session.prepared.train
    rows = draw_prompts(len(train), recipe.prompts.per_iteration, recipe.seed, step - 1)
    return PoolJob(
        step=step,
        stage="explore",
        prompts=train.subset(rows),
        policy=choose_policy(session, parent, "old"),
        exploration_seed=exploration_seed(recipe.seed, step),
        sampling=recipe.explore,
        candidates=recipe.explore.candidates,
        rewards=recipe.rewards,
        keep=resolved(recipe.explore.store_images, sampled_model(recipe.model, recipe.explore).resolution),
        reuse=recipe.explore.reuse,
    )


def plan_select(session: Session, pool: PoolJob) -> SelectJob:
    """Keep by the recipe's rule."""
    return SelectJob(pool.step, pool, session.recipe.rewards, session.recipe.select)


def plan_regenerate(session: Session, pool: PoolJob, indices: NDArray[np.int64]) -> SamplesJob:
    """The chosen seeds of the pool's policy, precisely."""
    samples = _samples(session, "regenerate", pool, list(range(len(pool.prompts))), indices)
    return replace(samples, keep_paths=samples.noise is not None)


def plan_audit(session: Session, pool: PoolJob) -> SamplesJob | None:
    """Whole groups of the first prompts of the iteration, where an audit is due, sampled as what is trained on."""
    audit = session.recipe.audit
    if audit.every == 0 or (pool.step - 1) % audit.every:
        return None
    rows = list(range(audit.prompts))
    everyone = np.tile(np.arange(pool.candidates, dtype=np.int64), (len(rows), 1))
    return _samples(session, "audit", pool, rows, everyone)


def plan_update(session: Session, parent: Ref, pool: PoolJob, samples: SamplesJob) -> UpdateJob:
    """Train the parent on the samples."""
    return UpdateJob(pool.step, parent, pool, samples, session.recipe.rewards)


def plan_evaluate(session: Session, step: int, policy: Ref) -> PoolJob | None:
    """Held-out images of the policy's eval EMA, where an evaluation is due. Step 0 is always due."""
    spec = session.recipe.evaluate
    if spec.every == 0 or step % spec.every:
        return None
    return evaluation_job(session, step, choose_policy(session, policy, "ema"), evaluation_rewards(session))


def evaluation_job(
    session: Session, step: int, policy: PolicyChoice, rewards: tuple[RewardSpec, ...], stage: str = "evaluate"
) -> PoolJob:
    """Held-out images of any policy, as the recipe's evaluation samples them."""
    spec = session.recipe.evaluate
    return PoolJob(
        step=step,
        stage=stage,
        prompts=session.prepared.heldout.subset(list(range(spec.prompts))),
        policy=policy,
        exploration_seed=spec.seed,
        sampling=spec.sampling,
        candidates=spec.seeds,
        rewards=rewards,
        guidance=evaluation_guidance(session),
        keep=resolved(spec.store_images, session.recipe.model.resolution),
        features=(spec.features,),
        reuse=session.recipe.explore.reuse,
    )


def plan_baseline(session: Session) -> PoolJob:
    """The held-out images of the untrained policy, with which later ones are compared."""
    choice = choose_policy(session, first_policy(session), "ema")
    return evaluation_job(session, 0, choice, evaluation_rewards(session))


def evaluation_guidance(session: Session) -> Guidance | None:
    """How held-out images are guided, where that is not as the model is in training."""
    spec, model = session.recipe.evaluate, session.recipe.model
    asked = Guidance(
        model.guidance if spec.guidance is None else spec.guidance,
        model.guidance_scale if spec.guidance_scale is None else spec.guidance_scale,
    )
    return None if asked == Guidance(model.guidance, model.guidance_scale) else asked


def evaluation_rewards(session: Session) -> tuple[RewardSpec, ...]:
    """The trained rewards and those that are only watched, each once."""
    trained = session.recipe.rewards
    names = {reward.name for reward in trained}
    return trained + tuple(reward for reward in session.recipe.evaluate.rewards if reward.name not in names)


def _samples(session: Session, stage: str, pool: PoolJob, rows: list[int], indices: NDArray[np.int64]) -> SamplesJob:
    return SamplesJob(
        step=pool.step,
        stage=stage,
        prompts=pool.prompts.subset(rows),
        policy=pool.policy,
        exploration_seed=pool.exploration_seed,
        sampling=session.recipe.regenerate,
        noise=noise_of(session.recipe, pool.step),
        rewards=session.recipe.rewards,
        indices=indices,
        keep=resolved(session.recipe.explore.store_images, session.recipe.model.resolution),
        reuse=pool.reuse,
    )
