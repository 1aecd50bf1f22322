import pytest

from solrl_tasks.tracking.points import batches, check_order, history_digests, points
from solrl_tasks.tracking.summary import Summary, is_cost, split_finite


def test_points_hold_every_metric_and_standard_error(make_summary):
    summary = make_summary(2)
    named = {point.name: point.value for point in points(summary)}
    assert named == summary.metrics | {"eval/scene_se": 0.011}
    assert {(point.step, point.timestamp_ms) for point in points(summary)} == {(2, summary.timestamp_ms)}


def test_a_metric_that_wants_the_name_of_an_error_is_refused(make_summary):
    clash = make_summary(1, metrics={"eval/scene": 1.0, "eval/scene_se": 5.0}, stderr={"eval/scene": 0.1})
    with pytest.raises(ValueError, match="eval/scene_se"):
        points(clash)


def test_digest_of_a_prefix_does_not_depend_on_what_follows(history):
    whole, head = history_digests(history), history_digests(history[:2])
    assert head == {step: whole[step] for step in (0, 1)}
    assert len(set(whole.values())) == len(history)


@pytest.mark.parametrize(
    "change", [{"timestamp_ms": 1}, {"metrics": {"eval/scene": 0.5}}, {"stderr": {"eval/scene": 0.5}}]
)
def test_digest_sees_values_times_and_errors(history, make_summary, change):
    other = [history[0], make_summary(1, **change), *history[2:]]
    ours, theirs = history_digests(history), history_digests(other)
    assert ours[0] == theirs[0]
    assert all(ours[step] != theirs[step] for step in (1, 2, 3))


def test_batches_hold_whole_summaries_and_every_point_once(history):
    sizes = [len(points(summary)) for summary in history]
    for limit in (max(sizes), sum(sizes), 1000):
        made = list(batches(history, limit))
        assert [point for batch in made for point in batch] == [p for s in history for p in points(s)]
        assert all(len(batch) <= limit for batch in made)
        for step in range(len(history)):
            assert sum(any(p.step == step for p in batch) for batch in made) == 1


def test_a_summary_too_large_for_one_request_is_split(make_summary):
    large = make_summary(0, metrics={f"eval/m{i}": 0.0 for i in range(25)}, stderr={})
    assert [len(batch) for batch in batches([large], 10)] == [10, 10, 5]


def test_order_of_steps_and_single_run_are_required(history, make_summary):
    check_order(history)
    with pytest.raises(ValueError, match="order"):
        check_order([history[1], history[0]])
    with pytest.raises(ValueError, match="order"):
        check_order([history[1], history[1]])
    with pytest.raises(ValueError, match="several runs"):
        check_order([history[0], make_summary(1, run_id="other")])


def test_results_leave_costs_out(make_summary):
    results = make_summary(1).results()
    assert "eval/scene" in results
    assert not any(is_cost(name) for name in results)
    assert is_cost("gpu_hours/spent")
    assert is_cost("explore/blocks_reused")
    assert not is_cost("explore/candidates")


def test_values_that_are_not_finite_are_named_apart():
    finite, dropped = split_finite({"a": 1, "b": float("nan"), "c": float("inf"), "d": -2.5})
    assert finite == {"a": 1.0, "d": -2.5}
    assert dropped == ("b", "c")


def test_a_summary_refuses_what_is_not_finite_and_survives_json(make_summary):
    summary = make_summary(1)
    assert Summary.model_validate_json(summary.model_dump_json()) == summary
    with pytest.raises(ValueError, match="finite"):
        Summary.model_validate(summary.model_dump() | {"metrics": {"reward/proxy": float("nan")}})
