"""A whole run on the micro model, and what must hold of it."""

import json
import shutil

import numpy as np
import pytest

from solrl_tasks.stages.iteration import policy_after, run_all, run_step
from solrl_tasks.stages.session import open_session
from solrl_tasks.store.errors import ConfigChangedError
from solrl_tasks.store.policies import load_policy
from solrl_tasks.tracking.summary import Summary
from tests.support.contents import run_contents
from tests.support.micro import micro_recipe, write_prompts


def finish(session):
    return list(run_all(session))


def test_a_run_commits_a_baseline_and_every_iteration(opened):
    with opened("a") as session:
        summaries = finish(session)
        assert [summary.step for summary in summaries] == [0, 1, 2]
        assert set(summaries[0].metrics) >= {"eval/colourfulness"}
        assert not any(name.startswith("train/") for name in summaries[0].metrics)
        last = summaries[-1].metrics
        for name in ("reward/proxy", "reward/bf16", "rank/kept_spearman", "train/loss", "eval/gain_colourfulness"):
            assert np.isfinite(last[name])
        assert last["train/optimizer_steps"] == 4


def test_whole_groups_are_ranked_only_where_they_were_regenerated(opened):
    with opened("a") as session:
        _, first, second = finish(session)
    assert "rank/audit_spearman" in first.metrics
    assert not any(name.startswith("rank/audit") for name in second.metrics)


def test_two_runs_of_one_recipe_are_equal_byte_for_byte(tmp_path, recipe_of):
    for name in ("one", "two"):
        with open_session(tmp_path / name, "run", recipe_of()) as session:
            finish(session)
    assert run_contents(tmp_path / "one", "run") == run_contents(tmp_path / "two", "run")


def test_training_changes_the_policy_and_the_next_pool_samples_from_it(opened):
    with opened("a") as session:
        finish(session)
        digests = [load_policy(session.store, policy_after(session, step)).meta["digests"]["old"] for step in range(3)]
    assert digests[0] == "base"
    assert len(set(digests)) == 3


def test_a_finished_run_started_again_does_no_work_and_loads_nothing(opened):
    with opened("a") as session:
        before = finish(session)
    with opened("a") as session:
        assert finish(session) == before
        assert session.worker.counters.loads == 0
        assert session.worker.counters.forwards == 0


def test_more_iterations_go_on_as_if_they_had_been_asked_for_at_once(opened, tmp_path, recipe_of):
    with opened("a", iterations=1) as session:
        finish(session)
    with opened("a", iterations=3) as session:
        finish(session)
    with open_session(tmp_path / "other", "a", recipe_of(iterations=3)) as session:
        finish(session)
    assert run_contents(tmp_path / "store", "a") == run_contents(tmp_path / "other", "a")


def test_the_same_run_id_with_another_recipe_is_refused_by_field(opened):
    with opened("a") as session:
        run_step(session, 0)
    with pytest.raises(ConfigChangedError, match=r"explore\.steps"), opened("a", explore__steps=3):
        pass


def test_an_iteration_has_a_picture(opened):
    with opened("a") as session:
        run_step(session, 0)
        summary = run_step(session, 1)
        assert summary.images == ["grid.png", "heldout.png"]
        for name in summary.images:
            assert (session.run.iteration_dir(1) / name).read_bytes().startswith(b"\x89PNG")


def test_costs_of_this_run_and_of_the_result_are_kept_apart(opened):
    with opened("a") as session:
        first = finish(session)
    with opened("b") as session:
        second = finish(session)
    assert second[-1].metrics["gpu_hours/spent"] < first[-1].metrics["gpu_hours/spent"] / 2
    assert second[-1].metrics["gpu_hours/attributed"] == pytest.approx(first[-1].metrics["gpu_hours/attributed"])


def test_a_summary_survives_its_own_file(opened):
    with opened("a") as session:
        summary = run_step(session, 0)
        assert Summary.model_validate(json.loads(summary.model_dump_json())) == summary


def test_a_run_is_held_to_the_prompts_that_it_began_with(opened, tmp_path):
    with opened("a") as session:
        run_step(session, 0)
    (tmp_path / "prompts.txt").write_text("".join(f"another thing {i}\n" for i in range(5)))
    with pytest.raises(ConfigChangedError, match=r"other contents of prompts\.train"), opened("a"):
        pass


def test_a_run_is_held_to_the_model_that_it_began_with(micro_model, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(micro_model, model)
    recipe = micro_recipe(model, write_prompts(tmp_path))
    with open_session(tmp_path / "store", "a", recipe):
        pass
    config = model / "scheduler" / "scheduler_config.json"
    config.write_text(config.read_text().replace('"shift": 1.0', '"shift": 2.0'))
    with pytest.raises(ConfigChangedError, match=r"model\.source"), open_session(tmp_path / "store", "a", recipe):
        pass
