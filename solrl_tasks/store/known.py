"""What a process knows of a store in a bucket and need not ask again, for as long as nobody can have changed it."""

import threading
from typing import Final, Protocol

from solrl_tasks.store.bucket_objects import Listing
from solrl_tasks.store.memory import Memory

_SETTLED_LIMIT: Final = 16 * 1024 * 1024
_LISTINGS_LIMIT: Final = 32 * 1024 * 1024
_FILE_BYTES: Final = 400
"""What one takes in memory besides its content and key, rounded up."""


class Guard(Protocol):
    """What keeps others from removing what was seen."""

    @property
    def sure(self) -> bool:
        """Whether it has kept them out all the time."""


class Known:
    """What was found whole in a bucket and stays as it is while this process has the store in use.

    Nothing is removed from a store that is in use, and much of it is written once: of a thing whose mark or manifest
    was seen, all that it names stands. So it is believed what is *there*, and what it holds; never that something is
    *not* there, and never that something is damaged: either is asked anew. What can change (leases, references,
    blocks that lack) is not remembered here.

    Two things are: objects that are written once, by key, which whoever read them found whole (``settled``); and
    listings, of which only what they name counts.

    It is empty without a guard, and forgets everything where the guard is not sure.
    """

    def __init__(self, settled: int = _SETTLED_LIMIT, listings: int = _LISTINGS_LIMIT) -> None:
        self._settled: Memory[str, bytes] = Memory(settled)
        self._listings: Memory[str, Listing] = Memory(listings)
        self._guard: Guard | None = None
        self._since = 0
        self._one = threading.RLock()

    def trust(self, guard: Guard | None) -> None:
        """Begin anew under a guard; None ends it."""
        with self._one:
            self._guard = guard
            self.forget()

    @property
    def trusted(self) -> bool:
        """Whether what is remembered may be believed now."""
        with self._one:
            if self._guard is not None and not self._guard.sure:
                self.trust(None)
            return self._guard is not None

    @property
    def since(self) -> int:
        """Changes whenever everything is forgotten: what was asked for before it changed is not to be remembered."""
        return self._since

    @property
    def held(self) -> int:
        """Bytes of what is remembered."""
        return self._settled.held + self._listings.held

    def forget(self) -> None:
        """Ask for everything anew from now on."""
        with self._one:
            self._since += 1
            self._settled.forget()
            self._listings.forget()

    def settle(self, key: str, data: bytes, since: int) -> None:
        """Remember an object that is written once and was found whole.

        Args:
            since: as it was before the object was asked for.
        """
        with self._one:
            if since == self._since and self.trusted:
                self._settled.keep(key, data, _FILE_BYTES + len(key) + len(data))

    def settled(self, key: str) -> bytes | None:
        """The content of an object that is remembered."""
        return self._settled.find(key) if self.trusted else None

    def keep(self, listing: Listing) -> None:
        """Remember a listing in the place of an earlier one of that folder."""
        with self._one:
            if listing.since == self._since and self.trusted:
                self._listings.keep(listing.prefix, listing, listing.bytes)

    def listing(self, prefix: str) -> Listing | None:
        """The remembered listing of a folder: what it names is there, and there may be more."""
        return self._listings.find(prefix) if self.trusted else None

    def drop(self, key: str) -> None:
        """An object was written over or removed."""
        self._settled.drop(key)

    def drop_below(self, prefix: str) -> bool:
        """Ask anew for what is below a folder; whether anything was remembered of it."""
        start = f"{prefix}/"
        keys = self._settled.drop_where(lambda key: key.startswith(start))
        return bool(keys + self._listings.drop_where(lambda key: key == prefix or key.startswith(start)))
