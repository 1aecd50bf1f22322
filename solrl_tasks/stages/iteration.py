"""One iteration after the other: the order of the stages, written once for every way of running them."""

from collections.abc import Callable, Iterator
from typing import Any

from solrl_tasks.stages.course import Course
from solrl_tasks.stages.evaluate import EvaluateJob, evaluate, stored_evaluation
from solrl_tasks.stages.explore import explore
from solrl_tasks.stages.heldout_pictures import heldout_grid
from solrl_tasks.stages.jobs import SamplesJob
from solrl_tasks.stages.outcome import StageOutcome
from solrl_tasks.stages.pictures import iteration_grid
from solrl_tasks.stages.plan import (
    plan_audit,
    plan_baseline,
    plan_evaluate,
    plan_explore,
    plan_regenerate,
    plan_select,
    plan_update,
)
from solrl_tasks.stages.quantize import quantize
from solrl_tasks.stages.regenerate import regenerate
from solrl_tasks.stages.select import select, stored_selection
from solrl_tasks.stages.session import Session
from solrl_tasks.stages.summary import build_summary
from solrl_tasks.stages.trimmed import check_kept
from solrl_tasks.stages.update import first_policy, update
from solrl_tasks.store.atomic import write_bytes
from solrl_tasks.store.errors import DamagedError
from solrl_tasks.store.refs import Ref
from solrl_tasks.store.selections import load_selection
from solrl_tasks.store.trims import read_trim
from solrl_tasks.tracking.summary import Summary
from solrl_tasks.workers.policies import policy_intact

GRID = "grid.png"
HELDOUT = "heldout.png"
StageFunction = Callable[[Session, Any], StageOutcome]
Call = Callable[[StageFunction, Session, Any], StageOutcome]


class DivergedError(RuntimeError):
    """What was lost cannot be made again bit for bit, and others depend on it."""


def direct(stage: StageFunction, session: Session, job: Any) -> StageOutcome:
    """Run a stage as the plain function it is."""
    return stage(session, job)


def run_all(session: Session, call: Call = direct) -> Iterator[Summary]:
    """Baseline and every iteration of the recipe, each committed before the next begins.

    What the store holds is verified and not done again; a run that was killed goes on where it stopped.
    """
    for step in range(session.recipe.iterations + 1):
        yield run_step(session, step, call)


def run_step(session: Session, step: int, call: Call = direct) -> Summary:
    """One step of a run: 0 evaluates the untrained policy, 1 and up are iterations.

    A committed step whose objects are all intact is returned at once. One whose objects were deleted or damaged goes
    through its stages again, which do only what is missing; its committed summary stays. One that was trimmed, or that
    began from a policy that was, is not made again: see ``check_kept``.
    """
    committed = committed_summary(session, step)
    trim = read_trim(session.run)
    if committed is not None and trim.concerns(step):
        check_kept(session, committed, trim)
        return committed
    if committed is not None and step_intact(session, step):
        _note_refs(session, committed)
        return committed
    if committed is not None:
        session.reporter.note(f"step {step}: the store lacks something that it held; the missing part is done again")
    course = _run_stages(session, step, call)
    if committed is not None:
        _compare(session, committed, course)
        return committed
    summary = build_summary(session, course, _save_pictures(session, course))
    _note_refs(session, summary)
    session.run.commit_summary(step, summary.model_dump(mode="json"))
    return summary


def committed_summary(session: Session, step: int) -> Summary | None:
    """The summary that ends a step, if it was committed."""
    found = session.run.summary(step)
    return None if found is None else Summary.model_validate(found)


def policy_after(session: Session, step: int) -> Ref:
    """The policy that a step left behind; step 0 leaves the untrained one.

    Raises:
        LookupError: the step is not committed yet.
    """
    if step == 0:
        return first_policy(session)
    summary = committed_summary(session, step)
    if summary is None:
        raise LookupError(f"step {step} of run {session.run.run_id} is not committed: run it first")
    return summary.refs["update"]


