"""Whether Prefect's server answers: a thread looks now and then, and a person is told of a silence at once.

Prefect's client tries each request again for about a minute and says nothing meanwhile.
"""

import contextvars
import threading
import time
import urllib.error
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, Self

from flows.patience import retries_in_words, stopped_waiting
from flows.servers import opener
from flows.settings import Address

LOOK_SECONDS: Final = 2.0
TELL_AFTER: Final = 5.0
"""Seconds of silence before anybody is told: a server that is started again is often back by then."""
LOOK_LIMIT: Final = 3.0

Tell = Callable[[str], None]
_active: "list[ServerWatch]" = []


class ServerWatch:
    """Looks now and then whether a server is ready, and tells when it is silent and when it is back.

    A server that never said anything to it is taken to answer: it may be beyond a proxy or a certificate that only
    Prefect's client knows.
    """

    def __init__(self, url: str, tell: Tell, clock: Callable[[], float] = time.monotonic) -> None:
        self.url = url.rstrip("/")
        self._tell = tell
        self._clock = clock
        self._opener = opener(Address(url=self.url, origin="environment", chosen_by="PREFECT_API_URL"))
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._spoke = False
        self._since: float | None = None
        self._told = False

    def __enter__(self) -> Self:
        # The log of a flow run is found by its context.
        run = contextvars.copy_context().run
        threading.Thread(target=run, args=(self._watch,), name="watch-prefect", daemon=True).start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._done.set()

    def answers(self) -> bool:
        """Whether the server answers now; where it was silent, as it was last seen."""
        if self._spoke and self._since is None:
            self.look()
        return self._since is None

    def look(self) -> None:
        """Ask once, and tell if there is something to tell."""
        asked = self._clock()
        found = self._found()
        with self._lock:
            if not found:
                self._answered()
            elif self._spoke:
                self._silent(found, asked)

    def _watch(self) -> None:
        self.look()
        while not self._done.wait(LOOK_SECONDS):
            self.look()

    def _found(self) -> str:
        """What keeps the server from answering; empty where it answers."""
        try:
            with self._opener.open(f"{self.url}/ready", timeout=LOOK_LIMIT):
                self._spoke = True
                return ""
        except urllib.error.HTTPError as error:
            self._spoke = True
            return "" if error.code < 500 else f"{error.code} {error.reason}"
        except urllib.error.URLError as error:
            return str(error.reason)
        except Exception as error:  # http.client raises its own kinds where an answer breaks off
            return f"{type(error).__name__}: {error}"

    def _answered(self) -> None:
        if self._told and self._since is not None:
            self._say(f"Prefect's server answers again, after {self._clock() - self._since:.0f} s")
        self._since, self._told = None, False

    def _silent(self, found: str, asked: float) -> None:
        if self._since is None:
            self._since = asked
        if not self._told and self._clock() - self._since >= TELL_AFTER:
            self._told = True
            self._say(
                f"Prefect's server at {self.url} does not answer ({found}). What is being computed goes on. What the "
                f"server has to be told is {retries_in_words()}; if that is in vain, the run ends. Nothing that was "
                "finished is lost: start the server again, or let the same command go on later"
            )

    def _say(self, message: str) -> None:
        # Who gave the server up has said so.
        if not self._done.is_set() and not stopped_waiting():
            self._tell(message)


@contextmanager
def watching(url: str, tell: Tell) -> Iterator[None]:
    """Watch Prefect's server within the block; one watch of a process is enough, the outermost."""
    if _active:
        yield
        return
    with ServerWatch(url, tell) as watch:
        _active.append(watch)
        try:
            yield
        finally:
            _active.remove(watch)


def answers() -> bool:
    """Whether Prefect's server answers, as far as is known: a bar would hold up what it shows, if it waited."""
    return all(watch.answers() for watch in _active)


def watched_url() -> str:
    """The address of the server that is watched; empty where none is."""
    return _active[0].url if _active else ""
