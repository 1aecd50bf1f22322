"""A stored policy measured for itself, beside another, on held-out prompts: after training, with any rewards."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from solrl_tasks.analysis.estimates import Estimate, confidence_interval, share_better
from solrl_tasks.config.load import parse_recipe
from solrl_tasks.config.recipe import Recipe, RewardSpec
from solrl_tasks.config.words import counted
from solrl_tasks.stages.comparison import Comparison, Metrics, comparison_metrics, policy_metrics
from solrl_tasks.stages.evaluate import EvaluateJob, estimate, evaluate, stored_evaluation
from solrl_tasks.stages.heldout_pictures import heldout_grid
from solrl_tasks.stages.iteration import HELDOUT, Call, committed_summary, direct
from solrl_tasks.stages.jobs import PoolJob
from solrl_tasks.stages.outcome import StageOutcome
from solrl_tasks.stages.plan import evaluation_job
from solrl_tasks.stages.recorded import PolicyName, find_policy
from solrl_tasks.stages.session import Session
from solrl_tasks.stages.summary import make_summary
from solrl_tasks.store import atomic
from solrl_tasks.store.errors import DamagedError
from solrl_tasks.store.keys import digest
from solrl_tasks.store.refs import Ref
from solrl_tasks.store.runs import EVALUATION_PREFIX, RunView
from solrl_tasks.tracking.summary import Summary

ABOUT = "evaluation.json"
RUN_LENGTH = 60


@dataclass(frozen=True)
class PolicyEvaluation:
    """What is measured: a policy whose step is known, the one it is compared with, and the rewards that score both."""

    policy: PolicyName
    against: PolicyName
    rewards: tuple[RewardSpec, ...]

    @property
    def step(self) -> int:
        """The step under which the results stand: that of the policy, 0 for the untrained model."""
        return self.policy.step or 0

    def run_id(self, recipe: Recipe) -> str:
        """The run that holds the results: the same for the same question."""
        tree = [recipe.model_dump(mode="json"), str(self.policy), str(self.against)]
        named = (self.policy.run_id or "base")[:RUN_LENGTH]
        return f"{EVALUATION_PREFIX}{named}-{digest([*tree, [r.model_dump(mode='json') for r in self.rewards]])[:8]}"


def ask_rewards(recipe: Recipe, names: Sequence[str] | None) -> tuple[RewardSpec, ...]:
    """The rewards of some names: as the recipe has them, else with their default options. None is all of the recipe."""
    trained = {reward.name for reward in recipe.rewards}
    known = {reward.name: reward for reward in (*recipe.evaluate.rewards, *recipe.rewards)}
    if names is None:
        watched = tuple(reward for reward in recipe.evaluate.rewards if reward.name not in trained)
        return (*recipe.rewards, *watched)
    return tuple(known.get(name) or RewardSpec(name=name) for name in dict.fromkeys(names))


def evaluation_recipe(config: Mapping[str, Any], asked: Mapping[str, Any], rewards: Sequence[str] | None) -> Recipe:
    """The recipe of a run with what an evaluation asks for on top.

    Args:
        config: of the run, its chunks resolved.
        asked: dotted fields of a recipe, such as ``evaluate.seeds``; None is left out.

    Raises:
        RecipeError: a value is not allowed.
    """
    given = {"evaluate.every": 1, "prompts.without": _split_before(config, asked), **asked}
    recipe = parse_recipe(config, given, "the run's recipe")
    spec = recipe.evaluate
    engine = spec.sampling.engine.model_dump(mode="json")
    trained = {reward.name for reward in recipe.rewards}
    watched = [r.model_dump(mode="json") for r in ask_rewards(recipe, rewards) if r.name not in trained]
    overrides = {
        # Neither explored nor regenerated: a device that lacks those engines can evaluate all the same.
        "explore.engine": engine,
        "regenerate.engine": engine,
        "evaluate.rewards": watched,
        "evaluate.sampling.chunk": _fitting(spec.sampling.chunk, spec.seeds),
    }
    made = parse_recipe(recipe.model_dump(mode="json"), overrides, "the run's recipe")
    # Who computes stands in no dump: it changes no result.
    return made.model_copy(update={"workers": recipe.workers})


def _split_before(config: Mapping[str, Any], asked: Mapping[str, Any]) -> Any:
    """The split by which the run held prompts out, where others take their place: it did not train on those either."""
    heldout = config["prompts"]["heldout"]
    splits = isinstance(heldout, Mapping) and "fraction" in heldout
    return heldout if splits and asked.get("prompts.heldout") is not None else None


def _fitting(chunk: int | str, seeds: int) -> int | str:
    """The largest chunk up to the run's own of which whole ones hold the seeds: a block is always computed whole."""
    if isinstance(chunk, str):
        return chunk
    return next(size for size in range(min(chunk, seeds), 0, -1) if seeds % size == 0)


