from pathlib import Path

import numpy as np
import pytest

from solrl_tasks.config.load import load_recipe
from solrl_tasks.store.root import Store
from solrl_tasks.store.runs import RunView
from solrl_tasks.studies.results.ranks import Filled, compare, fill, rank_pools

RECIPE = load_recipe(Path(__file__).resolve().parents[3] / "configs" / "embedded.yaml")


def pools(**changes):
    given = {"root": Path("store"), "recipe": RECIPE, "engines": ("nvfp4-emulated", "fp8", "bf16"), **changes}
    return rank_pools(**{"references": (10, 40), "prompts": 4, **given})


def test_every_engine_at_the_explore_steps_and_the_precise_one_at_the_references():
    labels = [pool.label for pool in pools()]
    assert sorted(labels) == ["bf16-10", "bf16-40", "bf16-6", "fp8-6", "nvfp4-emulated-6"]
    assert labels[:2] == ["bf16-40", "bf16-10"], "the longest first"
    assert len({pool.run_id for pool in pools()}) == 5
    assert {pool.run_id for pool in pools()} != {pool.run_id for pool in pools(prompts=5)}


def test_proxies_are_compared_with_every_reference_of_more_steps():
    rng = np.random.default_rng(0)
    truth = rng.normal(size=(5, 24))
    scores = {"bf16-40": truth, "bf16-10": truth, "bf16-6": -truth, "fp8-6": truth, "nvfp4-emulated-6": truth}
    filled = [(pool, Filled(scores[pool.label], "real", "Some GPU")) for pool in pools()]
    found = compare(filled, (10, 40), 8)
    rows = {(row.engine, row.steps, row.reference_steps): row for row in found.rows}
    assert set(rows) == {
        *((engine, 6, steps) for engine in ("bf16", "fp8", "nvfp4-emulated") for steps in (10, 40)),
        ("bf16", 10, 40),
    }
    assert rows["fp8", 6, 10].spearman.mean == pytest.approx(1)
    assert rows["fp8", 6, 10].overlap[4].mean == 1 and rows["fp8", 6, 10].contrast.mean == pytest.approx(1)
    assert rows["bf16", 6, 40].spearman.mean == pytest.approx(-1)
    assert (found.prompts, found.candidates, found.hardware) == (5, 24, "Some GPU")
    assert set(rows["fp8", 6, 10].overlap) == {4, 8, 12}


def test_a_pool_that_is_not_filled_is_named():
    filled = [(pool, Filled(error="out of memory")) for pool in pools()]
    with pytest.raises(ValueError, match="bf16-40: out of memory"):
        compare(filled, (10, 40), 8)
    with pytest.raises(ValueError, match="not filled"):
        compare([], (10,), 8)


def test_out_of_time_is_not_begun_and_a_failure_raises_nothing(tmp_path):
    late, *_ = pools(root=tmp_path, deadline=0.0)
    assert fill(late).error == "not begun: out of time"
    broken, *_ = pools(root=tmp_path, recipe=RECIPE.model_copy(update={"rewards": ()}))
    assert fill(broken).scores is None and fill(broken).error


def test_pools_are_filled_once_and_held_by_their_runs(tmp_path, recipe_of, monkeypatch):
    recipe = recipe_of(explore__engine={"name": "nvfp4-emulated"}, explore__candidates=4)
    tasks = rank_pools(tmp_path / "store", recipe, ("nvfp4-emulated", "bf16"), (3,), 2)
    found = [(task, fill(task)) for task in tasks]
    assert [(task.label, filled.kind) for task, filled in found] == [
        ("bf16-3", "real"), ("nvfp4-emulated-2", "emulated"), ("bf16-2", "real"),
    ]  # fmt: skip
    assert all(filled.scores.shape == (2, 4) and np.isfinite(filled.scores).all() for _, filled in found)
    assert len(compare(found, (3,), 2).rows) == 2
    store = Store.open(tmp_path / "store", create=False)
    assert all(RunView(store, task.run_id).recorded() is not None for task in tasks)

    def forbidden(*_):
        raise AssertionError("sampled again")

    monkeypatch.setattr("solrl_tasks.workers.inline.InlineWorker.rollout", forbidden)
    for task, before in found:
        again = fill(task)
        assert again.error == "" and np.array_equal(again.scores, before.scores)
