"""What ends because Prefect's server is silent: it waits as long as it should, and ends in words."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from flows.errors import UserError
from flows.patience import retried_seconds, stop_waiting
from flows.server_watch import answers, watched_url

if TYPE_CHECKING:
    import httpx

WAIT_SECONDS: Final = 0.2


class ServerLost(UserError):
    """Prefect's server could not be told what has to be told."""


def wait_for_server() -> None:
    """Wait for a silent server, once and as long as a request is tried, rather than with each thing that is to be told.

    Raises:
        ServerLost: it did not come back.
    """
    until = time.monotonic() + retried_seconds()
    while not answers():
        if time.monotonic() > until:
            stop_waiting()
            raise ServerLost(_lost(watched_url(), "does not answer"))
        time.sleep(WAIT_SECONDS)


@contextmanager
def interruptible() -> Iterator[None]:
    """Let an interrupt of the block, Ctrl-C or SIGTERM, end the run at once where the server is silent."""
    try:
        yield
    except Exception:
        raise
    except BaseException:
        if not answers():
            stop_waiting()
        raise


@contextmanager
def ending_in_words(url: str) -> Iterator[None]:
    """Turn what is raised because Prefect's server does not answer into words for people.

    Raises:
        ServerLost: instead of it.
        KeyboardInterrupt: an interrupt ended the block, and only that could not be told the server.
    """
    try:
        yield
    except Exception as error:
        message = lost_server(error, url)
        if message is None:
            raise
        if interrupt_behind(error):
            # SIGTERM within a flow is another kind, of Prefect's own.
            raise KeyboardInterrupt from None
        raise ServerLost(message) from error


def interrupt_behind(error: BaseException) -> BaseException | None:
    """The interrupt, Ctrl-C or SIGTERM, while which was dealt with the error was raised; None where there was none."""
    from prefect.exceptions import TerminationSignal

    behind: BaseException | None = error
    while behind is not None and not isinstance(behind, KeyboardInterrupt | TerminationSignal):
        behind = behind.__context__
    return behind


def lost_server(error: BaseException, url: str) -> str | None:
    """What to tell of an error that says that Prefect's server at ``url`` does not answer; None for any other."""
    import httpx

    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, httpx.TransportError) and _asked(cause, url):
            return _lost(url, f"does not answer ({type(cause).__name__}: {cause})")
        if isinstance(cause, httpx.HTTPStatusError) and cause.response.status_code >= 500 and _asked(cause, url):
            return _lost(url, f"answers with {cause.response.status_code} {cause.response.reason_phrase}")
        cause = cause.__cause__
    return None


def _lost(url: str, what: str) -> str:
    return (
        f"Prefect's server at {url} {what}, and what it has to be told was tried in vain. Nothing that was finished is "
        "lost: the same command goes on from there, once this server answers or with another one. On this machine "
        "`solrl train`, `solrl demo` and `solrl up` start one where none answers"
    )


def _asked(error: "httpx.TransportError | httpx.HTTPStatusError", url: str) -> bool:
    """Whether it was the server at ``url`` that was asked."""
    import httpx

    try:
        asked = error.request.url
    except RuntimeError:  # raised outside of a request
        return False
    server = httpx.URL(url)
    return (asked.host, asked.port) == (server.host, server.port)
