"""Policies on their way to actors: those that hold one already are sent nothing."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

from solrl_tasks.models.lora import BASE_DIGEST, LoraState
from solrl_tasks.workers.transport import pack_lora

Parcel = list[Any]
"""A reference to what is sent, boxed so that Ray does not fetch it unasked; nothing for whoever holds it."""
KEPT: Final = 2


class Parcels:
    """What actors are sent of things that go by a digest: in the object store once, when the first one lacks it.

    Args:
        kept: how many of them stay there.
    """

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._sent: OrderedDict[str, Any] = OrderedDict()

    def of(self, digest: str, pack: Callable[[], Any], holds: frozenset[str]) -> Parcel:
        """For one actor.

        Args:
            pack: gives what is to be sent, where it is not in the object store.
            holds: digests of what that actor has.
        """
        if digest in holds:
            return []
        if digest not in self._sent:
            import ray

            while len(self._sent) >= self._kept:
                self._sent.popitem(last=False)
            self._sent[digest] = ray.put(pack())
        return [self._sent[digest]]

    def of_lora(self, lora: LoraState | None, holds: frozenset[str]) -> tuple[str, Parcel | None]:
        """An adapter's digest, and its parcel for one actor; None for the base."""
        if lora is None:
            return BASE_DIGEST, None
        return lora.digest, self.of(lora.digest, lambda: pack_lora(lora), holds)


def opened(parcel: Parcel) -> Any:
    """What was sent.

    Raises:
        RuntimeError: nothing was, as this actor was thought to hold it.
    """
    if not parcel:
        raise RuntimeError("an actor was sent no policy, and does not hold the one that it was thought to hold")
    import ray

    return ray.get(parcel[0])
