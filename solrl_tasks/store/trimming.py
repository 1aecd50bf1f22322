"""Trimming a run: policies and samples of some iterations go, what it found stays."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from solrl_tasks.store import places
from solrl_tasks.store.errors import StoreError
from solrl_tasks.store.gc import Garbage, alone, holders, remove_unused
from solrl_tasks.store.refs import Ref
from solrl_tasks.store.root import Store
from solrl_tasks.store.runs import RunView, view_run
from solrl_tasks.store.trims import PARENT, Trim, read_trim, write_trim

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Keep:
    """Which iterations keep what they made: those that any rule names. The last committed one and step 0 always do.

    Attributes:
        last: so many at the end.
        best: so many with the highest ``metric``; of equal ones the later.
        every: those whose number is a multiple; 0 is none.
        pools: let explored pools go too, not only policies and samples.
    """

    last: int = 1
    best: int = 0
    metric: str = ""
    every: int = 0
    pools: bool = False

    def __str__(self) -> str:
        best = f"the best {self.best} by {self.metric}" if self.best else ""
        every = f"every {self.every}th" if self.every else ""
        rules = ", ".join(rule for rule in (f"the last {self.last}", best, every) if rule)
        return f"kept {rules}" + (", without pools" if self.pools else "")


@dataclass(frozen=True)
class TrimPlan:
    """What trimming would do.

    Attributes:
        kept: iterations that keep everything, with the rule that says so.
        before: the mark that there was.
        trim: the whole mark, with what was trimmed before.
        objects: what would be removed: nothing else refers to it.
        shared: paths of what the run lets go and others refer to, which stays, and who they are.
    """

    run_id: str
    kept: dict[int, str]
    before: Trim
    trim: Trim
    newly: tuple[int, ...]
    objects: tuple[Garbage, ...]
    shared: dict[str, tuple[str, ...]]


def plan_trim(store: Store, run_id: str, keep: Keep) -> TrimPlan:
    """What a rule would let go; nothing is touched.

    Raises:
        MissingObjectError: there is no such run.
        StoreError: the rule names a metric that no iteration has, or the run has no iteration to trim.
        DamagedError: references cannot be read.
    """
    run = view_run(store, run_id)
    summaries = run.summaries()
    if not any(step > 0 for step in summaries):
        raise StoreError(f"run {run_id} has no committed iteration, so there is nothing to trim")
    before = read_trim(run)
    kept = _kept(run_id, summaries, before, keep)
    named = {step: {**run.refs(step), **_recorded(summaries.get(step))} for step in run.iterations()}
    steps = {step: _let_go(refs, keep) for step, refs in named.items() if step in summaries and step not in kept}
    for step, refs in before.steps.items():
        steps[step] = {**steps.get(step, {}), **refs}
    held = {
        (ref.kind, ref.key)
        for step, refs in named.items()
        if step not in steps
        for name, ref in refs.items()
        if name != PARENT
    }
    steps = {step: {n: r for n, r in refs.items() if (r.kind, r.key) not in held} for step, refs in steps.items()}
    steps = {step: refs for step, refs in steps.items() if refs}
    newly = tuple(sorted(step for step, refs in steps.items() if refs != before.steps.get(step)))
    note = {"at": datetime.now(UTC).isoformat(timespec="seconds"), "rule": str(keep)}
    trim = Trim(steps, (*before.notes, note) if newly else before.notes)
    objects, shared = _split(store, run, trim)
    return TrimPlan(run_id, kept, before, trim, newly, objects, shared)


def apply_trim(store: Store, plan: TrimPlan) -> int:
    """Mark the run, then remove what nothing refers to any more; returns the bytes freed.

    Killed in between, the mark stands and the garbage collection finds the rest.

    Raises:
        LockedError: something uses the store.
        StoreError: the run has gone on since the plan was made, or was trimmed by another rule.
    """
    with alone(store, f"trimming run {plan.run_id}"):
        run = view_run(store, plan.run_id)
        if max(run.summaries()) != max(plan.kept):
            raise StoreError(f"run {plan.run_id} has gone on since it was looked at: plan again")
        if read_trim(run) != plan.before:
            # The mark is replaced whole: what the other let go would no longer be known as such.
            raise StoreError(f"run {plan.run_id} was trimmed by another rule since it was looked at: plan again")
        if plan.newly:
            store.require_format(2)
            write_trim(run, plan.trim)
        return remove_unused(store, plan.objects)


def _kept(run_id: str, summaries: Mapping[int, Any], before: Trim, keep: Keep) -> dict[int, str]:
    trained = [step for step in sorted(summaries) if step > 0 and step not in before.steps]
    kept = dict.fromkeys(trained[-max(keep.last, 1) :], f"among the last {keep.last}")
    if keep.every:
        kept |= {step: f"every {keep.every}th" for step in trained if step % keep.every == 0 and step not in kept}
    if keep.best:
        kept = dict.fromkeys(_best(run_id, summaries, trained, keep), f"among the best {keep.best}") | kept
    return dict(sorted({0: "the untrained policy", **kept}.items()))


def _best(run_id: str, summaries: Mapping[int, Any], trained: list[int], keep: Keep) -> list[int]:
    values = {step: summaries[step]["metrics"].get(keep.metric) for step in trained}
    found = [step for step, value in values.items() if value is not None]
    if not found:
        names = sorted({name for step in trained for name in summaries[step]["metrics"] if name.startswith("eval/")})
        raise StoreError(
            f"no iteration of run {run_id} that is left has the metric {keep.metric!r}; it has "
            f"{', '.join(names) or 'none of eval/'} and others: see `solrl runs show`"
        )
    return sorted(found, key=lambda step: (values[step], step))[-keep.best :]


def _recorded(summary: Mapping[str, Any] | None) -> dict[str, Ref]:
    refs = {} if summary is None else summary.get("refs", {})
    return {name: Ref.model_validate(ref) for name, ref in refs.items()}


def _let_go(refs: Mapping[str, Ref], keep: Keep) -> dict[str, Ref]:
    def goes(name: str, ref: Ref) -> bool:
        explored = ref.kind == "pools" and keep.pools and name.startswith("explore")
        return name != PARENT and (ref.kind in ("policies", "samples") or explored)

    return {name: ref for name, ref in refs.items() if goes(name, ref)}


def _split(store: Store, run: RunView, trim: Trim) -> tuple[tuple[Garbage, ...], dict[str, tuple[str, ...]]]:
    used = holders(store, {run.run_id: trim})
    refs = {(ref.kind, ref.key): ref for step in trim.steps.values() for ref in step.values()}
    there = {key: ref for key, ref in sorted(refs.items()) if store.path(ref).exists()}
    why = f"run {run.run_id} lets it go"
    objects = tuple(
        Garbage(kind, key, ref.path, places.bytes_below(store.path(ref)), why)
        for (kind, key), ref in there.items()
        if (kind, key) not in used
    )
    return objects, {ref.path: tuple(sorted(used[key])) for key, ref in there.items() if key in used}
