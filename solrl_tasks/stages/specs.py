"""What goes into the key of each object: all that can change its bits, and nothing else (the table of the design)."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from solrl_tasks.config.extensions import find_extension, parse_options
from solrl_tasks.config.recipe import ExtensionSpec, ModelSpec, RewardSpec, SamplingSpec, UpdateSpec
from solrl_tasks.config.stochastic import Stochastic
from solrl_tasks.models.lora import BASE_DIGEST, LoraState
from solrl_tasks.rewards.base import reward_id
from solrl_tasks.rewards.scoring import make_reward
from solrl_tasks.sampling.identity import SEED_SCHEME
from solrl_tasks.stages.resolutions import lowered_spec, sampled_model
from solrl_tasks.stages.session import Session
from solrl_tasks.store.refs import Ref
from solrl_tasks.workers.jobs import Guidance
from solrl_tasks.workers.policies import load_lora
from solrl_tasks.workers.reduction import REDUCTION
from solrl_tasks.workers.state import Role

ALGO_VERSION = 1
"""Raised when a change of code changes results; older objects are then left alone and new ones made."""

Spec = dict[str, Any]


@dataclass(frozen=True)
class PolicyChoice:
    """Which weights to sample with: a role of a stored policy, or the base.

    ``digest`` is of the LoRA's value, so the base, a fresh LoRA and a policy that changes nothing are the same choice.
    """

    ref: Ref | None
    role: Role
    digest: str

    def load(self, session: Session) -> LoraState | None:
        """The weights, read from the store; None is the base."""
        if self.ref is None or self.digest == BASE_DIGEST:
            return None
        return load_lora(session.store, self.ref, self.role)


BASE = PolicyChoice(None, "old", BASE_DIGEST)


def extension_spec(kind: str, spec: ExtensionSpec) -> Spec:
    """Name, version and full options of an extension: a default that is written out is the same as one left out."""
    extension = find_extension(kind, spec.name)
    options = parse_options(kind, extension, dict(spec.options))
    return {
        "name": spec.name,
        "version": extension.version,
        "options": {} if options is None else options.model_dump(mode="json"),
    }


def family_spec(session: Session) -> Spec:
    """Name and version of the model family: its sigma grid and its conditioning decide bits."""
    name = session.recipe.model.family
    return {"name": name, "version": find_extension("family", name).version}


def conditioning_spec(model: ModelSpec) -> Spec:
    """How the model is conditioned. Its files stand in the base digest, its precisions in the numerics."""
    elsewhere = {"family", "source", "revision", "dtype", "text_dtype", "vae_dtype", "vae_execution"}
    return model.model_dump(mode="json", exclude={*elsewhere, "text_encoders"})


def sampling_spec(session: Session, sampling: SamplingSpec, guidance: Guidance | None = None) -> Spec:
    """Everything about sampling that decides bits, the model's conditioning and the numerics included."""
    model = sampled_model(session.recipe.model, sampling)
    if guidance is not None:
        model = model.model_copy(update=asdict(guidance))
    return lowered_spec(session.recipe.model, sampling) | {
        "family": family_spec(session),
        "engine": extension_spec("engine", sampling.engine),
        "sampler": extension_spec("sampler", ExtensionSpec(name=sampling.sampler)),
        "steps": sampling.steps,
        "chunk": sampling.chunk,
        "conditioning": conditioning_spec(model),
        "numerics": session.worker.site.numerics(model, sampling.engine),
    }


def noise_spec(noise: Stochastic, kept: bool) -> Spec:
    """Where paths have noise, of which kind, and whether their states are kept (in float32)."""
    step = find_extension("sde step", noise.step)
    return {**noise.model_dump(mode="json"), "step": f"{step.name}@{step.version}", "kept": kept}


