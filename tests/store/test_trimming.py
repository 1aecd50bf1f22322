"""Trimming lets go of what its rule names and of nothing that anybody refers to."""

import numpy as np
import pytest
import torch

from solrl_tasks.store import atomic, errors
from solrl_tasks.store.gc import collect, plan_gc
from solrl_tasks.store.policies import load_policy, save_policy
from solrl_tasks.store.pool import Pool
from solrl_tasks.store.root import Store
from solrl_tasks.store.runs import Run, RunView, view_run
from solrl_tasks.store.samples import Samples
from solrl_tasks.store.selections import save_selection
from solrl_tasks.store.trimming import Keep, apply_trim, plan_trim
from solrl_tasks.store.trims import TrimmedError, read_trim, require_untrimmed

A = "soft@1"


def policy(store, step, name="run"):
    tensors = {"ema": {"w": torch.full((4,), float(step))}}
    return save_policy(store, {"policy": step, "of": name}, tensors, {"step": step})


def pool(store, step):
    found = Pool.open(store, {"pool": step}, ("k-0",), 2)
    with found.lock():
        found.ensure_columns(2)
        for block in found.missing([A], 2):
            found.write(block, {A: np.zeros(2, np.float32)}, None, 1.0, {})
    return found.ref([A], 2)


def samples(store, step):
    found = Samples.open(store, {"samples": step}, np.array([[0, 1]]), (1, 2, 2), 2)
    with found.lock():
        for block in found.missing([A]):
            latents = np.zeros((2, 1, 2, 2), np.float32)
            found.write(block, latents, {A: np.zeros(2, np.float32)}, None, 1.0, {})
    return found.ref([A])


def refs_of(store, step):
    """What a step makes, and what it began from."""
    parent = policy(store, max(step - 1, 0))
    if step == 0:
        return {"policy": parent, "parent": parent}
    return {
        "explore": pool(store, step),
        "explore_begun": pool(store, step),
        "select": save_selection(store, {"selection": step}, np.array([[0, 1]]), {}),
        "regenerate": samples(store, step),
        "update": policy(store, step),
        "policy": policy(store, step),
        "parent": parent,
    }


def make_run(store, steps=6, run_id="run"):
    with Run.open(store, run_id, {"iterations": steps}) as run:
        for step in range(steps + 1):
            refs = refs_of(store, step)
            for name, ref in refs.items():
                run.note_ref(step, name, ref)
            # Best in the middle.
            metrics = {"eval/soft": float(-abs(step - 2)), "train/loss": 1.0}
            dumped = {name: ref.model_dump(mode="json") for name, ref in refs.items()}
            run.commit_summary(step, {"metrics": metrics, "refs": dumped})
    return RunView(store, run_id)


def there(store, kind):
    return {path.name for path in store.folder(kind).iterdir() if not path.name.startswith(".")}


def left(store, steps=6, kind=policy):
    """Steps whose policy (or samples, or pool) is there."""
    name = {policy: "policies", samples: "samples", pool: "pools"}[kind]
    with_keys = {}
    other = Store.open(store.root.parent / "other")
    for step in range(0 if kind is policy else 1, steps + 1):
        with_keys[kind(other, step).key] = step
    return sorted(with_keys[key] for key in there(store, name))


def test_the_last_the_best_and_every_mth_keep_what_they_made(store):
    run = make_run(store)
    plan = plan_trim(store, "run", Keep(last=1, best=1, metric="eval/soft", every=4))
    assert set(plan.kept) == {0, 2, 4, 6} and plan.newly == (1, 3, 5)
    assert left(store) == [0, 1, 2, 3, 4, 5, 6], "a plan touches nothing"
    freed = apply_trim(store, plan)
    assert freed == sum(item.bytes for item in plan.objects) > 0
    assert left(store) == [0, 2, 4, 6] and left(store, kind=samples) == [2, 4, 6]
    assert left(store, kind=pool) == [1, 2, 3, 4, 5, 6], "rewards are kept unless asked"
    assert len(there(store, "selections")) == 6
    assert sorted(run.summaries()) == list(range(7)), "what was found stays"
    assert plan_gc(store, min_age_seconds=0) == []
    assert Store(store.root).format == 2


def test_trimming_again_does_nothing_and_a_stronger_rule_goes_on(store):
    run = make_run(store)
    apply_trim(store, plan_trim(store, "run", Keep(every=2)))
    mark = (run.path / "trimmed.json").read_bytes()
    again = plan_trim(store, "run", Keep(every=2))
    assert again.newly == () and again.objects == () and apply_trim(store, again) == 0
    assert (run.path / "trimmed.json").read_bytes() == mark
    apply_trim(store, plan_trim(store, "run", Keep(pools=True)))
    assert left(store) == [0, 6] and left(store, kind=pool) == [6]
    assert sorted(read_trim(run).steps) == [1, 2, 3, 4, 5] and len(read_trim(run).notes) == 2


