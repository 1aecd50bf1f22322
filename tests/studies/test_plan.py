"""Plans: what they promise is what is then computed, they touch nothing, and they never guess a time."""

from types import SimpleNamespace

import pytest
import torch

from solrl_tasks.config.extensions import UnknownExtensionError
from solrl_tasks.config.recipe import WorkersSpec
from solrl_tasks.engines.base import EngineError, hardware_name
from solrl_tasks.stages.explore import explore
from solrl_tasks.stages.plan import plan_baseline
from solrl_tasks.stages.session import planning_session
from solrl_tasks.store.costs import PoolCost
from solrl_tasks.store.root import Store
from solrl_tasks.store.runs import list_runs
from solrl_tasks.studies.plan import (
    PlannedPool,
    StudyPlan,
    estimate_seconds,
    plan_pools,
    plan_rows,
    plan_summary,
    time_image,
)
from solrl_tasks.studies.rank_fidelity import make_study, settle_settings
from tests.studies.jobs import proxy

SILENT = {name: lambda *_: None for name in ("stage_started", "progress", "stage_finished")}


def cost(steps, images, seconds):
    return PoolCost({"steps": steps}, images, seconds)


def test_a_plan_equals_what_is_then_computed(opened):
    with opened("study") as session:
        jobs = {"two": proxy(session, steps=2), "three": proxy(session, steps=3), "more": proxy(session, candidates=12)}
        plan = plan_pools(session, jobs)
        computed = [explore(session, job).details["blocks_computed"] for job in jobs.values()]
        assert plan.missing == plan.blocks == sum(computed) == 2 * 3 + 2 * 2
        assert plan.forwards == session.worker.counters.forwards
        assert plan.images == 2 * 12 + 2 * 8
        again = plan_pools(session, jobs)
    assert (again.missing, again.forwards, again.images, again.seconds) == (0, 0, 0, 0.0)
    assert again.blocks == plan.blocks
    assert "nothing is to be computed" in plan_summary(again)


def test_one_pool_under_several_names_is_planned_once(opened):
    with opened("study") as session:
        plan = plan_pools(session, {"proxy": proxy(session), "reference": proxy(session), "other": proxy(session, 3)})
    assert [pool.label for pool in plan.pools] == ["proxy = reference", "other"]


def test_a_plan_makes_nothing_and_loads_nothing(tmp_path, recipe_of):
    session = planning_session(tmp_path / "store", "study", recipe_of())
    plan = plan_pools(session, {"a": proxy(session)})
    assert plan.missing == plan.blocks == 4
    assert session.worker.counters.loads == 0
    assert not list((tmp_path / "store" / "pools").glob("*"))
    assert list_runs(Store(tmp_path / "store")) == []


def test_a_plan_can_be_made_while_another_process_computes(tmp_path, recipe_of, opened):
    with opened("study") as running:
        explore(running, proxy(running))
        session = planning_session(tmp_path / "store", "study", recipe_of())
        with proxy(running).open(running).lock("as another process would"):
            assert plan_pools(session, {"a": proxy(session)}).missing == 0


def test_a_plan_for_a_cluster_says_whose_device_it_is_for(tmp_path, recipe_of, monkeypatch):
    def planned(**workers):
        recipe = recipe_of().model_copy(update={"workers": WorkersSpec(**workers)})
        session = planning_session(tmp_path / "store", "study", recipe)
        return plan_pools(session, {"a": proxy(session)})

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    here = hardware_name(torch.device("cpu"))
    away = planned(kind="ray", address="head:6379")
    assert f"This is for {here}" in away.note and "head:6379" in away.note
    assert plan_summary(away).endswith(away.note) and away.as_json()["note"] == away.note
    own = planned(kind="ray")
    assert own.note == "" and own.pools == planned().pools, "actors of this machine make what this process would"
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    assert "the cluster at auto" in planned(kind="ray").note
    assert planned(kind="inline").note == ""


def test_a_plan_for_a_cluster_refuses_no_engine_that_only_this_machine_lacks(tmp_path, recipe_of, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)

    def session_of(**workers):
        recipe = recipe_of(explore__engine={"name": "nvfp4"}).model_copy(update={"workers": WorkersSpec(**workers)})
        return planning_session(tmp_path / "store", "study", recipe)

    away = session_of(kind="ray", address="head:6379")
    study = make_study(away, settle_settings(away.recipe, {"steps": (2,), "references": (3,), "prompts": 1}))
    note = plan_pools(away, study.jobs()).note
    assert "nvfp4 does not run here (" in note and "is not known before a run begins" in note
    assert "bf16 does not run" not in note
    with pytest.raises(UnknownExtensionError, match="nvfp9"):
        away.worker.site.require_engine("nvfp9")
    for workers in ({"kind": "ray"}, {"kind": "inline", "address": "head:6379"}):
        with pytest.raises(EngineError, match="nvfp4"):
            session_of(**workers)


def test_what_is_damaged_is_missing(opened):
    with opened("study") as session:
        job = proxy(session)
        explore(session, job)
        (first, *_) = sorted((job.open(session)._folder.path).glob("data.zarr/rewards/*/values/c/*/*"))
        first.write_bytes(bytes(len(first.read_bytes())))
        plan = plan_pools(session, {"a": job})
        assert (plan.missing, plan.blocks) == (1, 4)
        assert explore(session, job).details["blocks_computed"] == 1


