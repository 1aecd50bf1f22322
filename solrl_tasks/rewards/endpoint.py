"""JSON over HTTP to a scorer: what may be asked, how long one waits, what is tried again, and what is not."""

import asyncio
import concurrent.futures
import contextlib
import ipaddress
import json
import os
import random
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Iterator
from typing import Annotated, Any, Final, Self, TypeVar
from urllib.parse import urlsplit

import httpx
from pydantic import Field, JsonValue, ValidationError, model_validator

from solrl_tasks.config.base import Frozen
from solrl_tasks.rewards.base import RewardError, presentable

LONGEST_PAUSE: Final = 30.0
"""Seconds between two attempts at most."""
LARGEST_ANSWER: Final = 16 * 2**20
"""Bytes: an answer is numbers and words."""
_PASSING: Final = frozenset({408, 425, 429})
"""Client errors that another attempt may be spared; so may every 5xx."""

T = TypeVar("T")


class EndpointOptions(Frozen):
    """Where a scorer listens and how it is talked to; none of this changes a score.

    ``token_env`` names the environment variable with the bearer token. ``retries`` come after the first attempt, each
    after a random pause of up to ``backoff`` seconds, doubled every time. Where ``required`` is false, images are left
    without a score when all attempts have failed; else the run stops. ``insecure`` allows http to other machines.
    """

    url: str
    token_env: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] | None = None
    timeout: Annotated[float, Field(gt=0, le=86_400)] = 60.0
    retries: Annotated[int, Field(ge=0, le=20)] = 4
    backoff: Annotated[float, Field(ge=0, le=60)] = 0.5
    required: bool = True
    insecure: bool = False

    @model_validator(mode="after")
    def _url_is_fit(self) -> Self:
        if not self.url.isprintable():
            raise ValueError("url holds a character that cannot be printed: remove it")
        parts = urlsplit(self.url)
        if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
            raise ValueError(
                "url must hold neither a user, a password nor a query, which would stand in recipes and logs: give the "
                "token by token_env"
            )
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"url {self.url!r} must begin with https:// or http:// and name a host")
        try:
            httpx.URL(self.url, port=parts.port)
        except (ValueError, httpx.InvalidURL) as error:
            raise ValueError(f"url {self.url!r} cannot be asked: {error}") from error
        if parts.scheme == "http" and not is_loopback(parts.hostname) and not self.insecure:
            raise ValueError(
                f"url {self.url!r} would send images and token unencrypted to another machine: use https, or set "
                "insecure: true if the network between is trusted"
            )
        return self


class UnavailableError(RuntimeError):
    """A scorer that did not answer as it should, however often it was asked."""


class _Fault(Exception):
    """One attempt that failed and may be made again, after ``pause`` seconds if the server says so."""

    def __init__(self, reason: str, pause: float | None = None) -> None:
        super().__init__(reason)
        self.pause = pause


