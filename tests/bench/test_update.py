"""Updates on random samples."""

from solrl_tasks.bench.update import bench_update
from solrl_tasks.config.recipe import UpdateSpec
from tests.bench.conftest import LORA


def test_updates_are_counted_by_rows_and_the_first_is_left_out(subject):
    spec = UpdateSpec(lora=LORA, times_per_sample=2, micro_batch=2, gradient_checkpointing=True)
    before = subject.device.counters.updates
    report = bench_update(subject, spec, samples=3, steps=4, repeats=2, note=lambda text: None)
    assert report.rows == 6
    assert len(report.seconds) == 2 and min(report.seconds) > 0
    assert report.row_seconds > 0 and report.first_seconds > 0
    assert report.gradient_checkpointing
    assert report.peak_bytes is None
    assert subject.device.counters.updates == before + 3
    assert report.row_seconds == (report.seconds[0] + report.seconds[1]) / 2 / 6
