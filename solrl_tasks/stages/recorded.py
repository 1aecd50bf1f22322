"""Policies that runs of a store left behind, by name."""

from dataclasses import dataclass, replace

from solrl_tasks.stages.plan import choose_policy
from solrl_tasks.stages.session import Session
from solrl_tasks.stages.specs import BASE, PolicyChoice
from solrl_tasks.store.root import Store
from solrl_tasks.store.runs import view_run
from solrl_tasks.store.trims import require_untrimmed
from solrl_tasks.tracking.summary import Summary
from solrl_tasks.workers.state import Role


class StudyError(ValueError):
    """A measurement that cannot be made of what the store holds."""


@dataclass(frozen=True)
class PolicyName:
    """A role of the policy that an iteration of a run ended with.

    Attributes:
        run_id: None is the untrained model, which has neither step nor role.
        step: None is the last committed one.
    """

    run_id: str | None = None
    step: int | None = None
    role: Role = "ema"

    def __str__(self) -> str:
        if self.run_id is None:
            return "the untrained model"
        return f"{self.run_id}, iteration {'?' if self.step is None else self.step}, {self.role}"


def resolve_policy(store: Store, name: PolicyName) -> PolicyName:
    """The same policy with its step.

    Raises:
        StudyError: there is no such iteration, or a step of no run is asked for.
        MissingObjectError: there is no such run.
        DamagedError: the last iteration is asked for, and a summary is damaged.
    """
    if name.run_id is None:
        if name.step is not None:
            raise StudyError(f"iteration {name.step} is asked for, but of which run? Name the run too")
        return name
    view = view_run(store, name.run_id)
    # The last iteration is not known where one of those there are cannot be read.
    steps = sorted(view.whole_summaries() if name.step is None else view.summaries())
    step = max(steps, default=None) if name.step is None else name.step
    if step is None or step not in steps:
        asked = "" if name.step is None else f" {name.step}"
        raise StudyError(f"run {name.run_id} has no committed iteration{asked}: it has {steps or 'none'}")
    return replace(name, step=step)


def find_policy(session: Session, name: PolicyName) -> PolicyChoice:
    """The weights that a name stands for.

    Raises:
        StudyError: there is no such iteration, or the run trained another model, or none.
        TrimmedError: the iteration was trimmed; the message says what was kept.
    """
    found = resolve_policy(session.store, name)
    if found.run_id is None or found.step is None:
        return BASE
    view = view_run(session.store, found.run_id)
    if view.inputs().get("model.source") not in (None, session.base_digest):
        source = session.recipe.model.source
        raise StudyError(f"run {found.run_id} trained another model than {source}: give its own recipe")
    policy = Summary.model_validate(view.summaries()[found.step]).refs.get("policy")
    if policy is None:
        raise StudyError(f"run {found.run_id} trained no policy: it is a study or an evaluation itself")
    require_untrimmed(view, found.step)
    return choose_policy(session, policy, found.role)