class Endpoint:
    """A scorer at a URL. May be used from several threads.

    Args:
        options: where and how.
        name: of the reward, for messages.
    """

    def __init__(self, options: EndpointOptions, name: str) -> None:
        self.options, self.name = options, name
        self._line: _Line | None = None
        self._lock = threading.Lock()
        # Its own source of chance: jitter must not touch that of anything which is to be repeatable.
        self._chance = random.Random()

    def close(self) -> None:
        """Close the connections; the next request opens others."""
        with self._lock:
            line, self._line = self._line, None
        if line is not None:
            line.close()

    def ask(self, path: str, body: JsonValue, read: Callable[[Any], T]) -> T:
        """Send JSON (or GET, if there is none) and read the JSON that comes back.

        Args:
            path: behind the URL, such as ``/v1/score``.
            body: what is posted; None asks by GET.
            read: makes what is wanted of the answer; a ``ValueError`` says that the answer is malformed.

        Raises:
            UnavailableError: every attempt failed by no answer in time, a broken connection, a 5xx, 408 or 429, or an
                answer that is malformed.
            RewardError: the request was refused, or the token is missing: asking again would not help.
        """
        faults: list[str] = []
        for attempt in range(self.options.retries + 1):
            try:
                return self._attempt(path, body, read)
            except _Fault as fault:
                faults.append(str(fault))
                if attempt < self.options.retries:
                    time.sleep(self._pause(attempt, fault.pause))
        raise UnavailableError(f"{self.options.url}{path} failed {len(faults)} times, at last: {faults[-1]}")

    def unanswered(self, error: UnavailableError) -> str:
        """Why images have no score, where the scorer is not required.

        Raises:
            RewardError: it is.
        """
        if self.options.required:
            raise RewardError(
                f"reward {self.name!r} is required, but {error}: see to its server and start the run again, which goes "
                "on where it stopped"
            ) from error
        return str(error)

    def repeated(self, text: str) -> str:
        """What the server said, for a message: a server that gives the token back must not put it into logs."""
        token = os.environ.get(self.options.token_env or "", "")
        return presentable(text.replace(token, "(the token)") if token else text)

    def _pause(self, attempt: int, asked: float | None) -> float:
        """Seconds before the next attempt: at least what the server asked for, and a random part of the back-off."""
        ceiling = min(LONGEST_PAUSE, self.options.backoff * 2.0**attempt)
        return min(LONGEST_PAUSE, (asked or 0.0) + self._chance.uniform(0.0, ceiling))

    def _attempt(self, path: str, body: JsonValue, read: Callable[[Any], T]) -> T:
        status, headers, content = self._exchange(path, body)
        if status != httpx.codes.OK:
            self._refused(path, status, headers, content)
        try:
            return read(json.loads(content))
        except (ValueError, RecursionError) as error:
            raise _Fault(f"its answer is malformed: {self.repeated(_faults(error))}") from None

    def _exchange(self, path: str, body: JsonValue) -> tuple[int, httpx.Headers, bytes]:
        """Status, headers and content, all within the time limit."""
        content = None if body is None else json.dumps(body).encode()
        headers = {"Accept": "application/json", **_authorisation(self.options.token_env, self.name)}
        if content is not None:
            headers["Content-Type"] = "application/json"
        request = httpx.Request(
            "GET" if content is None else "POST", self.options.url.rstrip("/") + path, content=content, headers=headers
        )
        with self._faults_of_transport():
            return self._connected().run(lambda client: self._sent(client, request))

    async def _sent(self, client: httpx.AsyncClient, request: httpx.Request) -> tuple[int, httpx.Headers, bytes]:
        limit, begun, received = self.options.timeout, False, bytearray()
        try:
            # One limit for all of it: httpx has one for each wait, which a server that drips never reaches.
            async with asyncio.timeout(limit):
                answer = await client.send(request, stream=True)
                begun = True
                try:
                    async for piece in answer.aiter_bytes():
                        received += piece
                        if len(received) > LARGEST_ANSWER:
                            raise RewardError(f"reward {self.name!r}: {request.url} answers without end")
                finally:
                    await answer.aclose()
        except TimeoutError as error:
            raise _Fault(f"no {'whole ' if begun else ''}answer within {limit:g} s") from error
        return answer.status_code, answer.headers, bytes(received)

    @contextlib.contextmanager
    def _faults_of_transport(self) -> Iterator[None]:
        try:
            yield
        except concurrent.futures.CancelledError as error:
            raise _Fault("the connection was closed here") from error
        except httpx.TransportError as error:
            raise _Fault(f"{type(error).__name__}: {self.repeated(str(error))}") from error
        except httpx.DecodingError as error:
            raise _Fault(f"its answer cannot be decoded: {self.repeated(str(error))}") from error

    def _connected(self) -> "_Line":
        with self._lock:
            if self._line is None:
                # A proxy of the environment has no business between two processes of one machine.
                loopback = is_loopback(urlsplit(self.options.url).hostname or "")
                self._line = _Line(trust_env=not loopback)
                weakref.finalize(self, self._line.close)
            return self._line

    def _refused(self, path: str, status: int, headers: httpx.Headers, content: bytes) -> None:
        reason, final = _reason(content)
        reason = self.repeated(reason)
        text = f"status {status}: {reason}" if reason else f"status {status}"
        if not final and (status >= 500 or status in _PASSING):
            raise _Fault(text, _retry_after(headers))
        hint = {
            401: "; set the environment variable that the option token_env names to the server's token",
            403: "; the token may not be used for this",
            404: "; check url and the name of the reward",
            413: "; lower the option batch",
        }.get(status, "")
        raise RewardError(f"reward {self.name!r}: {self.options.url}{path} refused the request: {text}{hint}")


class _Line:
    """Connections, and the thread that exchanges run in: asynchronous ones can be ended at a time, wherever they are.

    Args:
        trust_env: whether proxies of the environment are used.
    """

    def __init__(self, trust_env: bool) -> None:
        self._loop = asyncio.new_event_loop()
        self._client = httpx.AsyncClient(trust_env=trust_env, follow_redirects=False, timeout=None)
        self._thread = threading.Thread(target=self._turn, name="endpoint", daemon=True)
        self._thread.start()

    def run(self, exchange: Callable[[httpx.AsyncClient], Coroutine[Any, Any, T]]) -> T:
        """What an exchange comes to.

        Raises:
            concurrent.futures.CancelledError: the line is closed, or was meanwhile.
        """
        if self._loop.is_closed():
            raise concurrent.futures.CancelledError
        future = asyncio.run_coroutine_threadsafe(exchange(self._client), self._loop)
        try:
            return future.result()
        except BaseException:
            # Ctrl-C leaves nothing under way.
            future.cancel()
            raise

    def close(self) -> None:
        """End what is under way and close the connections; nothing is done the second time."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._loop.stop)
        # The collector of garbage may come along in that very thread.
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _turn(self) -> None:
        loop = self._loop
        asyncio.set_event_loop(loop)
        try:
            loop.run_forever()
            tasks = asyncio.all_tasks(loop)
            for task in tasks:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            loop.run_until_complete(self._client.aclose())
        finally:
            loop.close()


def is_loopback(host: str) -> bool:
    """Whether a host name or address is this machine for itself only."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host.lower() == "localhost"


def _authorisation(token_env: str | None, name: str) -> dict[str, str]:
    if token_env is None:
        return {}
    token = os.environ.get(token_env, "")
    if not token:
        raise RewardError(f"reward {name!r}: the environment variable {token_env} is not set: it is to hold the token")
    if not (token.isascii() and token.isprintable()) or " " in token:
        raise RewardError(f"reward {name!r}: what {token_env} holds is no token: it has blanks or unusual characters")
    return {"Authorization": f"Bearer {token}"}


def _reason(content: bytes) -> tuple[str, bool]:
    """What a refusal says, and whether it says that asking again is of no use."""
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        return content.decode("utf-8", "replace"), False
    if not isinstance(body, dict):
        return str(body), False
    error = body.get("error", body.get("detail", ""))
    if isinstance(error, dict):
        error = error.get("message", error)
    return str(error), body.get("retry") is False


def _faults(error: Exception) -> str:
    """What is wrong with an answer, without what it holds."""
    if isinstance(error, ValidationError):
        return "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors())
    return str(error)


def _retry_after(headers: httpx.Headers) -> float | None:
    with contextlib.suppress(ValueError, KeyError):
        return max(0.0, float(headers["Retry-After"]))
    return None
