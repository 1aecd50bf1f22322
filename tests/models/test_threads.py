"""Work on tensors by several threads: the same values in the same places."""

import threading

import pytest
import torch

from solrl_tasks.models import threads
from solrl_tasks.models.lora import LoraState
from solrl_tasks.models.threads import threaded, total_bytes


def test_there_are_threads_only_where_they_are_worth_it(monkeypatch):
    monkeypatch.setattr(threads.os, "cpu_count", lambda: 4)
    where = set()

    def square(number):
        where.add(threading.current_thread())
        return number * number

    for nbytes, here in ((threads.WORTH - 1, True), (threads.WORTH, False)):
        where.clear()
        assert threaded(square, range(50), nbytes) == [number * number for number in range(50)]
        assert (where == {threading.current_thread()}) is here
    assert threaded(square, [], threads.WORTH) == []


def test_an_error_of_one_is_an_error_of_all(monkeypatch):
    monkeypatch.setattr(threads.os, "cpu_count", lambda: 4)
    with pytest.raises(ZeroDivisionError):
        threaded(lambda number: 1 // number, [3, 2, 1, 0], threads.WORTH)


def test_adapters_are_the_same_by_threads(monkeypatch):
    generator = torch.Generator().manual_seed(0)

    def adapter():
        shapes = {f"{n}.lora_{side}": (3, 5) if side == "A" else (7, 3) for n in range(9) for side in "AB"}
        return LoraState(3, 2.0, {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()})

    one, other = adapter(), adapter()
    alone = one.lerp(other, 0.3), one.clone()
    monkeypatch.setattr(threads, "WORTH", 0)
    monkeypatch.setattr(threads.os, "cpu_count", lambda: 4)
    for mine, wanted in zip((one.lerp(other, 0.3), one.clone()), alone, strict=True):
        assert list(mine.weights) == list(wanted.weights) and mine.digest == wanted.digest
    assert one.clone().weights["0.lora_A"].data_ptr() != one.weights["0.lora_A"].data_ptr()
    assert one.nbytes == total_bytes(one.weights.values()) == 9 * 4 * (3 * 5 + 7 * 3)
