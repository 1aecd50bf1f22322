"""Block arrays: the order of writing, and what is on the disk."""

import numpy as np
import pytest
import zarr

from solrl_tasks.store.arrays import BlockArray
from solrl_tasks.store.digests import block_digest


@pytest.fixture
def array(tmp_path):
    return BlockArray.create(tmp_path / "a", rows=2, columns=8, chunk=4, item=(), dtype="float32")


class Killed(BaseException):
    pass


def die(*_written):
    raise Killed


def test_a_block_that_is_written_again_is_not_done_meanwhile(array, monkeypatch, caplog):
    array.write(0, 0, np.zeros(4, np.float32), 1, 1.0, 1)
    monkeypatch.setattr(array._values, "put", die)
    with pytest.raises(Killed):
        array.write(0, 0, np.ones(4, np.float32), 1, 1.0, 2)
    assert array.entry(0, 0).tolist() == [0, 0, 0, 0]
    assert array.read(0, 0) is None and caplog.text == ""


def test_values_come_before_their_mark(array, monkeypatch):
    monkeypatch.setattr(array._ledger, "enter", die)
    with pytest.raises(Killed):
        array.write(0, 0, np.ones(4, np.float32), 1, 1.0, 2)
    assert (array.path / "values" / "c" / "0" / "0").exists()
    assert array.read(0, 0) is None


def test_a_block_that_equals_the_fill_value_has_a_file(array):
    array.grow(12)
    array.write(1, 1, np.full(4, np.nan, np.float32), 1, 1.0, 1)
    assert (array.path / "values" / "c" / "1" / "1").exists()
    assert array.verified(3).tolist() == [[False] * 3, [False, True, False]]


def test_every_nan_has_the_same_bits_and_other_bits_are_kept(array):
    odd = np.array([0x7FC00001, 0xFFC00000, 0x80000000, 0x00000001], np.uint32).view(np.float32)
    array.write(0, 0, odd, 1, 1.0, 1)
    nan = np.float32(np.nan).view(np.uint32)
    assert array.read(0, 0).view(np.uint32).tolist() == [nan, nan, 0x80000000, 1]


def test_the_entry_says_record_cost_and_time(array):
    array.write(0, 1, np.ones(4, np.float32), 2**64 - 1, 1.5, 123)
    assert array.entry(0, 1).tolist() == [
        block_digest(np.ones(4, np.float32), 0, 1), 2**64 - 1, 1_500_000, 123,
    ]  # fmt: skip


def test_growing_keeps_what_is_done(array):
    array.write(0, 1, np.ones(4, np.float32), 1, 1.0, 1)
    array.grow(12)
    array.grow(4)
    assert array.columns == 12
    array.write(1, 2, np.ones(4, np.float32), 1, 1.0, 1)
    again = BlockArray.open(array.path, 2, 4, (), "float32")
    assert np.argwhere(again.verified(3)).tolist() == [[0, 1], [1, 2]]


def test_plain_zarr_reads_it(array):
    array.write(0, 1, np.arange(4, dtype=np.float32), 1, 1.0, 1)
    group = zarr.open_group(array.path, mode="r", use_consolidated=False)
    assert group["values"][0].tolist()[4:] == [0.0, 1.0, 2.0, 3.0] and np.isnan(group["values"][1]).all()
    assert group["ledger"].chunks == (1, 1, 4) and group.attrs["ledger_fields"][0] == "digest"
