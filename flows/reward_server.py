"""A reward behind HTTP, for ``remote``: the reference server of the protocol in ``solrl_tasks.rewards.protocol``."""

import asyncio
import contextlib
import hmac
import ipaddress
import json
import socket
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import numpy as np
import uvicorn
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from flows.errors import UserError
from solrl_tasks.config.words import counted
from solrl_tasks.rewards.base import Images, NamedReward, RewardError, presentable
from solrl_tasks.rewards.endpoint import is_loopback
from solrl_tasks.rewards.protocol import (
    HEALTH_PATH,
    IDENTITY_PATH,
    PROTOCOL,
    SCORE_PATH,
    ScoreRequest,
    bound,
    decode_image,
)
from solrl_tasks.rewards.scoring import Scores, score

RETRY_SECONDS: Final = "1"
ENDING_SECONDS: Final = 3
"""Which requests are given to come to an end when the server is told to."""

T = TypeVar("T")


@dataclass(frozen=True)
class Limits:
    """What one request, and all together, may ask for.

    Attributes:
        batch: images of a request.
        body: bytes of a request.
        waiting: requests at a time, one of which is scored; the others wait, and more are told to come again.
        seconds: that the body of a request may take to arrive, so that clients which vanish do not keep others out.
    """

    batch: int = 64
    body: int = 256 * 2**20
    waiting: int = 16
    seconds: float = 300.0


class RewardApp:
    """The routes of one reward.

    Args:
        reward: set up; it is called by one thread at a time.
        token: that clients must bring; None lets everyone in, which is for loopback only.
        limits: of requests.
        hosts: names under which the server is asked for besides those of loopback; None lets every name in.
    """

    def __init__(
        self, reward: NamedReward, token: str | None, limits: Limits, hosts: Collection[str] | None = ()
    ) -> None:
        self.reward, self.limits = reward, limits
        self._token = None if token is None else token.encode()
        self._scoring = threading.Lock()
        self._present = threading.Semaphore(limits.waiting)
        self.app = Starlette(
            routes=[
                Route(HEALTH_PATH, self.health, methods=["GET"]),
                Route(IDENTITY_PATH, self.identity, methods=["GET"]),
                Route(SCORE_PATH, self.score, methods=["POST"]),
            ],
            exception_handlers={HTTPException: _refuse},
            middleware=[] if hosts is None else [Middleware(_KnownHosts, hosts=frozenset(map(str.lower, hosts)))],
        )

    async def health(self, _: Request) -> Response:
        """That the server is there; needs no token and tells nothing else."""
        return JSONResponse({"status": "ok"})

    async def identity(self, request: Request) -> Response:
        """Which reward answers here."""
        self._authorise(request)
        return JSONResponse({**self._named(), "range": [bound(value) for value in self.reward.range]})

    async def score(self, request: Request) -> Response:
        """Scores of the images of a request."""
        self._authorise(request)
        if not self._present.acquire(blocking=False):
            raise HTTPException(503, "too many requests at a time: come again", {"Retry-After": RETRY_SECONDS})
        try:
            body = await self._body(request)
            scores = await _in_thread(lambda: self._scored(self._parsed(body)))
        except RewardError as error:
            return JSONResponse({"error": str(error), "retry": False}, 500)
        finally:
            self._present.release()
        values = [bound(value) for value in scores.values.astype(float).tolist()]
        return JSONResponse({**self._named(), "scores": values, "failures": _texts(scores)})

    def _named(self) -> dict[str, Any]:
        return {"protocol": PROTOCOL, "reward": self.reward.name, "version": self.reward.version}

    def _authorise(self, request: Request) -> None:
        if self._token is None:
            return
        scheme, _, brought = request.headers.get("authorization", "").partition(" ")
        # In constant time, so that a wrong token does not tell how much of it was right.
        right = hmac.compare_digest(brought.strip().encode(), self._token)
        if scheme.lower() != "bearer" or not right:
            raise HTTPException(401, "no token, or a wrong one", {"WWW-Authenticate": "Bearer"})

    async def _body(self, request: Request) -> bytes:
        # A page in a browser can post to a local port without being asked, but not as JSON.
        if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise HTTPException(415, "the content type must be application/json")
        too_large = HTTPException(413, f"a request may have {self.limits.body} bytes")
        length = request.headers.get("content-length", "")
        if length.isdigit() and int(length) > self.limits.body:
            raise too_large
        body = bytearray()
        try:
            async with asyncio.timeout(self.limits.seconds):
                async for piece in request.stream():
                    body += piece
                    if len(body) > self.limits.body:
                        raise too_large
        except TimeoutError as error:
            raise HTTPException(408, f"the request did not arrive within {self.limits.seconds:g} s") from error
        except ClientDisconnect as error:
            raise HTTPException(400, "the client went away") from error
        return bytes(body)

    def _parsed(self, body: bytes) -> ScoreRequest:
        try:
            found = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise HTTPException(400, f"the request is no JSON: {presentable(str(error))}") from error
        if isinstance(found, dict) and found.get("protocol", PROTOCOL) != PROTOCOL:
            other = presentable(repr(found["protocol"]))
            raise HTTPException(400, f"protocol {other} is not spoken here: {PROTOCOL} is")
        try:
            asked = ScoreRequest.model_validate(found)
        except ValidationError as error:
            faults = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
            raise HTTPException(400, f"the request is malformed: {presentable(faults)}") from error
        if asked.reward != self.reward.name:
            raise HTTPException(404, f"the reward {presentable(asked.reward)!r} is not here: {self.reward.name!r} is")
        if asked.version not in (None, self.reward.version):
            here = self.reward.version
            wanted = presentable(str(asked.version))
            raise HTTPException(409, f"version {wanted!r} is asked for, but here is version {here!r}")
        if len(asked.images) > self.limits.batch:
            raise HTTPException(
                413, f"a request may have {counted(self.limits.batch, 'image')}, found {len(asked.images)}"
            )
        return asked

    def _scored(self, asked: ScoreRequest) -> Scores:
        # Decoded one request at a time too: a small PNG can be a large image.
        with self._scoring:
            return score(self.reward, _images(asked), asked.prompts, asked.metadata)


