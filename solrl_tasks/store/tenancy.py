"""The share that a process has in the use of a store in a bucket."""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

from solrl_tasks.store.bucket import Bucket
from solrl_tasks.store.leases import Lease


class Tenancy:
    """One share of the gate of a store, for all that use the store in this process at a time.

    The first takes the lease, the last gives it back. While it is held nobody removes anything, so what was seen of the
    bucket may be remembered (``Known``). If it was ever without a sign of life for so long that others may have taken
    it for lost, whoever comes next takes another, through the gate, and nothing that was remembered counts.
    """

    def __init__(self) -> None:
        self._one = threading.Lock()
        self._gate: Lease | None = None
        self._users = 0

    @contextmanager
    def share(self, gate: Lease) -> Iterator[None]:
        """Have the store in use for the length of a context; waits while somebody has it alone.

        Args:
            gate: a shared lease that is not held yet; taken only where there is none that is sure.
        """
        self._enter(gate)
        try:
            yield
        finally:
            self._leave()

    def _enter(self, gate: Lease) -> None:
        with self._one:
            if self._gate is None or not self._gate.sure:
                before, self._gate = self._gate, gate.acquire(wait=True)
                gate.path.bucket.known.trust(gate)
                if before is not None:
                    before.release()
            self._users += 1

    def _leave(self) -> None:
        with self._one:
            self._users -= 1
            if self._users or self._gate is None:
                return
            gate, self._gate = self._gate, None
            gate.path.bucket.known.trust(None)
            gate.release()


_tenancies: WeakKeyDictionary[Bucket, Tenancy] = WeakKeyDictionary()


def tenancy_of(gate: Lease) -> Tenancy:
    """The tenancy of a gate's store, one for a process."""
    return _tenancies.setdefault(gate.path.bucket, Tenancy())


# The leases of a process are not its child's.
os.register_at_fork(after_in_child=_tenancies.clear)
