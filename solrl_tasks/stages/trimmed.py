"""Iterations of a trimmed run: what they kept is checked by what they recorded, and nothing is made again."""

from solrl_tasks.stages.session import Session
from solrl_tasks.store.errors import DamagedError, StoreError
from solrl_tasks.store.evaluations import load_evaluation
from solrl_tasks.store.policies import load_policy
from solrl_tasks.store.pool import Pool
from solrl_tasks.store.refs import Ref
from solrl_tasks.store.root import Store
from solrl_tasks.store.samples import Samples
from solrl_tasks.store.selections import load_selection
from solrl_tasks.store.trims import Trim
from solrl_tasks.tracking.summary import Summary

_LOADERS = {
    "policies": load_policy,
    "selections": load_selection,
    "evaluations": load_evaluation,
    "pools": Pool.load,
    "samples": Samples.load,
}


def check_kept(session: Session, committed: Summary, trim: Trim) -> None:
    """Look at what a committed step kept, where it or the policy that it began from was trimmed.

    Policies, selections and evaluations are compared with their digests, pools and samples only looked for: what they
    would be asked for follows from a policy that may be gone. What is lost is said, as it cannot be made again.

    Raises:
        StoreError: the next step is to be made and needs a policy that is lost.
    """
    step = committed.step
    if step in trim.steps and step - 1 not in trim.steps:
        rule = trim.notes[-1]["rule"] if trim.notes else ""
        session.reporter.note(f"step {step} and others were trimmed on purpose ({rule}): they are not made again")
    lost = [
        f"{name} ({why})"
        for name, ref in sorted(committed.refs.items())
        if (ref.kind, ref.key) not in trim.objects and (why := _lost(session.store, ref))
    ]
    if not lost:
        return
    found = f"step {step}: {'; '.join(lost)}: it cannot be made again, because what it was made from was trimmed"
    policy = committed.refs.get("policy")
    needed = step < session.recipe.iterations and session.run.summary(step + 1) is None
    if needed and policy is not None and _lost(session.store, policy):
        raise StoreError(f"{found}. The next step begins from it: put it back from a copy, or use another run id")
    session.reporter.note(f"{found}. Whoever asks for it is refused until it is put back from a copy")


def _lost(store: Store, ref: Ref) -> str:
    try:
        _LOADERS[ref.kind](store, ref)
    except DamagedError as error:
        return error.fault
    except StoreError as error:
        return str(error)
    return ""
