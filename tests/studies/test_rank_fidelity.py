"""The study of ranks over pools: its axes, what it costs, what it finds where the answer is known, and that it is paid
for once."""

import json

import numpy as np
import pytest

from solrl_tasks.config.recipe import ExtensionSpec
from solrl_tasks.engines.base import EngineError
from solrl_tasks.stages.iteration import run_all
from solrl_tasks.stages.recorded import StudyError
from solrl_tasks.stages.session import planning_session
from solrl_tasks.store.errors import DamagedError
from solrl_tasks.store.runs import view_run
from solrl_tasks.studies.plan import plan_pools
from solrl_tasks.studies.rank_fidelity import RankSettings, make_study, name_policy, settle_settings
from solrl_tasks.studies.rank_results import RESULT, keep_result, measure_ranks, read_result, short

ASKED = {"steps": (1, 2), "engines": ("nvfp4-emulated", "bf16"), "references": (3,), "prompts": 2}
IMAGES = 2 * 8
"""Prompts x candidates."""


def study_of(session, **asked):
    return make_study(session, settle_settings(session.recipe, {**ASKED, **asked}))


def mean(pool, metric, reference=3):
    return next(one.metrics[metric].mean for one in pool.against if one.reference == reference)


def test_a_study_costs_what_was_told_and_nothing_the_second_time(opened, tmp_path):
    with opened("study") as session:
        study = study_of(session)
        plan = plan_pools(session, study.jobs())
        assert session.worker.counters.loads == 0
        measured = measure_ranks(session, study)
        assert session.worker.counters.forwards == plan.forwards == IMAGES * (3 + 2 * (1 + 2))
        assert sum(measured.computed.values()) == plan.missing == plan.blocks
        written = (session.run.path / RESULT).stat().st_mtime_ns
    with opened("study") as session:
        assert plan_pools(session, study.jobs()).missing == 0
        again = measure_ranks(session, study)
        assert session.worker.counters.loads == 0
        assert session.worker.counters.forwards == 0
        assert (session.run.path / RESULT).stat().st_mtime_ns == written, "nothing changed, so nothing was written"
    assert set(again.computed.values()) == {0}
    assert short(again.result) == short(measured.result)


def test_a_plan_before_anything_is_there_makes_no_run(tmp_path, recipe_of):
    session = planning_session(tmp_path / "store", "study", recipe_of())
    plan = plan_pools(session, study_of(session).jobs())
    assert plan.missing == plan.blocks == 5 * 4
    assert not (tmp_path / "store" / "runs").exists() or not list((tmp_path / "store" / "runs").iterdir())


def test_a_proxy_that_is_the_reference_is_perfect_and_said_to_be_it(opened):
    with opened("study") as session:
        result = measure_ranks(session, study_of(session, steps=(1, 3), engines=("bf16",), counts=(2, 3))).result
    reference, (cheap, same) = result.references[0], result.proxies
    assert same.pool == reference.pool
    assert [one.same for pool in (cheap, same) for one in pool.against] == [False, True]
    for metric in ("spearman", "kendall", "contrast_share", "top_overlap_2", "bottom_overlap_3"):
        assert mean(same, metric) == pytest.approx(1.0), metric
    assert mean(same, "regret") == pytest.approx(0.0)
    assert mean(same, "top_match_2") == pytest.approx(1 - 1 / 14)
    assert mean(cheap, "regret") >= 0
    (saturation,) = [one for one in result.saturation if one.metric == "spearman"]
    assert saturation.found.step is None
    assert saturation.found.reason == "one step count is no curve", "the reference itself is no point of the curve"


def test_one_pool_under_two_names_is_computed_once(opened):
    with opened("study") as session:
        study = study_of(session, steps=(3,), engines=("bf16",))
        plan = plan_pools(session, study.jobs())
        measured = measure_ranks(session, study)
    assert len(plan.pools) == 1
    assert list(measured.computed.values()) == [4, 0]
    assert plan.missing == 4


def test_every_combination_has_a_label_and_a_pool_of_its_own(opened):
    engines = (
        ExtensionSpec(name="nvfp4-emulated"),
        ExtensionSpec(name="nvfp4-emulated", options={"activation_scale": "row"}),
        ExtensionSpec(name="bf16"),
    )
    with opened("study") as session:
        study = study_of(session, steps=(2, 3), engines=engines, samplers=("euler", "dpm2"), resolutions=(32, 16))
        labels = [proxy.label for proxy in study.proxies()]
        keys = {job.open(session).key for job in study.jobs().values()}
    assert len(labels) == len(set(labels)) == 3 * 2 * 2 * 2
    assert "nvfp4-emulated (activation_scale=row), 2 steps, dpm2, 16 px" in labels
    assert len({proxy.series for proxy in study.proxies()}) == len(labels) // 2
    # The reference is 3 euler steps of bf16 at the model's size, which is one of the proxies.
    assert len(keys) == len(labels)


