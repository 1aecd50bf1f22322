"""The way to an S3-compatible server: one request, sent until it is answered, with errors for people."""

import logging
import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final
from urllib.parse import urlsplit

from solrl_tasks.store.errors import StoreError, UnreachableError
from solrl_tasks.store.waits import setting

logger = logging.getLogger(__name__)

_BUCKET_NAME: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_STATUS: Final = re.compile(r"status code: (\d{3})")
_CODE: Final = re.compile(r"<Code>([^<]+)</Code>")
_MESSAGE: Final = re.compile(r"<Message>([^<]+)</Message>")
_CONFLICT: Final = 409
_AGAIN: Final = frozenset({408, _CONFLICT, 425, 429})
"""Statuses below 500 that may pass by themselves."""
_FIRST_PAUSE: Final = 0.2
_LONGEST_PAUSE: Final = 5.0
_CHECKS: Final = (
    "check SOLRL_STORE, AWS_ENDPOINT_URL and AWS_REGION, and that the server runs; what was done is kept, and the same "
    "command goes on from there"
)


class S3Client:
    """Requests below one prefix of a bucket.

    A request that fails for a reason that may pass (no connection, a time-out, a status of 500 and more) is sent again
    until ``patience`` seconds are over; one that is not answered at all for so long is sent once more, as its
    connection may be dead and not the server. Endpoint, region and credentials are those of the usual AWS variables;
    no file of the store and no record holds them.

    Args:
        patience: in seconds; None is that of the environment.
        insistent: whether the first request may use up all of it and still be sent once more.

    Attributes:
        requests: sent so far, by verb.

    Raises:
        StoreError: the URL is not ``s3://bucket/prefix``.
    """

    def __init__(self, url: str, patience: float | None = None, insistent: bool = True) -> None:
        self.url = url.rstrip("/")
        parts = urlsplit(self.url)
        if parts.scheme != "s3" or not _BUCKET_NAME.fullmatch(parts.netloc) or parts.query or parts.fragment:
            raise StoreError(
                f"{url!r} names no bucket: an object store is called s3://bucket/prefix, without '?', '#' and "
                "credentials"
            )
        self.name, self.prefix = parts.netloc, parts.path.strip("/")
        if self.prefix and not {"", ".", ".."}.isdisjoint(self.prefix.split("/")):
            raise StoreError(
                f"{url!r}: the prefix {self.prefix!r} has a part that is empty, '.' or '..', which no folder of a "
                "bucket can be called: name every part, as in s3://bucket/team/store"
            )
        self.patience = setting("SOLRL_STORE_TIMEOUT", 60.0, 1.0) if patience is None else patience
        self._insistent = insistent
        self.requests: Counter[str] = Counter()
        self._made: tuple[int, Any] | None = None
        self._making = threading.Lock()

    @property
    def endpoint(self) -> str:
        """The address asked, in words."""
        return _endpoint() or "the endpoint of AWS"

    def ask(self, verb: str, key: str, call: Callable[[Any], Any]) -> Any:
        """The answer to one request, sent again until ``patience`` is over.

        None where there is no such object, ``Refused`` where a condition did not hold.

        Args:
            verb: names it, for counts and messages.
            key: of the object or folder; for messages as well.
            call: makes it of obstore's store.

        Raises:
            StoreError: the server refuses it.
            UnreachableError: it did not answer in time.
        """
        deadline = time.monotonic() + self.patience
        pause = _FIRST_PAUSE
        told = False
        while True:
            self.requests[verb] += 1
            try:
                return self.send(verb, key, call)
            except _PassingError as error:
                why = str(error)
            if time.monotonic() + pause > deadline and (told or not self._insistent):
                raise UnreachableError(f"{self.url} at {self.endpoint}: no {verb} of {key or '/'} ({why}); {_CHECKS}")
            if not told:
                logger.warning("%s at %s: %s of %s: %s; trying again", self.url, self.endpoint, verb, key or "/", why)
                told = True
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def send(self, verb: str, key: str, call: Callable[[Any], Any]) -> Any:
        """The request once. Raises _PassingError where it may be tried again."""
        store = self._store()
        from obstore import exceptions

        try:
            return call(store)
        except FileNotFoundError as error:
            self._refuse(verb, key, error, only="NoSuchBucket")
            return None
        except exceptions.PreconditionError:
            return Refused()
        except exceptions.AlreadyExistsError as error:
            # The server's answer to two conditional writes at one moment: neither condition has failed.
            if _status(error) == _CONFLICT:
                raise _PassingError(_told(error)) from error
            return Refused()
        except exceptions.BaseError as error:
            status = _status(error)
            if status is not None and status < 500 and status not in _AGAIN:
                self._refuse(verb, key, error)
            if status == 501:
                self._refuse(verb, key, error)
            raise _PassingError(_told(error)) from error

    def _refuse(self, verb: str, key: str, error: Exception, only: str = "") -> None:
        code = _CODE.search(str(error))
        if only and (code is None or code[1] != only):
            return
        raise StoreError(
            f"{self.url} at {self.endpoint} refuses {verb} of {key or '/'}: {_told(error)}; check that the bucket "
            "exists and that AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY (or the role), AWS_REGION and AWS_ENDPOINT_URL "
            "are those of it"
        ) from error

    def _store(self) -> Any:
        with self._making:
            # Threads of the client do not outlive a fork.
            if self._made is None or self._made[0] != os.getpid():
                self._made = (os.getpid(), self._connect())
            return self._made[1]

    def _connect(self) -> Any:
        try:
            from obstore.store import S3Store
        except ImportError as error:
            raise StoreError(
                f"a store in {self.url} needs obstore: pip install -c constraints.txt -e '.[s3]' ({error})"
            ) from error
        endpoint = _endpoint()
        config: Any = {"endpoint": endpoint} if endpoint else {}
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        if region or endpoint:
            config["region"] = region or "us-east-1"
        seconds = timedelta(seconds=self.patience)
        return S3Store(
            self.name,
            prefix=self.prefix or None,
            config=config,
            client_options={
                "allow_http": _plain_http_allowed(endpoint),
                "timeout": seconds,
                "connect_timeout": min(timedelta(seconds=5), seconds),
            },
            # Retries are ours, so that they are told of, bounded and counted.
            retry_config={"max_retries": 0, "retry_timeout": seconds},
        )


class _PassingError(Exception):
    """A failure that may pass by itself."""


class Refused:
    """The answer to a conditional write whose condition does not hold."""


def _endpoint() -> str:
    return next((os.environ[n] for n in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL") if os.environ.get(n)), "")


def _plain_http_allowed(endpoint: str) -> bool:
    parts = urlsplit(endpoint)
    if parts.scheme != "http":
        return False
    if parts.hostname in ("localhost", "127.0.0.1", "::1") or os.environ.get("AWS_ALLOW_HTTP", "").lower() == "true":
        return True
    raise StoreError(
        f"AWS_ENDPOINT_URL is {endpoint}, which is not encrypted: use https, or set AWS_ALLOW_HTTP=true if the network "
        "between is trusted"
    )


def _status(error: Exception) -> int | None:
    found = _STATUS.search(str(error))
    return int(found[1]) if found else None


def _told(error: Exception) -> str:
    """What went wrong, short, and without what a URL may hold."""
    text = str(error)
    code, message, status = _CODE.search(text), _MESSAGE.search(text), _status(error)
    if code:
        return f"{code[1]}{f': {message[1]}' if message else ''}"
    if status:
        return f"status {status}"
    head = text.partition("\n")[0]
    return head.rpartition(" - ")[2][:200] or type(error).__name__
