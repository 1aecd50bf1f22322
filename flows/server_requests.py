"""Requests to Prefect's server: one that is sent again makes nothing twice, and a last one does not hang."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final
from uuid import uuid4

from flows.patience import stopped_waiting

if TYPE_CHECKING:
    import httpx

FAREWELL_SECONDS: Final = 3.0
"""For what is told a server that was given up: one that hangs takes requests and answers none."""
CREATION: Final = "/flow_runs/"
_NAMED: Final = "solrl.named"


@contextmanager
def careful_requests() -> Iterator[None]:
    """Take care of what Prefect's engine asks its server within the block."""
    from prefect.context import SyncClientContext

    with SyncClientContext.get_or_create() as context:
        http = context.client._client
        if prepare not in http.event_hooks["request"]:
            http.event_hooks = {**http.event_hooks, "request": [*http.event_hooks["request"], prepare]}
        yield


def prepare(request: "httpx.Request") -> None:
    """Make a request one that can be sent again, and bound it where the server was given up."""
    if stopped_waiting():
        request.extensions["timeout"] = dict.fromkeys(("connect", "read", "write", "pool"), FAREWELL_SECONDS)
    if request.method == "POST" and request.url.path.endswith(CREATION) and _NAMED not in request.extensions:
        request.extensions[_NAMED] = True
        _name(request)


def _name(request: "httpx.Request") -> None:
    """Give what asks for a flow run a name of its own: asked again, the server answers with the run that it made."""
    import httpx

    body = {"idempotency_key": str(uuid4()), **json.loads(request.content)}
    content = json.dumps(body).encode()
    request.stream = httpx.ByteStream(content)
    request.headers["Content-Length"] = str(len(content))
