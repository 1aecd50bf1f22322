import math

import numpy as np
import pytest

from solrl_tasks.analysis.curves import Curves, curve_noise, isotonic
from solrl_tasks.analysis.plateau import find_plateau
from solrl_tasks.analysis.reach import reach
from solrl_tasks.analysis.speed_up import speed_up
from solrl_tasks.analysis.time_to_reward import time_to_reward

PLACES = np.arange(0.0, 31.0, 3.0)


def curves(rewards, cost=1.0, places=PLACES, seeds=None, errors=None):
    """An arm whose iterations cost the same."""
    rewards = np.atleast_2d(np.asarray(rewards, dtype=np.float64))
    seeds = tuple(seeds or range(1, len(rewards) + 1))
    return Curves(seeds, places, rewards, np.tile(places * cost, (len(rewards), 1)), errors)


def saturating(rate, seeds=8, noise=0.0, top=0.2, random=None):
    """1 - exp(-rate x) up to a plateau of 0.3 + top, the same start in all seeds."""
    clean = 0.3 + top * np.minimum(1.0, (1 - np.exp(-rate * PLACES)) / (1 - math.exp(-rate * 18)))
    drawn = np.zeros((seeds, len(PLACES))) if random is None else random.normal(0, noise, (seeds, len(PLACES)))
    drawn[:, 0] = 0
    return clean + drawn


RAMP = np.minimum(PLACES / 15, 1.0) * 0.2 + 0.3
"""Rises by a line until iteration 15 and rests at 0.5."""
FAST = np.minimum(PLACES / 6, 1.0) * 0.2 + 0.3


def test_a_known_plateau_and_its_thresholds():
    plateau = find_plateau(curves([RAMP] * 3))
    assert (plateau.start, plateau.level) == pytest.approx((0.3, 0.5))
    assert (plateau.trend, plateau.tail, plateau.resolved) == ("flat", 4, True)
    assert [plateau.threshold(share) for share in (0.25, 0.5, 1.0)] == pytest.approx([0.35, 0.4, 0.5])
    assert plateau.rise.mean == pytest.approx(0)


def test_a_curve_that_still_rises_or_falls_has_no_plateau_and_its_end_counts():
    line = 0.3 + 0.01 * PLACES
    noise = np.random.default_rng(0).normal(0, 0.002, (6, len(PLACES)))
    for sign, trend in ((1, "rising"), (-1, "falling")):
        found = find_plateau(curves(0.3 + sign * (line - 0.3) + noise))
        assert found.trend == trend
        assert found.level == pytest.approx(0.3 + sign * 0.3, abs=0.005)
        assert found.rise.mean == pytest.approx(sign * 0.09, abs=0.005)
        assert found.resolved is (sign > 0)
    with pytest.raises(ValueError, match="4 evaluations or more, found 3"):
        find_plateau(curves([[0.1, 0.2, 0.3]], places=np.arange(3.0)))


def test_known_costs_and_speed_ups():
    slow, fast = curves([RAMP] * 3, cost=2.0), curves([FAST] * 3, cost=4.0)
    found = time_to_reward(fast, slow)
    assert [one.share for one in found] == [0.25, 0.5, 0.75, 1.0]
    # The baseline is there after 15 iterations of 2, the arm after 6 of 4: all along the way by straight lines.
    assert [one.baseline.cost.mean for one in found] == pytest.approx([7.5, 15, 22.5, 30])
    assert [one.arm.cost.mean for one in found] == pytest.approx([6, 12, 18, 24])
    for one in found:
        assert (one.speedup.ratio, one.speedup.of_mean) == pytest.approx((1.25, 1.25))
        assert (one.speedup.low, one.speedup.high) == pytest.approx((1.25, 1.25))
        assert (one.speedup.of_mean_low, one.speedup.of_mean_high) == pytest.approx((1.25, 1.25))
        assert (one.speedup.bound, one.speedup.pairs, one.unresolved) == ("exact", 3, False)


