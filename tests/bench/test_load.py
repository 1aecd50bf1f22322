"""The measurement of load in a small form: memory flat, time linear, and an MLflow history that is the store's."""

import pytest

from benchmarks.load import measure_explore, measure_resume


@pytest.mark.slow
def test_a_pool_is_filled_in_linear_time_and_flat_memory(tmp_path):
    found = measure_explore(tmp_path, prompts=120, candidates=24, chunk=8, keep="thumbnails")
    assert found["blocks"] == 360
    # Of the processor: what else the machine does makes no difference.
    assert found["second_half_to_first_processor"] < 1.5
    assert found["rss_mb_at_100_percent"] - found["rss_mb_at_10_percent"] < 20


@pytest.mark.slow
def test_a_run_that_is_stopped_often_has_every_value_in_mlflow_once(tmp_path):
    found = measure_resume(tmp_path, iterations=8, resumes=4, seed=2)
    assert found["starts"] == 5
    assert found["values_in_mlflow"] > 400
