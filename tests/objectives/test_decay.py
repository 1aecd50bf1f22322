import pytest

from solrl_tasks.objectives.decay import ema_decay, old_decay


@pytest.mark.parametrize(
    ("schedule", "table"),
    [
        ("copy", {0: 0.0, 1000: 0.0}),
        ("ramp", {0: 0.0, 100: 0.1, 500: 0.5, 1000: 0.5}),
        (
            "delayed",
            {0: 0.0, 74: 0.0, 75: 0.0, 76: 0.0075, 100: 0.1875, 208: 0.9975, 209: 0.999, 10_000: 0.999},
        ),
    ],
)
def test_old_decay_tables(schedule, table):
    # T18.
    assert {step: old_decay(schedule, step) for step in table} == pytest.approx(table, abs=1e-15)


def test_constant_decay_is_what_it_is_given():
    assert old_decay("constant", 7, 0.3) == 0.3


def test_the_schedule_of_ram_counts_iterations():
    found = {i: old_decay("by_iteration", 8 * i, iteration=i) for i in (0, 1, 50, 90, 500)}
    assert found == pytest.approx({0: 0.0, 1: 0.01, 50: 0.5, 90: 0.9, 500: 0.9})


def test_unknown_schedule_and_negative_step_are_refused():
    with pytest.raises(ValueError, match="there is copy, ramp, delayed, constant"):
        old_decay("slow", 1)
    with pytest.raises(ValueError, match="cannot be negative"):
        old_decay("ramp", -1)


def test_evaluation_average_warms_up():
    assert [ema_decay(step) for step in (0, 1, 80, 81, 1000)] == pytest.approx([0.1, 2 / 11, 0.9, 0.9, 0.9])