def test_a_lower_resolution_is_measured_like_any_proxy(opened):
    with opened("study") as session:
        study = study_of(session, steps=(2,), engines=("bf16",), resolutions=(32, 16))
        full, lower = measure_ranks(session, study).result.proxies
    assert (full.resolution, lower.resolution) == (32, 16)
    assert full.pool != lower.pool
    assert np.isfinite(mean(lower, "spearman"))


def test_several_references_and_how_far_they_agree(opened):
    with opened("study") as session:
        result = measure_ranks(session, study_of(session, references=(4, 3), engines=("bf16",))).result
    assert [pool.steps for pool in result.references] == [3, 4]
    assert [[one.reference for one in pool.against] for pool in result.references] == [[4], []]
    assert [[one.reference for one in pool.against] for pool in result.proxies] == [[3, 4], [3, 4]]
    assert len(result.saturation) == 2 * 2
    assert mean(result.references[0], "spearman", 4) > mean(result.proxies[0], "spearman", 4)


def test_a_result_is_read_back_as_it_was(opened, tmp_path):
    with opened("study") as session:
        result = measure_ranks(session, study_of(session)).result
        view = view_run(session.store, "study")
        again = read_result(view)
        assert again is not None
        assert again.model_dump(mode="json") == result.model_dump(mode="json")
        (session.run.path / RESULT).write_text("torn", encoding="utf-8")
        with pytest.raises(DamagedError, match="the same study again writes it anew"):
            read_result(view)
        keep_result(session.run, result)
        assert read_result(view) is not None
    assert "NaN" not in json.dumps(result.model_dump(mode="json"), allow_nan=False)
    assert "values" not in json.dumps(short(result))
    with opened("other") as session:
        assert read_result(session.run) is None


def test_values_of_prompts_are_kept_and_their_mean_is_the_mean(opened):
    with opened("study") as session:
        result = measure_ranks(session, study_of(session)).result
    for compared in (one for pool in result.proxies for one in pool.against):
        for name, estimate in compared.metrics.items():
            values = np.array(compared.values[name])
            assert len(values) == 2
            assert estimate.n + estimate.excluded == 2
            if estimate.n:
                assert estimate.mean == pytest.approx(np.nanmean(values))
                assert estimate.low <= estimate.mean + 1e-12 if estimate.n > 1 else np.isnan(estimate.low)


def test_a_recorded_policy_is_studied_in_pools_of_its_own(opened):
    with opened("trained", iterations=1) as session:
        list(run_all(session))
    with opened("study") as session:
        asked = settle_settings(session.recipe, {**ASKED, "policy_run": "trained"})
        named = name_policy(session.store, asked)
        assert (asked.policy_step, named.policy_step) == (None, 1)
        base, trained = study_of(session), make_study(session, named)
        assert trained.reference_job(3).open(session).key != base.reference_job(3).open(session).key
        assert measure_ranks(session, trained).result.policy == "trained, iteration 1, old"
        assert study_of(session, policy_run="trained", policy_step=0).base.policy.digest == "base"


def test_the_same_settings_of_the_same_recipe_are_one_run(recipe_of):
    recipe = recipe_of()
    one, same = (settle_settings(recipe, {**ASKED, "counts": counts}) for counts in (None, (4,)))
    assert one == same
    assert one.digest(recipe) == same.digest(recipe)
    for change in ({"steps": (1,)}, {"references": (4,)}, {"prompts": 1}, {"seed": 1}, {"counts": (2,)}):
        assert settle_settings(recipe, {**ASKED, **change}).digest(recipe) != one.digest(recipe)
    assert one.digest(recipe_of(explore__candidates=12)) != one.digest(recipe)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"prompts": 99}, "prompts is 99, but the held-out set has only 5"),
        ({"steps": (2, 2)}, r"steps is \[2, 2\]: name each once"),
        ({"engines": ("bf16", "bf16")}, "engines is .'bf16', 'bf16'.: name each once"),
        ({"steps": ()}, "steps"),
        ({"steps": (0,)}, "steps"),
        ({"counts": (9,)}, r"counts are \[9\], but there are 8 candidates a prompt"),
        ({"resolutions": (24,)}, "resolutions is 24"),
        ({"samplers": ("heun",)}, "heun"),
        ({"policy_step": 3}, "of which run"),
        ({"level": 1.5}, "level"),
    ],
)
def test_what_cannot_be_studied_is_refused_in_words(opened, asked, words):
    with opened("study") as session, pytest.raises(StudyError, match=words):
        study_of(session, **asked)


def test_an_engine_that_cannot_run_here_is_refused_before_anything_is_computed(opened):
    with opened("study") as session, pytest.raises(EngineError, match="nvfp4"):
        study_of(session, engines=("nvfp4",))


def test_options_of_the_recipes_engine_are_kept_for_it_alone(recipe_of):
    recipe = recipe_of(explore__engine={"name": "nvfp4-emulated", "options": {"activation_scale": "row"}})
    settings = settle_settings(recipe, {"steps": (2,), "engines": ("nvfp4-emulated", "bf16")})
    assert [dict(engine.options) for engine in settings.engines] == [{"activation_scale": "row"}, {}]
    assert RankSettings.model_validate_json(settings.model_dump_json()) == settings