def step_intact(session: Session, step: int) -> bool:
    """Whether everything that a committed step made is in the store, verified. Loads no weights."""
    policy = policy_after(session, step)
    if not policy_intact(session.store, policy):
        return False
    if step > 0 and not _training_intact(session, step):
        return False
    evaluation = plan_evaluate(session, step, policy)
    if evaluation is None:
        return True
    return not evaluation.missing(session) and stored_evaluation(session, evaluation) is not None


def _training_intact(session: Session, step: int) -> bool:
    pool = plan_explore(session, step, policy_after(session, step - 1))
    if pool.missing(session):
        return False
    chosen = stored_selection(session, plan_select(session, pool))
    if chosen is None:
        return False
    audit = plan_audit(session, pool)
    jobs = [plan_regenerate(session, pool, chosen.indices), *([audit] if audit else [])]
    return all(_samples_intact(session, job) for job in jobs)


def _samples_intact(session: Session, job: SamplesJob) -> bool:
    samples = job.open(session)
    with samples.lock():
        return not samples.missing(job.reward_ids(), images=job.images)


def _run_stages(session: Session, step: int, call: Call) -> Course:
    if step == 0:
        ref = first_policy(session)
        course = Course(step, ref, ref)
    else:
        parent = policy_after(session, step - 1)
        course = Course(step, parent, parent)
        _train(session, course, call)
    course.evaluation = plan_evaluate(session, step, course.policy)
    if course.evaluation is not None:
        job = EvaluateJob(step, course.evaluation)
        _run(session, course, "evaluate", evaluate, job, call)
    return course


def _train(session: Session, course: Course, call: Call) -> None:
    pool = course.pool = plan_explore(session, course.step, course.parent)
    _run(session, course, "quantize", quantize, pool, call)
    _run(session, course, "explore", explore, pool, call)
    chosen = _run(session, course, "select", select, plan_select(session, pool), call)
    assert chosen.ref is not None
    indices = load_selection(session.store, chosen.ref).indices
    samples = course.samples = plan_regenerate(session, pool, indices)
    _run(session, course, "regenerate", regenerate, samples, call)
    course.audit = plan_audit(session, pool)
    if course.audit is not None:
        _run(session, course, "audit", regenerate, course.audit, call)
    learned = _run(session, course, "update", update, plan_update(session, course.parent, pool, samples), call)
    assert learned.ref is not None
    course.policy = learned.ref


def _run(session: Session, course: Course, name: str, stage: StageFunction, job: Any, call: Call) -> StageOutcome:
    outcome = course.outcomes[name] = call(stage, session, job)
    if outcome.ref is not None:
        session.run.note_ref(course.step, name, outcome.ref)
    return outcome


def _save_pictures(session: Session, course: Course) -> list[str]:
    pictures = {GRID: iteration_grid(session, course), HELDOUT: _heldout(session, course)}
    made = {name: picture for name, picture in pictures.items() if picture is not None}
    for name, picture in made.items():
        write_bytes(session.run.iteration_dir(course.step) / name, picture)
    return list(made)


def _heldout(session: Session, course: Course) -> bytes | None:
    if course.evaluation is None or course.step == 0:
        return None
    names = "Eval average", "Untrained"
    title = f"{session.run.run_id}, iteration {course.step}"
    return heldout_grid(session, course.evaluation, plan_baseline(session), names, title)


def _note_refs(session: Session, summary: Summary) -> None:
    # What is noted is what garbage collection spares: it must outlive damage to its own file.
    try:
        noted = session.run.refs(summary.step)
    except DamagedError:
        noted = {}
    lacking = sorted(summary.refs.keys() - noted.keys())
    if lacking:
        session.run.note_refs(summary.step, {name: summary.refs[name] for name in lacking})


def _compare(session: Session, committed: Summary, course: Course) -> None:
    for name, outcome in course.outcomes.items():
        before = committed.refs.get(name)
        if before is None or outcome.ref is None or before.digest == outcome.ref.digest:
            continue
        found = f"step {committed.step}: {name} was done again and differs from what the run recorded"
        if name == "update":
            raise DivergedError(
                f"{found}, so its later steps would no longer follow from it. Hardware, threads or libraries have "
                "changed since. Run again as it was first run, restore the policy from a backup, or start a new run_id"
            )
        session.reporter.note(f"{found}: hardware, threads or libraries have changed")