def test_an_arm_against_itself_is_no_faster():
    arm = curves(saturating(0.1, noise=0.004, random=np.random.default_rng(1)))
    for one in time_to_reward(arm, arm, (0.25, 0.5, 0.75)):
        assert (one.speedup.ratio, one.speedup.low, one.speedup.high) == pytest.approx((1, 1, 1))
        assert (one.speedup.of_mean_low, one.speedup.of_mean_high) == pytest.approx((1, 1))


def test_speed_ups_do_not_depend_on_units_nor_on_the_order_of_seeds():
    random = np.random.default_rng(2)
    base, arm = saturating(0.08, noise=0.01, random=random), saturating(0.2, noise=0.01, random=random)
    one = time_to_reward(curves(arm, 2.0), curves(base, 1.0))
    scaled = time_to_reward(curves(10 * arm - 3, 2.0 / 3600), curves(10 * base - 3, 1.0 / 3600))
    mixed = time_to_reward(curves(arm[::-1], 2.0, seeds=range(8, 0, -1)), curves(base, 1.0))
    for a, b, c in zip(one, scaled, mixed, strict=True):
        assert a.unresolved == b.unresolved == c.unresolved
        for name in ("ratio", "low", "high", "of_mean", "of_mean_low", "of_mean_high"):
            value = getattr(a.speedup, name)
            assert getattr(b.speedup, name) == pytest.approx(value, nan_ok=True), name
            if "_" not in name.removeprefix("of_mean"):
                assert getattr(c.speedup, name) == pytest.approx(value, nan_ok=True), name
        assert b.arm.cost.mean * 3600 == pytest.approx(a.arm.cost.mean, nan_ok=True)
        assert b.level == pytest.approx(10 * a.level - 3)


def test_noise_alone_is_not_progress():
    """One lucky evaluation does not reach a level; a peak that is not held does not either."""
    lucky = RAMP.copy()
    lucky[2] = 0.55
    assert reach(curves(lucky), 0.5).each[0] > 6
    lost = np.array([0.3, 0.4, 0.5, 0.5, 0.4, 0.3, 0.3, 0.3, 0.3, 0.3, 0.3])
    assert reach(curves(lost), 0.4).each == (None,)
    assert np.all(np.diff(isotonic(np.random.default_rng(0).normal(size=(5, 20)))) >= 0)


def test_runs_that_never_come_there_are_counted_and_bound_the_speed_up():
    low = np.minimum(RAMP, 0.42)
    base, arm = curves([RAMP, RAMP]), curves([FAST, low])
    at = time_to_reward(arm, base)[-1]
    assert (at.arm.each, at.arm.censored, at.baseline.censored) == ((pytest.approx(6), None), 1, 0)
    # 15 over 6, and 15 over no less than all 30 that were spent.
    assert at.speedup.ratio == pytest.approx(math.sqrt(15 / 6 * 15 / 30))
    assert (at.speedup.bound, at.speedup.arm_censored) == ("at most", 1)
    assert math.isnan(at.speedup.low) and math.isnan(at.speedup.high)
    assert at.speedup.of_mean_low == 0 and math.isnan(at.speedup.of_mean)

    # A baseline whose seeds part: its mean is 0.46, and one of its seeds never is.
    back = time_to_reward(curves([FAST, FAST]), curves([RAMP, low]))[-1]
    assert (back.speedup.bound, back.speedup.baseline_censored) == ("at least", 1)
    assert back.speedup.ratio > 2
    both = time_to_reward(curves([FAST, low]), curves([RAMP, low]))[-1]
    assert both.speedup.bound == "unknown" and math.isnan(both.speedup.ratio)


def test_the_mean_curve_of_a_baseline_comes_to_its_own_plateau():
    for seed in range(20):
        base = curves(saturating(0.1, noise=0.02, random=np.random.default_rng(seed)))
        assert reach(base, find_plateau(base).level).of_mean is not None


