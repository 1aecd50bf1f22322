"""What can be wrong with a store, in words for people."""


class StoreError(RuntimeError):
    """Base of everything that the store refuses."""


class DamagedError(StoreError):
    """Stored bytes that do not match their own digest, or that cannot be read at all.

    Args:
        path: where they lie, on this machine or in a bucket; only its text is used, so that errors know no places.
        why: what is wrong with them.
        remedy: what to do about it.

    Attributes:
        fault: the message without the remedy, for those who know another.
    """

    def __init__(self, path: object, why: str, remedy: str = "") -> None:
        self.path = str(path)
        self.why = why
        self.fault = f"{path} is damaged: {why}"
        self.remedy = remedy
        super().__init__(self.fault + (f"; {remedy}" if remedy else ""))


class UnusableNameError(StoreError, ValueError):
    """A name that no folder of the store can have: it could escape the store, or needs quoting somewhere."""


class MissingObjectError(StoreError):
    """A reference to something that the store does not hold."""


class IncompleteError(StoreError):
    """Values were asked for that are not all done."""


class LockedError(StoreError):
    """Somebody else holds the lock; the message names the holder."""


class NotLockedError(StoreError):
    """A write without the lock that it needs: an error of the program."""


class ConfigChangedError(StoreError):
    """A run id that is already taken by another configuration; the message names the fields."""


class RecordMismatchError(StoreError):
    """Blocks of different environments would be mixed in one pool without leave."""


class UnreachableError(StoreError):
    """An object store that does not answer; what was done is kept."""


class LeaseLostError(LockedError):
    """A lock on an object store that was not renewed in time, and that somebody else holds now."""
