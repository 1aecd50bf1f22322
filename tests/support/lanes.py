"""Where blocks are finished beside others on a machine without an accelerator."""

from contextlib import AbstractContextManager, nullcontext


class HostLane:
    """A thread beside the caller's and nothing more: for devices that queue nothing."""

    def enter(self) -> None:
        """Nothing to set."""

    def within(self) -> AbstractContextManager[None]:
        """Nothing is queued."""
        return nullcontext()

    def settle(self) -> None:
        """Nothing is left."""