def pool_spec(
    session: Session,
    policy: PolicyChoice,
    prompts_digest: str,
    exploration_seed: int,
    sampling: SamplingSpec,
    guidance: Guidance | None = None,
    noise: Stochastic | None = None,
) -> Spec:
    """Of a pool: not the number of candidates, not the rewards, not what is kept."""
    return ({} if noise is None else {"noise": noise_spec(noise, False)}) | {
        "kind": "pool",
        "algo_version": ALGO_VERSION,
        "base": session.base_digest,
        "policy": policy.digest,
        "prompts": prompts_digest,
        "exploration_seed": exploration_seed,
        "seed_scheme": SEED_SCHEME,
        **sampling_spec(session, sampling, guidance),
    }


def rewards_spec(rewards: Sequence[RewardSpec]) -> list[Spec]:
    """Name, version and weight of each reward, and what it is normalised over, in the order of names."""
    return [
        {"id": reward_id(make_reward(reward)), "weight": reward.weight}
        | ({} if reward.normalize == "none" else {"normalize": reward.normalize})
        for reward in sorted(rewards, key=lambda r: r.name)
    ]


def selection_spec(pool: Ref, rewards: Sequence[RewardSpec], candidates: int, keep: int, rule: str) -> Spec:
    """Of a selection.

    The pool's values are part of it: a pool that was damaged and filled again elsewhere may rank differently, and the
    old choice is then not taken for its own.
    """
    return {
        "kind": "selection",
        "algo_version": ALGO_VERSION,
        "pool": pool.key,
        "values": pool.digest,
        "rewards": rewards_spec(rewards),
        "candidates": candidates,
        "keep": keep,
        "rule": extension_spec("selection rule", ExtensionSpec(name=rule)),
    }


def samples_spec(
    session: Session,
    selection_digest: str,
    sampling: SamplingSpec,
    noise: Stochastic | None = None,
    keep_paths: bool = False,
) -> Spec:
    """Of regenerated samples: the selection stands for policy, prompts and seeds."""
    return ({} if noise is None else {"noise": noise_spec(noise, keep_paths)}) | {
        "kind": "samples",
        "algo_version": ALGO_VERSION,
        "selection": selection_digest,
        "base": session.base_digest,
        **sampling_spec(session, sampling),
    }


def initial_policy_spec(session: Session) -> Spec:
    """Of the policy before any update."""
    return {
        "kind": "policy",
        "algo_version": ALGO_VERSION,
        "base": session.base_digest,
        "family": family_spec(session),
        "lora": session.recipe.update.lora.model_dump(mode="json"),
    }


def policy_spec(session: Session, parent: Ref, samples_digest: str, pool_digest: str | None, iteration: int) -> Spec:
    """Of the policy after an update. ``pool_digest`` is given where pool statistics enter advantages or scores."""
    update: UpdateSpec = session.recipe.update
    return {
        "kind": "policy",
        "algo_version": ALGO_VERSION,
        "parent": parent.digest,
        "samples": samples_digest,
        "pool": pool_digest,
        "rewards": rewards_spec(session.recipe.rewards),
        "objective": extension_spec("objective", update.objective),
        "update": update.model_dump(mode="json", exclude={"objective", "lora"}),
        "noise": {"run_seed": session.recipe.seed, "iteration": iteration, "seed_scheme": SEED_SCHEME},
        "family": family_spec(session),
        "layout": {"reduction": REDUCTION, "micro_batch": update.micro_batch},
        "conditioning": conditioning_spec(session.recipe.model),
        "numerics": session.worker.site.numerics(session.recipe.model, None),
    }


def evaluation_spec(pool: Ref, rewards: Sequence[RewardSpec], seeds: int, features: Sequence[str]) -> Spec:
    """Of an evaluation: the pool of held-out images it summarises, and its values; ``features`` by name and version."""
    return {
        "kind": "evaluation",
        "algo_version": ALGO_VERSION,
        "pool": pool.key,
        "values": pool.digest,
        "rewards": sorted(reward_id(make_reward(reward)) for reward in rewards),
        "seeds": seeds,
        "features": sorted(features),
    }
