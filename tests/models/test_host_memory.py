"""Pieces of host memory: apart, aligned, in slabs that waste little, and pageable where pinning is refused."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from solrl_tasks.models import host_memory
from solrl_tasks.models.host_memory import allocate

GIB = 2**30
T5_XXL = [4096 * 32128 * 4, *([4096 * 4096 * 4] * 96), *([4096 * 10240 * 4] * 72), *([4096 * 4] * 49)]
"""Bytes of the weights of its encoder in float32, but for the few of relative positions."""


def refuse(*_):
    raise RuntimeError("CUDA error: out of memory\nCompile with something.")


@settings(deadline=None)
@given(st.lists(st.integers(0, 5000), max_size=12))
def test_pieces_are_apart_and_aligned_and_have_storages_of_their_own(sizes):
    memory = allocate(sizes, pin=False)
    assert [(len(piece), piece.dtype) for piece in memory.pieces] == [(size, torch.uint8) for size in sizes]
    assert [piece.untyped_storage().nbytes() for piece in memory.pieces] == sizes
    assert (memory.refused, memory.refusal) == (0, "")
    for value, piece in enumerate(memory.pieces):
        piece.fill_(value)
    for value, piece in enumerate(memory.pieces):
        assert (piece == value).all()
        assert piece.data_ptr() % 16 == 0 or not len(piece)


@settings(deadline=None)
@given(st.lists(st.integers(0, 3 * GIB), max_size=30))
def test_a_plan_overlaps_nothing_and_gives_no_slab_more_than_it_has(sizes):
    places, lengths = host_memory._pack(sizes)
    for slab, length in enumerate(lengths):
        spans = sorted((start, start + size) for (n, start), size in zip(places, sizes, strict=True) if n == slab)
        assert all(one[1] <= other[0] for one, other in pairwise(spans))
        assert spans[-1][1] <= length <= max(GIB, 2 * max(end - start for start, end in spans))


def test_little_is_wasted_though_torch_takes_powers_of_two():
    _, lengths = host_memory._pack(T5_XXL)
    taken = sum(1 << (length - 1).bit_length() for length in lengths)
    assert sum(T5_XXL) <= sum(lengths) <= taken < sum(T5_XXL) + GIB / 2
    assert sum(1 << (size - 1).bit_length() for size in T5_XXL) > 1.3 * sum(T5_XXL)


def test_what_is_not_granted_is_pageable_and_counted(monkeypatch):
    granted = []

    def grant(length):
        if granted:
            refuse()
        granted.append(torch.empty(length, dtype=torch.uint8))
        return granted[0]

    monkeypatch.setattr(host_memory, "_SLAB", 1024)
    monkeypatch.setattr(host_memory, "_pinned", grant)
    memory = allocate([1024, 1000, 1], pin=True)
    assert (memory.refused, memory.refusal) == (1024 + 512, "CUDA error: out of memory")
    assert [granted[0].data_ptr() == piece.data_ptr() for piece in memory.pieces] == [True, False, False]
    assert [len(piece) for piece in memory.pieces] == [1024, 1000, 1]


def test_after_a_refusal_no_more_is_asked_for(monkeypatch):
    asked = []
    monkeypatch.setattr(host_memory, "_SLAB", 1024)
    monkeypatch.setattr(host_memory, "_pinned", lambda length: refuse(asked.append(length)))
    assert allocate([1024, 1024], pin=True).refused == 2048
    assert asked == [1024]
    assert allocate([1024, 1024], pin=False).refused == 0


def test_too_little_of_any_kind_is_said(monkeypatch):
    empty = torch.empty

    def short(length, **options):
        return empty(length, **options) if length < 2048 else refuse()

    monkeypatch.setattr(torch, "empty", short)
    with pytest.raises(MemoryError, match=r"the host has no 0\.00 GiB for it \(CUDA error: out of memory\)$"):
        allocate([100, 4096], pin=False)