class _KnownHosts:
    """Refuses requests under other names: a page of any site may let its own name lead to this machine's loopback
    address, and a browser then lets it read the answers."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str]) -> None:
        self.app, self.hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = self.app
        if scope["type"] == "http":
            name = _host_name(Headers(scope=scope).get("host", ""))
            if not is_loopback(name) and name not in self.hosts:
                why = f"this server does not answer under the name {presentable(name)!r}: start it with --allow-host"
                app = JSONResponse({"error": why}, 421)
        await app(scope, receive, send)


def _host_name(header: str) -> str:
    try:
        return (urlsplit(f"//{header}").hostname or "").lower()
    except ValueError:
        return ""


async def _in_thread(work: Callable[[], T]) -> T:
    """What work comes to, in a thread that the end of the process does not wait for."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def settle(answer: T | None, error: BaseException | None) -> None:
        if not done.done():
            done.set_exception(error) if error is not None else done.set_result(answer)  # type: ignore[arg-type]

    def run() -> None:
        answer, error = None, None
        try:
            answer = work()
        except BaseException as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # The loop is closed: nobody waits any more.
            loop.call_soon_threadsafe(settle, answer, error)

    threading.Thread(target=run, name="scoring", daemon=True).start()
    return await done


def serve(
    reward: NamedReward, host: str, port: int, token: str | None, limits: Limits, hosts: Collection[str] = ()
) -> None:
    """Serve a reward until the process is told to stop; what is being scored then is given a few seconds.

    Args:
        hosts: names under which it answers, see ``known_names``.

    Raises:
        UserError: the address is open to others and there is no token, or it cannot be had; or a name is none.
    """
    require_token(host, token)
    known = known_names(host, hosts)
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listening = socket.create_server((host, port), family=family)
    except OSError as error:
        raise UserError(f"{host}:{port} cannot be listened on: {error}: name another with --host or --port") from error
    app = RewardApp(reward, token, limits, known).app
    # No access log: requests are many, and what is in their headers is nobody's business.
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=ENDING_SECONDS,
    )
    with listening:
        uvicorn.Server(config).run(sockets=[listening])


def known_names(host: str, allowed: Collection[str]) -> frozenset[str] | None:
    """Names that requests may be made under besides those of loopback; None is any name.

    On loopback, where there may be no token, only what is allowed. Elsewhere the token keeps out whoever is led here
    under a strange name, and any name will do unless some are allowed: then those, and the address itself.

    Raises:
        UserError: one of the allowed is no bare name.
    """
    for name in allowed:
        if not name or _host_name(name) != name.strip("[]").lower():
            raise UserError(f"--allow-host {name!r} is no name: give it without scheme, port and path: scorer.example")
    names = frozenset(map(_host_name, allowed))
    if not names:
        return names if is_loopback(host) else None
    return names if _everywhere(host) else names | {host.lower()}


def address_of(host: str, port: int, allowed: Collection[str]) -> str:
    """Where a recipe finds the server: on this machine as it is, from others behind something that speaks https."""
    if is_loopback(host):
        return f"http://{bracketed(host)}:{port}"
    return f"https://{next(iter(allowed), socket.gethostname() if _everywhere(host) else bracketed(host))}"


def bracketed(host: str) -> str:
    """A host as it stands in an address."""
    return f"[{host}]" if ":" in host else host


def _everywhere(host: str) -> bool:
    """Whether it stands for all addresses of this machine."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_unspecified
    return not host


def require_token(host: str, token: str | None) -> None:
    """Refuse to be open to other machines without a token.

    Raises:
        UserError: there is none.
    """
    if token is None and not is_loopback(host):
        raise UserError(
            f"--host {host} can be reached from other machines, and there is no token: put one into an environment "
            "variable and name it with --token-env, or stay on 127.0.0.1"
        )


def _images(asked: ScoreRequest) -> Images:
    images = []
    for index, text in enumerate(asked.images):
        try:
            images.append(decode_image(text))
        except ValueError as error:
            raise HTTPException(400, f"images[{index}]: {error}") from error
        if images[-1].shape != images[0].shape:
            raise HTTPException(400, "the images of a request must be of one size")
    return np.stack(images)


async def _refuse(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


def _texts(scores: Scores) -> dict[str, str]:
    return {str(row): presentable(reason) for row, reason in scores.reasons.items()}
