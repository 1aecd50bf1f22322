"""A copy of networks' weights in host memory, to point at while the networks are off their device."""

from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor, UntypedStorage, nn

from solrl_tasks.models.host_memory import allocate


class HostCopy:
    """Parameters and buffers of networks, copied once; the networks then point at it or at a device.

    Values must not change: what is written on a device is not brought back. Tensors that share memory share it in
    either place; shapes, strides and precisions stay. Tensors on the meta device have no values, and stay there.
    """

    def __init__(self, networks: Iterable[nn.Module], pin: bool) -> None:
        """
        Args:
            networks: wherever they lie; they still lie there afterwards.
            pin: have the copy in pinned memory as far as the host grants it; needs a CUDA device.

        Raises:
            MemoryError: the host has no memory for it.
        """
        self._sharing = _by_storage(networks)
        memory = allocate([tensors[0].untyped_storage().nbytes() for tensors in self._sharing], pin)
        self._copies = memory.pieces
        self.refused, self.refusal = memory.refused, memory.refusal
        for copy, tensors in zip(self._copies, self._sharing, strict=True):
            copy.copy_(_all_bytes(tensors[0]))

    def leave(self) -> None:
        """Point the networks at the copy. Nothing is copied; no other memory is held for them any more."""
        self._point(self._copies)

    def arrive(self, device: torch.device) -> None:
        """Copy to a device and point the networks at that. If it fails, they point where they did.

        Raises:
            torch.OutOfMemoryError: the device has no memory for it.
        """
        there: list[Tensor] = []
        try:
            for copy in self._copies:
                there.append(copy.to(device, non_blocking=True, copy=True))
            if device.type == "cuda":
                # Whoever computes may do so on another stream.
                torch.cuda.current_stream(device).synchronize()
        except BaseException:
            # The error holds this frame: whoever tells of it would find the device full.
            there.clear()
            raise
        self._point(there)

    def _point(self, places: list[Tensor]) -> None:
        for place, tensors in zip(places, self._sharing, strict=True):
            storage = place.untyped_storage()
            for tensor in tensors:
                tensor.data = _view(storage, tensor)


def _by_storage(networks: Iterable[nn.Module]) -> list[list[Tensor]]:
    """Each tensor once, together with those that look into the same memory."""
    tensors = {id(t): t for network in networks for t in [*network.parameters(), *network.buffers()] if not t.is_meta}
    sharing: dict[int, list[Tensor]] = defaultdict(list)
    for tensor in tensors.values():
        sharing[tensor.untyped_storage()._cdata].append(tensor)
    return list(sharing.values())


def _all_bytes(tensor: Tensor) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(tensor.untyped_storage())


def _view(storage: UntypedStorage, like: Tensor) -> Tensor:
    empty = torch.empty(0, dtype=like.dtype, device=storage.device)
    return empty.set_(storage, like.storage_offset(), like.size(), like.stride())
