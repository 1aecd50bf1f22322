"""What goes wrong in words for people."""

import errno

OURS = ("flows.", "solrl_tasks.")
OF_THE_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES})


_SAFE = "Nothing that was finished is lost:"
REMEDIES = {
    errno.ENOSPC: f"The disk is full. {_SAFE} make room (`solrl pools gc`), then the same command goes on",
    errno.EDQUOT: f"Your share of the disk is used up. {_SAFE} make room, then the same command goes on",
    errno.EROFS: f"The disk can only be read. {_SAFE} when it can be written again, the same command goes on",
    errno.EACCES: f"It may not be written by this user. {_SAFE} when it may, the same command goes on",
}


class UserError(Exception):
    """A fault that the reader can mend: the message says what was found, what is allowed and what to do.

    The command line prints it without a traceback and exits with ``code``.
    """

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code


def is_for_people(error: BaseException) -> bool:
    """Whether the message is all that a person needs.

    Every exception class of the project is made so, and so is what the system says of a disk that is full, read-only
    or forbidden. A ``ValueError`` from anywhere, on the other hand, may be an error of the program and keeps its
    traceback.
    """
    if isinstance(error, OSError) and error.errno in OF_THE_DISK:
        return True
    return type(error).__module__.startswith(OURS)


def in_words(error: BaseException) -> str:
    """What a person is told of an error that ``is_for_people``; for one of the disk, with what to do."""
    remedy = REMEDIES.get(error.errno or 0) if isinstance(error, OSError) else None
    return f"{error}. {remedy}" if remedy else str(error)