def test_what_others_use_stays_until_they_let_go(store):
    make_run(store)
    with Run.open(store, "other", {}) as other:
        other.note_ref(0, "policy", policy(store, 1))
    atomic.write_json(store.studies / "x" / "s.json", {"of": samples(store, 3).model_dump(mode="json")})
    plan = plan_trim(store, "run", Keep())
    assert plan.shared == {policy(store, 1).path: ("other",), samples(store, 3).path: ("studies/x/s.json",)}
    apply_trim(store, plan)
    assert left(store) == [0, 1, 6] and left(store, kind=samples) == [3, 6]
    (store.runs / "other" / "iterations" / "0000" / "refs.json").unlink()
    collect(store, plan_gc(store, min_age_seconds=0))
    assert left(store) == [0, 6] and left(store, kind=samples) == [3, 6]


def test_an_uncommitted_iteration_keeps_what_it_began_from(store):
    make_run(store)
    with Run.open(store, "run", {"iterations": 9}) as run:
        run.note_ref(7, "explore_begun", pool(store, 7))
        run.note_ref(7, "regenerate", samples(store, 7))
    plan = plan_trim(store, "run", Keep(pools=True))
    assert max(plan.kept) == 6
    apply_trim(store, plan)
    assert left(store, 7) == [0, 6] and left(store, 7, samples) == [6, 7] and left(store, 7, pool) == [6, 7]


def test_what_two_iterations_made_stays_while_one_of_them_is_kept(store):
    make_run(store, steps=2)
    with Run.open(store, "run", {"iterations": 2}) as run:
        run.note_ref(2, "regenerate", samples(store, 1))
    apply_trim(store, plan_trim(store, "run", Keep()))
    assert 1 in left(store, 2, samples)


def test_a_live_run_is_not_trimmed_and_one_that_went_on_is_planned_again(store):
    make_run(store)
    plan = plan_trim(store, "run", Keep())
    with Run.open(store, "run", {"iterations": 7}) as run:
        with pytest.raises(errors.LockedError, match="live runs: run"):
            apply_trim(store, plan)
        run.commit_summary(7, {"metrics": {}, "refs": {}})
    with pytest.raises(errors.StoreError, match="has gone on"):
        apply_trim(store, plan)
    assert left(store) == [0, 1, 2, 3, 4, 5, 6]


def test_of_two_plans_at_once_the_second_is_planned_again(store):
    """The mark is one file: the second would forget what the first let go."""
    make_run(store)
    weak, strong = plan_trim(store, "run", Keep(last=4)), plan_trim(store, "run", Keep())
    apply_trim(store, strong)
    mark = read_trim(view_run(store, "run"))
    with pytest.raises(errors.StoreError, match="was trimmed by another rule since it was looked at: plan again"):
        apply_trim(store, weak)
    assert read_trim(view_run(store, "run")) == mark and left(store) == [0, 6]
    apply_trim(store, plan_trim(store, "run", Keep(last=4)))
    assert read_trim(view_run(store, "run")).steps == mark.steps


def test_a_kill_after_the_mark_leaves_the_rest_to_the_garbage_collection(store, monkeypatch):
    make_run(store)
    removed = []

    def die(*_):
        removed.append(1)
        raise KeyboardInterrupt

    plan = plan_trim(store, "run", Keep())
    with monkeypatch.context() as patch:
        patch.setattr("solrl_tasks.store.gc._delete", die)
        with pytest.raises(KeyboardInterrupt):
            apply_trim(store, plan)
    assert removed and left(store) == [0, 1, 2, 3, 4, 5, 6]
    again = plan_trim(store, "run", Keep())
    assert again.objects == plan.objects and again.newly == ()
    apply_trim(store, again)
    assert left(store) == [0, 6]


def test_what_cannot_be_trimmed_is_said(store):
    with Run.open(store, "empty", {}):
        pass
    with pytest.raises(errors.StoreError, match="no committed iteration"):
        plan_trim(store, "empty", Keep())
    make_run(store)
    with pytest.raises(errors.StoreError, match=r"'eval/hard'; it has eval/soft"):
        plan_trim(store, "run", Keep(best=1, metric="eval/hard"))
    with pytest.raises(errors.MissingObjectError, match="no run 'none'"):
        plan_trim(store, "none", Keep())


def test_a_trimmed_iteration_is_named_with_what_was_kept(store):
    run = make_run(store)
    apply_trim(store, plan_trim(store, "run", Keep(last=2)))
    require_untrimmed(run, 5)
    with pytest.raises(
        TrimmedError, match=r"iteration 3 of run run was trimmed \(kept the last 2; 2.*iterations 0, 5 to 6"
    ):
        require_untrimmed(run, 3)
    assert load_policy(store, policy(store, 6)).meta == {"step": 6}


def test_a_damaged_mark_stops_everything_that_needs_it(store):
    run = make_run(store)
    apply_trim(store, plan_trim(store, "run", Keep()))
    (run.path / "trimmed.json").write_text("{")
    for call in (lambda: read_trim(run), lambda: plan_gc(store), lambda: plan_trim(store, "run", Keep())):
        with pytest.raises(errors.DamagedError, match=r"trimmed\.json is damaged: .*; put it back from a copy"):
            call()
