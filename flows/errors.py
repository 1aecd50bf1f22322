"""What goes wrong in words for people."""


class UserError(Exception):
    """A fault that the reader can mend: the message says what was found, what is allowed and what to do.

    The command line prints it without a traceback and exits with ``code``.
    """

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code
