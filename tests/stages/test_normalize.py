"""Rewards on a common scale: units do not matter, selection and update agree, raw rewards stay what they are."""

import numpy as np
import pytest

from solrl_tasks.rewards.base import reward_id
from solrl_tasks.rewards.scoring import make_reward
from solrl_tasks.stages import update as updates
from solrl_tasks.stages.iteration import run_step
from solrl_tasks.store.pool import Pool
from solrl_tasks.store.selections import load_selection

DARKNESS, THOUSANDS = "tests.support.rewards:darkness", "tests.support.rewards:darkness_in_thousands"
QUICK = {"evaluate__every": 0, "audit__every": 1}


def pair(other, normalize, **more):
    return [{"name": "colourfulness", "normalize": normalize}, {"name": other, "normalize": normalize, **more}]


@pytest.fixture
def iterate(opened, monkeypatch):
    """Runs an iteration; returns summary, selection and the advantages that were trained on."""

    def run(run_id, rewards, **overrides):
        learned = []
        original = updates.advantages
        monkeypatch.setattr(updates, "advantages", lambda *a, **k: learned.append(original(*a, **k)) or learned[-1])
        with opened(run_id, rewards=rewards, **QUICK, **overrides) as session:
            summary = run_step(session, 1)
            selection = load_selection(session.store, summary.refs["select"])
            pool = Pool.load(session.store, summary.refs["explore"])
            raw = {spec.name: pool.rewards(reward_id(make_reward(spec)), 8) for spec in session.recipe.rewards}
        monkeypatch.setattr(updates, "advantages", original)
        return summary, selection, learned[0].values if learned else None, raw

    return run


@pytest.mark.parametrize("advantage", ["kept", "pool"])
@pytest.mark.parametrize("over", ["group", "pool"])
def test_the_unit_of_a_reward_changes_neither_selection_nor_advantages(iterate, over, advantage):
    _, chosen, learned, raw = iterate("one", pair(DARKNESS, over), update__advantage=advantage)
    _, again, relearned, rescaled = iterate("two", pair(THOUSANDS, over), update__advantage=advantage)
    assert chosen.indices.tolist() == again.indices.tolist()
    assert learned == pytest.approx(relearned, rel=1e-3, nan_ok=True)
    assert rescaled[THOUSANDS] == pytest.approx(1000 * raw[DARKNESS] - 7, rel=1e-5)


def test_without_a_common_scale_the_unit_decides(iterate):
    _, chosen, *_ = iterate("one", pair(THOUSANDS, "none"))
    _, alone, *_ = iterate("two", [{"name": THOUSANDS}])
    assert chosen.indices.tolist() == alone.indices.tolist()


def test_a_reward_that_does_not_vary_changes_nothing(iterate):
    constant = {"name": "tests.support.rewards:constant", "normalize": "group", "weight": 100.0}
    _, chosen, learned, _ = iterate("one", [{"name": "colourfulness", "normalize": "group"}, constant])
    _, alone, without, _ = iterate("two", [{"name": "colourfulness", "normalize": "group"}])
    assert chosen.indices.tolist() == alone.indices.tolist()
    assert learned == pytest.approx(without, nan_ok=True)


def test_raw_rewards_are_stored_once_whatever_scale_they_are_used_on(iterate):
    raw, *_, first = iterate("raw", pair(DARKNESS, "none"))
    scaled, *_, second = iterate("scaled", pair(DARKNESS, "group"))
    assert scaled.metrics["explore/blocks_computed"] == 0
    assert scaled.refs["explore"] == raw.refs["explore"]
    assert all(np.array_equal(first[name], second[name], equal_nan=True) for name in first)
    assert scaled.refs["select"].key != raw.refs["select"].key
    assert scaled.metrics["reward/proxy"] == pytest.approx(0, abs=1e-6)
    assert scaled.metrics["reward/proxy_colourfulness"] == raw.metrics["reward/proxy_colourfulness"]


def test_one_scaled_reward_is_shown_raw_as_well(iterate):
    summary, *_ = iterate("one", [{"name": "colourfulness", "normalize": "pool"}])
    assert summary.metrics["reward/bf16_colourfulness"] > 0


def test_one_reward_is_selected_by_as_it_is(iterate):
    _, plain, *_ = iterate("one", [{"name": "colourfulness"}])
    _, scaled, *_ = iterate("two", [{"name": "colourfulness", "normalize": "group"}])
    assert plain.indices.tolist() == scaled.indices.tolist()