def test_what_the_noise_does_not_resolve_says_so():
    random = np.random.default_rng(3)
    base, arm = (saturating(rate, noise=0.01, random=random) for rate in (0.1, 0.2))
    clear = time_to_reward(curves(arm), curves(base))
    assert not any(one.unresolved for one in clear)
    # A quarter of the gain is 0.05. Errors over prompts of 0.06 do not average out over seeds.
    errors = np.full((8, len(PLACES)), 0.06)
    assert all(one.unresolved for one in time_to_reward(curves(arm, errors=errors), curves(base)))
    assert all(one.unresolved for one in time_to_reward(curves(arm), curves(base, errors=errors)))
    # Half of the gain is 0.1.
    assert not any(one.unresolved for one in time_to_reward(curves(arm, errors=errors), curves(base), (0.5, 1.0)))
    assert all(one.unresolved for one in time_to_reward(curves(arm[:1]), curves(base[:1])))
    flat = curves(0.3 + random.normal(0, 0.01, (8, len(PLACES))))
    assert all(one.unresolved for one in time_to_reward(curves(arm), flat))


def test_noise_adds_seeds_and_prompts_in_squares():
    rewards = np.array([[0.3, 0.4], [0.3, 0.6]])
    errors = np.array([[0.3, 0.2], [0.1, 0.4]])
    places = np.array([0.0, 1.0])
    assert curve_noise(curves(rewards, places=places)) == pytest.approx([0, 0.1])
    assert curve_noise(curves(rewards, places=places, errors=errors)) == pytest.approx([0.2, math.hypot(0.1, 0.3)])


def test_pairs_are_those_of_common_seeds():
    base = curves([RAMP, RAMP, FAST], seeds=(3, 1, 2))
    arm = curves([FAST, FAST], seeds=(2, 7))
    plateau = find_plateau(base)
    found = speed_up(arm, base, plateau, 1.0)
    assert (found.pairs, found.ratio) == (1, pytest.approx(1))
    with pytest.raises(ValueError, match="no pair of runs"):
        speed_up(curves([FAST], seeds=(9,)), base, plateau, 1.0)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"rewards": np.ones((2, 3))}, "rewards is"),
        ({"seeds": (1, 1)}, "distinct seeds"),
        ({"places": np.array([0.0, 2.0, 2.0, 3.0])}, "must increase"),
        ({"costs": np.zeros((2, 4))}, "must increase"),
        ({"rewards": np.full((2, 4), np.nan)}, "finite"),
        ({"prompt_errors": np.ones((1, 4))}, "prompt_errors is"),
    ],
)
def test_curves_that_cannot_be_are_refused(change, says):
    good = {
        "seeds": (1, 2),
        "places": np.arange(4.0),
        "rewards": np.ones((2, 4)),
        "costs": np.tile(np.arange(4.0), (2, 1)),
    }
    Curves(**good)
    with pytest.raises(ValueError, match=says):
        Curves(**{**good, **change})


def test_shares_must_increase():
    for wrong in ((), (0.0, 1.0), (0.5, 0.5)):
        with pytest.raises(ValueError, match="above 0 and increase"):
            time_to_reward(curves([RAMP]), curves([RAMP]), wrong)


def test_intervals_hold_the_true_speed_up_about_as_often_as_they_say(monkeypatch):
    """Seeds differ in how fast both arms learn, and every evaluation has noise: the true ratio is 2."""
    monkeypatch.setattr("solrl_tasks.analysis.speed_up.RESAMPLES", 500)
    held = {"each": 0, "mean": 0}
    trials = 120
    for trial in range(trials):
        random = np.random.default_rng(trial)
        speed = np.exp(random.normal(0, 0.15, (2, 8, 1)))
        base, arm = (np.minimum(PLACES * pace * speed[i] / 24, 1.0) for i, pace in enumerate((1.0, 2.0)))
        noisy = [0.3 + 0.2 * curve + random.normal(0, 0.006, curve.shape) * (PLACES > 0) for curve in (base, arm)]
        found = time_to_reward(curves(noisy[1]), curves(noisy[0]), (0.5,))[0].speedup
        held["each"] += found.low <= 2 <= found.high
        held["mean"] += found.of_mean_low <= 2 <= found.of_mean_high
    assert all(0.88 * trials <= count <= trials for count in held.values()), held
