"""What goes wrong in words for people."""

import errno

OURS = ("flows.", "solrl_tasks.")
OF_THE_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES})


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
