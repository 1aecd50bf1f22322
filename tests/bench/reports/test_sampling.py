"""Timed chunks: what a rollout of any number of them takes."""

import pytest

from tests.support.bench_reports import sampled


def test_a_rollout_is_its_first_chunk_and_the_steady_rest():
    timed = sampled("bf16", 10, 11.0, 31.0, 9.6)
    assert timed.steady_seconds == pytest.approx(10.0)
    assert timed.seconds_of(1) == pytest.approx(11.0)
    assert timed.seconds_of(3) == pytest.approx(31.0)
    assert timed.seconds_of(4) == pytest.approx(41.0)
    assert timed.seconds_of(0) == 0.0


def test_the_denoising_time_is_a_median():
    timed = sampled("bf16", 10, 11.0, 31.0, 9.6)
    assert timed.denoise == 9.6
    assert timed.image_step_seconds == pytest.approx(9.6 / 240)


def test_a_single_chunk_that_was_slow_does_not_make_time_run_backwards():
    assert sampled("bf16", 10, 11.0, 9.0, 3.0).steady_seconds == 0.0
