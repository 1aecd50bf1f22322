"""A memory takes no more than its limit, and what was used last stays."""

import tracemalloc

import pytest

from solrl_tasks.store.bucket_objects import MIDDLING, SMALL, Bodies, Entry, Listing
from solrl_tasks.store.memory import Memory


def test_it_never_takes_more_than_its_limit():
    memory: Memory[int, bytes] = Memory(1000)
    for number in range(200):
        memory.keep(number, bytes(number), number)
        assert memory.held <= 1000
        assert memory.held == sum(len(memory.find(key) or b"") for key in range(200))


def test_what_was_used_last_stays():
    memory: Memory[str, int] = Memory(3)
    for name in "abc":
        memory.keep(name, 1, 1)
    assert memory.find("a") == 1
    memory.keep("d", 1, 1)
    assert [memory.find(name) for name in "abcd"] == [1, None, 1, 1]


def test_what_is_too_large_drives_nothing_out_and_takes_no_older_ones_place():
    memory: Memory[str, int] = Memory(3)
    memory.keep("a", 1, 2)
    memory.keep("b", 2, 1)
    memory.keep("a", 3, 4)
    assert memory.find("a") is None and memory.find("b") == 2 and memory.held == 1


def test_forgetting_gives_the_bytes_back():
    memory: Memory[str, int] = Memory(10)
    for name in ("a/1", "a/2", "b/1"):
        memory.keep(name, 1, 3)
    assert memory.drop_where(lambda key: key.startswith("a/")) == 2
    assert memory.held == 3 and memory.find("b/1") == 1
    memory.drop("b/1")
    memory.drop("never kept")
    assert memory.held == 0
    memory.keep("c", 1, 3)
    memory.forget()
    assert memory.held == 0 and memory.find("c") is None


@pytest.mark.parametrize(("size", "kept"), [(SMALL, True), (SMALL + 1, True), (MIDDLING, True), (MIDDLING + 1, False)])
def test_large_objects_are_not_remembered(size: int, kept: bool):
    bodies = Bodies()
    bodies.keep("x", "tag", bytes(size))
    assert (bodies.find("x", "tag") is not None) is kept
    assert bodies.find("x", "another tag") is None


def test_pictures_do_not_drive_marks_out():
    bodies = Bodies(small=1000, middling=3 * SMALL)
    bodies.keep("mark", "tag", b"small")
    for number in range(10):
        bodies.keep(f"picture {number}", "tag", bytes(SMALL + 1))
        assert bodies.held <= 1000 + 3 * SMALL
    assert bodies.find("mark", "tag") == b"small"


def test_small_ones_take_no_more_than_is_counted():
    def key(number: int) -> str:
        return f"pools/{number:024x}/data.zarr/rewards/scene@1/ledger/c/{number}/0/0"

    bodies = Bodies(small=10**9)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for number in range(5000):
        bodies.keep(key(number), f'"{number:032x}"', number.to_bytes(36, "big"))
    taken = tracemalloc.get_traced_memory()[0] - before
    listing = Listing("pools", 0)
    listing.fill(Entry(key(number), 36, f'"{number:032x}"', float(number)) for number in range(5000))
    listed = tracemalloc.get_traced_memory()[0] - before - taken
    tracemalloc.stop()
    assert taken <= bodies.held and listed <= listing.bytes
