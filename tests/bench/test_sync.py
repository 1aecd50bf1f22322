"""Syncs: all layers the first time, those of the adapter after it, and no new graph by a swap."""

from solrl_tasks.bench.sync import bench_sync, graphs


def test_every_engine_is_synced_again_and_again(subject):
    report = bench_sync(subject, ["bf16", "nvfp4-emulated"], 2, 2, lambda text: None)
    assert report.failed == {}
    paths = subject.lora(1).paths
    for sync in report.engines:
        assert sync.first_tensors == sync.replaced > len(paths) > 0
        assert len(sync.seconds) == 2
        assert sync.tensors == len(paths)
        assert (sync.graphs, sync.new_graphs) == (0, 0)
        assert sync.bytes > 0


def test_an_engine_that_fails_is_told_of(subject):
    report = bench_sync(subject, ["none-of-ours", "bf16"], 1, 1, lambda text: None)
    assert "unknown engine" in report.failed["none-of-ours"]
    assert [sync.engine for sync in report.engines] == ["bf16"]


def test_graphs_are_counted():
    import torch

    before = graphs()
    torch.compile(lambda x: x + 1, backend="eager")(torch.zeros(2))
    assert graphs() == before + 1


def test_adapters_differ_and_change_something(subject):
    one, other = subject.lora(1), subject.lora(2)
    assert one.digest == subject.lora(1).digest != other.digest
    assert not one.is_zero
