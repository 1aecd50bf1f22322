"""Host memory in pieces, pinned where a device is to read it fast."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_SLAB = 2**30
_ALIGNMENT = 512


@dataclass(frozen=True)
class HostMemory:
    """Pieces of host memory.

    Attributes:
        pieces: uint8 [size], each with a storage of its own, aligned for every precision; their values are undefined.
        refused: bytes that were to be pinned and are pageable.
        refusal: what torch said of them; "" where nothing was refused.
    """

    pieces: list[Tensor]
    refused: int
    refusal: str


def allocate(sizes: Sequence[int], pin: bool) -> HostMemory:
    """Memory for pieces of these sizes, in bytes.

    torch takes a power of two for each pinned allocation and never gives it back to the host, so pieces are cut from
    few slabs of such sizes. From the first one that the host refuses to pin on, slabs are pageable.

    Args:
        pin: ask for pinned memory; needs a CUDA device.

    Raises:
        MemoryError: the host has not even pageable memory for it.
    """
    places, lengths = _pack(sizes)
    slabs: list[Tensor] = []
    refused, refusal = 0, ""
    for length in lengths:
        if pin and not refusal:
            try:
                slabs.append(_pinned(length))
                continue
            except RuntimeError as error:
                refusal = _first_line(error)
        refused += length if pin else 0
        slabs.append(_pageable(length, sum(lengths)))
    # A slice of a slab would have the slab's storage: whoever looks for tied weights would find all of them tied.
    arrays = [slab.numpy() for slab in slabs]
    cuts = zip(places, sizes, strict=True)
    pieces = [torch.from_numpy(arrays[slab][start : start + size]) for (slab, start), size in cuts]
    return HostMemory(pieces, refused, refusal)


def _pack(sizes: Sequence[int]) -> tuple[list[tuple[int, int]], list[int]]:
    """(slab, first byte) of each size, and the bytes used of each slab; the largest are placed first."""
    places: list[tuple[int, int]] = [(0, 0)] * len(sizes)
    used: list[int] = []
    rooms: list[int] = []
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        need = -(-sizes[index] // _ALIGNMENT) * _ALIGNMENT
        slab = next((n for n, room in enumerate(rooms) if used[n] + need <= room), len(rooms))
        if slab == len(rooms):
            rooms.append(max(_SLAB, 1 << (need - 1).bit_length()))
            used.append(0)
        places[index] = (slab, used[slab])
        used[slab] += need
    return places, used


def _pinned(length: int) -> Tensor:
    return torch.empty(length, dtype=torch.uint8, pin_memory=True)


def _pageable(length: int, whole: int) -> Tensor:
    try:
        return torch.empty(length, dtype=torch.uint8)
    except RuntimeError as error:
        raise MemoryError(f"the host has no {whole / 2**30:.2f} GiB for it ({_first_line(error)})") from error


def _first_line(error: RuntimeError) -> str:
    return str(error).partition("\n")[0].rstrip(". ")
