from pathlib import Path

import pytest

from solrl_tasks.bench.comparison.arms import ARMS, PlannedRun, Settings, arm_recipe, plan_runs
from solrl_tasks.bench.comparison.work import model_work
from solrl_tasks.bench.flops import ModelFlops

CONFIGS = Path(__file__).resolve().parents[3] / "configs"
FLOPS = ModelFlops(total=100, quantisable=80, parameters=1, quantisable_parameters=1, quantisable_layers=1)


def recipe(arm, selection, **settings):
    return arm_recipe(PlannedRun(arm, selection, 2), Settings(**settings), CONFIGS)


def test_seeds_come_one_after_the_other_so_that_what_is_done_compares_all_arms():
    runs = plan_runs(["nft", "ram"], 2)
    assert [run.run_id for run in runs[:4]] == [
        f"objectives-{arm}-{how}-seed1" for arm in ("nft", "ram") for how in ("two-stage", "plain")
    ]
    assert {run.seed for run in runs[4:]} == {2} and len({run.run_id for run in runs}) == 8
    with pytest.raises(ValueError, match="unknown arms dpo"):
        plan_runs(["dpo"], 1)


@pytest.mark.parametrize("arm", ARMS)
def test_all_arms_sample_and_train_alike(arm):
    two, plain = recipe(arm, "two-stage"), recipe(arm, "plain")
    for one in (two, plain):
        assert (one.update.optimizer_steps, one.select.keep, one.regenerate.steps) == (8, 24, 10)
        assert (one.prompts.per_iteration, one.evaluate.prompts, one.evaluate.seeds, one.seed) == (4, 24, 8, 2)
        assert [reward.name for reward in one.evaluate.rewards] == ["scene-strict", "colourfulness"]
        assert one.regenerate.engine.name == "bf16"
    assert (two.explore.candidates, two.explore.engine.name) == (96, "nvfp4-emulated")
    assert (plain.explore.candidates, plain.explore.engine.name) == (24, "bf16")
    assert two.update == plain.update and two.evaluate == plain.evaluate


def test_what_sets_the_arms_apart_is_the_objective():
    names = {arm: recipe(arm, "plain").update.objective for arm in ARMS}
    assert [names[arm].name for arm in ("nft", "ram", "awm", "dancegrpo")] == ["nft", "ram", "awm", "grpo"]
    assert (names["awm"].options["kl_weight"], names["awm-free"].options["kl_weight"]) == (0.01, 0.0)
    assert names["grpo-late"].options["window"] == {"size": 3, "start": 6, "stop": 9}


def test_fields_of_all_recipes_can_be_changed_but_not_what_makes_an_arm():
    changes = {"evaluate.prompts": 2, "select.keep": 6}
    found = recipe("ram", "two-stage", changes=changes, micro_batch=960, optimizer_steps=3)
    assert (found.evaluate.prompts, found.select.keep) == (2, 24)
    assert (found.update.micro_batch, found.update.optimizer_steps) == (960, 3)


def test_work_is_counted_by_hand():
    two, plain = (model_work(recipe("ram", how), FLOPS, rate=10.0) for how in ("two-stage", "plain"))
    # 100 operations at 10 a second; of NVFP4 80 of them four times as fast.
    assert two.explore == pytest.approx(4 * 96 * 6 * (20 + 80 / 4) / 10)
    assert two.regenerate == pytest.approx(4 * 24 * 10 * 10)
    # Two levels a sample; current forward and backward, old and reference forward.
    assert two.update == pytest.approx(8 * 4 * 24 * 2 * (2 + 2) * 10)
    assert two.total == two.explore + two.regenerate + two.update
    # An exploration that chooses nothing counts nothing.
    assert plain.explore == 0 and plain.update == two.update


def test_more_evaluations_of_the_network_are_more_work():
    guided = recipe("ram", "plain", changes={"model.guidance_scale": 2.0})
    assert model_work(guided, FLOPS).total == pytest.approx(2 * model_work(recipe("ram", "plain"), FLOPS).total)
    free, held = (model_work(recipe(arm, "plain"), FLOPS).update for arm in ("awm-free", "awm"))
    assert held == pytest.approx(1.5 * free)


def test_exploring_smaller_images_is_less_work():
    lowered = recipe("ram", "two-stage", changes={"explore.resolution": 32})
    with pytest.raises(ValueError, match=r"explore\.resolution 32 takes has to be counted too"):
        model_work(lowered, FLOPS)
    quarter = FLOPS.model_copy(update={"total": 25, "quantisable": 20})
    small, whole = model_work(lowered, FLOPS, explored=quarter), model_work(recipe("ram", "two-stage"), FLOPS)
    assert small.explore == pytest.approx(whole.explore / 4)
    assert (small.regenerate, small.update) == (whole.regenerate, whole.update)