def measure_policy(session: Session, asked: PolicyEvaluation, call: Call = direct) -> Summary:
    """Evaluate a policy and its reference, compare them pair by pair, and commit the result.

    What the store holds of either is used again; a result that is committed and whole is returned at once.

    Raises:
        StudyError: a policy is not there.
    """
    atomic.write_sealed(session.run.path / ABOUT, {"policy": str(asked.policy), "against": str(asked.against)})
    reference = _job(session, asked, asked.against, "reference")
    policy = _job(session, asked, asked.policy, "evaluate")
    committed = committed_summary(session, asked.step)
    if committed is not None and _whole(session, policy) and _whole(session, reference):
        return committed
    outcomes = {job.stage: call(evaluate, session, EvaluateJob(asked.step, job)) for job in (reference, policy)}
    if committed is not None:
        return committed
    summary = make_summary(
        session,
        asked.step,
        metrics=_metrics(session, policy, reference),
        outcomes=outcomes,
        refs=_refs(session, outcomes, policy, reference),
        images=_pictures(session, asked, policy, reference),
        notes=_said(session, asked, policy),
    )
    for name, ref in summary.refs.items():
        session.run.note_ref(asked.step, name, ref)
    session.run.commit_summary(asked.step, summary.model_dump(mode="json"))
    return summary


def _said(session: Session, asked: PolicyEvaluation, job: PoolJob) -> list[str]:
    model, led = session.recipe.model, job.guidance
    guidance = (model.guidance, model.guidance_scale) if led is None else (led.guidance, led.guidance_scale)
    return [
        f"{asked.policy}, against {asked.against}",
        f"the run trained on {', '.join(reward.name for reward in session.recipe.rewards)}",
        f"{counted(job.candidates, 'image')} of each of {counted(len(job.prompts), 'prompt')}, "
        f"{job.sampling.engine.name}, "
        f"{counted(job.sampling.steps, 'step')}, guidance {guidance[0]:g}, guidance scale {guidance[1]:g}",
    ]


def evaluated(view: RunView) -> dict[str, str]:
    """Names of the ``policy`` that a run of the store evaluates and of what it is compared ``against``; else empty."""
    try:
        return dict(atomic.read_sealed(view.path / ABOUT))
    except (FileNotFoundError, DamagedError):
        return {}


def interval_metrics(compared: Comparison) -> Metrics:
    """The reference's own means, 95 % confidence bounds of the gains, and on how many prompts the policy is better."""
    metrics: Metrics = {}
    for name, gain in compared.gains().items():
        low, high = confidence_interval(gain)
        metrics |= {
            f"compare/reference_{name}": estimate(compared.before[name]),
            f"compare/low_{name}": low,
            f"compare/high_{name}": high,
            f"compare/better_{name}": share_better(compared.after[name], compared.before[name]),
        }
    return metrics


def _job(session: Session, asked: PolicyEvaluation, name: PolicyName, stage: str) -> PoolJob:
    return evaluation_job(session, asked.step, find_policy(session, name), asked.rewards, stage)


def _whole(session: Session, job: PoolJob) -> bool:
    return not job.missing(session) and stored_evaluation(session, job) is not None


def _metrics(session: Session, policy: PoolJob, reference: PoolJob) -> dict[str, float | Estimate]:
    compared = Comparison.of(session, policy, reference)
    return {**policy_metrics(session, policy), **comparison_metrics(compared), **interval_metrics(compared)}


def _refs(
    session: Session, outcomes: Mapping[str, StageOutcome], policy: PoolJob, reference: PoolJob
) -> dict[str, Ref]:
    refs = {name: outcome.ref for name, outcome in outcomes.items() if outcome.ref is not None}
    for job in (policy, reference):
        refs[f"{job.stage}_pool"] = job.open(session).ref(job.reward_ids(), job.candidates)
    named = {"evaluated": policy.policy.ref, "against": reference.policy.ref}
    return refs | {name: ref for name, ref in named.items() if ref is not None}


def _pictures(session: Session, asked: PolicyEvaluation, policy: PoolJob, reference: PoolJob) -> list[str]:
    names = _short(asked.policy), _short(asked.against)
    picture = heldout_grid(session, policy, reference, names, str(asked.policy))
    if picture is None:
        return []
    atomic.write_bytes(session.run.iteration_dir(asked.step) / HELDOUT, picture)
    return [HELDOUT]


def _short(name: PolicyName) -> str:
    return "Untrained" if name.run_id is None else f"{name.run_id} {name.step}"
