"""Two policies on the same held-out prompts and seeds: what differs between them, pair by pair."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from solrl_tasks.analysis.distances import paired_distance
from solrl_tasks.analysis.estimates import Estimate, mean_estimate, paired_difference, paired_units
from solrl_tasks.features.base import make_feature
from solrl_tasks.stages.evaluate import estimate, held_out_diversity, held_out_scores
from solrl_tasks.stages.jobs import PoolJob
from solrl_tasks.stages.session import Session
from solrl_tasks.stages.specs import PolicyChoice

Scores = NDArray[np.float64]
Metrics = dict[str, float | Estimate]


@dataclass(frozen=True)
class Comparison:
    """A policy beside a reference, both measured: filled pools of the same prompts, seeds, rewards and features.

    Attributes:
        after: scores of the policy by reward name, [P, seeds].
        before: those of the reference.
        diversity: of the policy and of the reference, [P] each.
        distance: between images of one prompt and seed, [P].
    """

    after: dict[str, Scores]
    before: dict[str, Scores]
    diversity: tuple[Scores, Scores]
    distance: Scores

    @classmethod
    def of(cls, session: Session, after: PoolJob, before: PoolJob) -> "Comparison":
        """Read both from the store.

        Raises:
            IncompleteError: one of them is not filled.
        """
        policy, reference = after.open(session), before.open(session)
        (feature,), (name,) = after.features, after.feature_ids()
        vectors = [pool.features(name, after.candidates) for pool in (policy, reference)]
        return cls(
            after=held_out_scores(after, policy),
            before=held_out_scores(before, reference),
            diversity=(held_out_diversity(after, policy), held_out_diversity(before, reference)),
            distance=paired_distance(vectors[0], vectors[1], make_feature(feature).metric),
        )

    def gains(self) -> dict[str, Estimate]:
        """Mean difference by reward, and its error over prompts: far better known than either mean."""
        return {name: paired_units(scores, self.before[name]) for name, scores in self.after.items()}


def policy_metrics(session: Session, job: PoolJob) -> Metrics:
    """How good a policy's held-out images are, how much they vary, and how large its adapter is."""
    pool = job.open(session)
    metrics: Metrics = {f"eval/{name}": estimate(values) for name, values in held_out_scores(job, pool).items()}
    if job.candidates > 1:
        metrics["policy/diversity"] = mean_estimate(held_out_diversity(job, pool))
    return metrics | {"policy/lora_norm": lora_norm(session, job.policy)}


def comparison_metrics(compared: Comparison) -> Metrics:
    """What has changed against the reference."""
    metrics: Metrics = {f"eval/gain_{name}": gain for name, gain in compared.gains().items()}
    after, before = compared.diversity
    if np.isfinite(after).any():
        metrics["policy/diversity_change"] = paired_difference(after, before)
    return metrics | {"policy/distance": mean_estimate(compared.distance)}


def lora_norm(session: Session, policy: PolicyChoice) -> float:
    """Frobenius norm of all that the policy adds to the base's weights; 0 for the base."""
    lora = policy.load(session)
    return 0.0 if lora is None else lora.norm