def test_a_pool_whose_spec_is_damaged_is_missing_as_a_whole_and_the_plan_says_so(opened):
    with opened("study") as session:
        job = proxy(session)
        (job.open(session)._folder.path / "spec.json").write_text("{")
        plan = plan_pools(session, {"a": job})
        assert plan.missing == plan.blocks == 4
        assert "spec.json is damaged" in plan.note and "counted as missing" in plan.note
        assert plan_summary(plan).endswith(plan.note)
        assert explore(session, job).details["blocks_computed"] == 4
        other = plan_pools(session, {"b": proxy(session, 3)})
        assert other.note == "", "it was set aside and filled anew"
        (job.open(session)._folder.path / "spec.json").write_text("{")
        other = plan_pools(session, {"b": proxy(session, 3)})
        assert "spec.json is damaged" in other.note and "no estimate rests on it" in other.note


def test_damaged_prompts_of_a_pool_are_named_by_a_plan_and_mended_by_a_study(opened, monkeypatch):
    with opened("study") as session:
        told = []
        monkeypatch.setattr(session, "reporter", SimpleNamespace(**SILENT, note=told.append))
        job = proxy(session)
        explore(session, job)
        path = job.open(session)._folder.path / "prompts.json"
        path.write_bytes(path.read_bytes().replace(b"text", b"tent"))
        plan = plan_pools(session, {"a": job})
        assert plan.missing == 0 and str(path) in plan.note and "is damaged" in plan.note and "anew" in plan.note
        assert not told
        assert explore(session, job).state == "Reused"
        (note,) = told
        assert str(path) in note and "is damaged" in note
        assert plan_pools(session, {"a": job}).note == ""


def test_no_time_is_guessed_before_anything_like_it_was_measured(opened):
    with opened("study") as session:
        plan = plan_pools(session, {"a": proxy(session), "b": proxy(session, 3)})
        assert [pool.seconds for pool in plan.pools] == [None, None]
        assert "never measured" in plan_summary(plan)
        assert {row["device time"] for row in plan_rows(plan)} == {"not measured"}
        explore(session, proxy(session))
        assert estimate_seconds(session, proxy(session, engine="bf16")) is None
        assert estimate_seconds(session, proxy(session, sampler="dpm2")) is None
        assert estimate_seconds(session, plan_baseline(session)) is None, "its engine is another"
        plan = plan_pools(session, {"a": proxy(session, 3), "b": proxy(session, engine="bf16")})
    assert plan.unmeasured == ("b",)
    assert plan.pools[0].seconds is not None
    assert "not counting 1 of the pools" in plan_summary(plan)


def test_the_estimate_is_what_like_blocks_took(opened):
    with opened("study") as session:
        spent = explore(session, proxy(session)).device_seconds
        timing = estimate_seconds(session, proxy(session))
        longer = estimate_seconds(session, proxy(session, steps=6))
        assert timing is not None
        assert longer is not None
        assert timing.seconds == pytest.approx(spent / 16, rel=1e-3)
        assert longer.seconds == pytest.approx(3 * timing.seconds)
        assert "in proportion" in longer.basis
        plan = plan_pools(session, {"more": proxy(session, candidates=16)})
        assert plan.seconds == pytest.approx(timing.seconds * 16)


def test_another_reward_on_kept_images_has_no_time_of_its_own(opened):
    with opened("study", rewards=[{"name": "colourfulness"}, {"name": "brightness"}]) as session:
        both = proxy(session, keep="lossless")
        one = proxy(session, keep="lossless", rewards=both.rewards[:1])
        explore(session, one)
        plan = plan_pools(session, {"a": both})
        done = session.worker.counters.forwards
        explore(session, both)
        assert session.worker.counters.forwards == done
    assert (plan.missing, plan.forwards, plan.images, plan.pools[0].seconds) == (4, 0, 0, None)
    assert "only lack a score" in plan.pools[0].basis


def test_times_of_several_step_counts_lie_on_a_line():
    exact = [cost(2, 10, 10 * (0.5 + 2 * 0.1)), cost(6, 30, 30 * (0.5 + 6 * 0.1))]
    timing = time_image(40, exact)
    assert timing is not None
    assert timing.seconds == pytest.approx(0.5 + 40 * 0.1)
    assert time_image(6, exact).seconds == pytest.approx(1.1)
    falling = time_image(40, [cost(2, 10, 20.0), cost(6, 10, 10.0)])
    assert falling is not None
    assert falling.seconds >= 0
    assert time_image(3, []) is None


def test_totals_and_plain_values():
    pools = (
        PlannedPool("a", "k1", 4, 2, 8, 4, 10.0, "x"),
        PlannedPool("b", "k2", 3, 3, 6, 2, None, "y"),
        PlannedPool("c", "k3", 1, 0, 0, 0, 0.0, "z"),
    )
    plan = StudyPlan(pools)
    assert (plan.blocks, plan.missing, plan.forwards, plan.images, plan.seconds) == (8, 5, 14, 6, 10.0)
    assert plan.as_json()["unmeasured"] == ["b"]
    assert plan.as_json()["pools"][0]["label"] == "a"
