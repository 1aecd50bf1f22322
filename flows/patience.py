"""How long the client of Prefect tries a request again, and for which answers."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

RETRIED: Final[dict[Any, Any]] = {"client.retry_extra_codes": {500}}
"""While its database is away the server answers 500, which would end a run that sets a state just then."""
_stopped = threading.Event()


@contextmanager
def patient() -> Iterator[None]:
    """Let requests of the block be tried again after a 500 too, here and in processes that Prefect starts.

    A choice of the user's stands, wherever Prefect reads settings: environment, ``prefect.toml`` or profile.
    """
    from prefect.settings import temporary_settings

    with temporary_settings(set_defaults=RETRIED):
        yield


def retried_seconds() -> int:
    """For how long, roughly, a request that is refused at once is tried: Prefect waits 2, 4, 8, ... seconds."""
    from prefect.settings import get_current_settings

    return sum(2**tried for tried in range(1, get_current_settings().client.max_retries + 1))


def retries_in_words() -> str:
    """For how long a request is tried, for people: one that is refused at once, and one that is never answered."""
    from prefect.settings import get_current_settings

    settings = get_current_settings()
    return (
        f"tried again for about {retried_seconds()} s (PREFECT_CLIENT_MAX_RETRIES), and each time may wait "
        f"{settings.api.request_timeout:.0f} s for its answer (PREFECT_API_REQUEST_TIMEOUT)"
    )


def stop_waiting() -> None:
    """Let every further request of this process be tried once: it ends, and each state would be waited for anew."""
    from prefect.settings import get_current_settings

    get_current_settings().client.max_retries = 0
    _stopped.set()


def stopped_waiting() -> bool:
    """Whether this process gave the server up."""
    return _stopped.is_set()
