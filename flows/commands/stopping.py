"""How a command that was stopped ends: it says that it can go on."""

import functools
from collections.abc import Callable
from typing import Final, ParamSpec

from flows.console import errors
from flows.processes import raise_on_termination

INTERRUPTED: Final = 130
"""Exit code, as of a command that Ctrl-C ended."""

Options = ParamSpec("Options")


def goes_on(command: Callable[Options, None]) -> Callable[Options, None]:
    """A command that ends in the same way by Ctrl-C, SIGTERM and a closed terminal, and says that it can go on.

    What it started is stopped. It says so on the error stream: the other may be JSON that a program reads.
    """

    @functools.wraps(command)
    def run(*args: Options.args, **kwargs: Options.kwargs) -> None:
        raise_on_termination()
        try:
            command(*args, **kwargs)
        except KeyboardInterrupt:
            errors.print("Stopped. What was finished is kept: the same command goes on from there.", soft_wrap=True)
            raise SystemExit(INTERRUPTED) from None

    return run
