"""Pools for the tests of studies."""

from dataclasses import replace

from solrl_tasks.config.recipe import ExtensionSpec
from solrl_tasks.sampling.identity import exploration_seed
from solrl_tasks.stages.jobs import PoolJob
from solrl_tasks.stages.specs import BASE


def proxy(session, steps=2, engine=None, sampler=None, candidates=8, **changes):
    """Two held-out prompts of a micro recipe, explored as it says but for what is given."""
    recipe = session.recipe
    asked = {"steps": steps, "engine": engine and ExtensionSpec(name=engine), "sampler": sampler}
    job = PoolJob(
        step=0,
        stage="explore",
        prompts=session.prepared.heldout.subset([0, 1]),
        policy=BASE,
        exploration_seed=exploration_seed(recipe.seed, 0),
        sampling=recipe.explore.model_copy(update={name: value for name, value in asked.items() if value}),
        candidates=candidates,
        rewards=recipe.rewards,
    )
    return replace(job, **changes)
