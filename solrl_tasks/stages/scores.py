"""The one score that selects and trains, from the raw rewards in the store.

A reward that is normalised is put on the scale of the *explored* candidates, in selection and in the update alike. The
kept samples could not give one: selection has widened the spread of whatever it chose by, so that a reward would count
the less in the update the more it had counted in the selection.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from solrl_tasks.config.recipe import RewardSpec
from solrl_tasks.rewards.base import reward_id
from solrl_tasks.rewards.scoring import make_reward
from solrl_tasks.selection.scores import Scale, measure_scale, weighted_scores
from solrl_tasks.stages.jobs import PoolJob
from solrl_tasks.store.pool import Pool
from solrl_tasks.store.samples import Samples

Scores = NDArray[np.float64]
Scales = Mapping[str, Scale]


def normalised(rewards: Sequence[RewardSpec]) -> tuple[RewardSpec, ...]:
    """The rewards whose score depends on the rest of the pool; one of weight 0 has no part in any score."""
    return tuple(reward for reward in rewards if reward.normalize != "none" and reward.weight != 0)


def pool_scales(job: PoolJob, pool: Pool, rewards: Sequence[RewardSpec]) -> dict[str, Scale]:
    """The scale of every normalised reward, over the candidates of a filled pool."""
    scales = {}
    for reward in normalised(rewards):
        values = pool.rewards(reward_id(make_reward(reward)), job.candidates)
        scales[reward.name] = measure_scale(values, "group" if reward.normalize == "group" else "pool")
    return scales


def proxy_scores(job: PoolJob, pool: Pool, rewards: Sequence[RewardSpec]) -> Scores:
    """Scores of explored candidates, [P, N]; NaN where one is invalid."""
    return _weighted(rewards, lambda identity: pool.rewards(identity, job.candidates), pool_scales(job, pool, rewards))


def sample_scores(samples: Samples, rewards: Sequence[RewardSpec], scales: Scales) -> Scores:
    """Scores of precise samples, [P, K]; NaN where one is invalid or its group was left out.

    Args:
        scales: from ``pool_scales`` of the pool that they were chosen from, for the same prompts.
    """
    return _weighted(rewards, samples.rewards, scales)


def _weighted(rewards: Sequence[RewardSpec], read: Callable[[str], NDArray[np.float32]], scales: Scales) -> Scores:
    values = {reward.name: read(reward_id(make_reward(reward))) for reward in rewards}
    return weighted_scores(values, {reward.name: reward.weight for reward in rewards}, scales)
