"""A real server of the S3 protocol on loopback, which can be told to misbehave."""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import boto3
import pytest
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server

from solrl_tasks.store import bucket as buckets

ACCESS = {"AWS_ACCESS_KEY_ID": "of-a-test", "AWS_SECRET_ACCESS_KEY": "of-a-test", "AWS_REGION": "us-east-1"}
HUNG = 3.0
_CONDITIONS = ("HTTP_IF_NONE_MATCH", "HTTP_IF_MATCH")


class S3Server:
    """Moto's server behind a gate.

    Attributes:
        failing: how many of the next requests are answered with ``status``.
        hanging: seconds that every request waits.
        hung: how many of the next requests are not answered for ``HUNG`` seconds.
        deaf: every PUT whose number is a multiple is carried out, and answered with 500; 0 is none.
        lax: ignore If-None-Match and If-Match.
        seen: requests by method.
    """

    def __init__(self) -> None:
        self._app = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self._gate, threaded=True)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self.calm()

    def calm(self) -> None:
        """Behave."""
        self.failing, self.status, self.hanging, self.lax = 0, "503 Slow Down", 0.0, False
        self.hung = self.deaf = 0
        self.seen: Counter[str] = Counter()

    def start(self) -> None:
        """Serve, in a thread."""
        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        self._thread.start()

    def stop(self) -> None:
        """Serve no more."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def make_bucket(self) -> str:
        """A new bucket."""
        name = f"store-{uuid4().hex[:12]}"
        client = boto3.client(
            "s3",
            endpoint_url=self.url,
            region_name="us-east-1",
            aws_access_key_id="of-a-test",
            aws_secret_access_key="of-a-test",
        )
        client.create_bucket(Bucket=name)
        client.close()
        return name

    def _gate(self, environ: dict[str, Any], answer: Callable[..., Any]) -> Iterable[bytes]:
        self.seen[environ["REQUEST_METHOD"]] += 1
        if self.hanging:
            time.sleep(self.hanging)
        if self.hung > 0:
            self.hung -= 1
            time.sleep(HUNG)
        if self.failing > 0:
            self.failing -= 1
            answer(self.status, [("Content-Type", "text/plain")])
            return [b"not now"]
        if self.lax:
            for name in _CONDITIONS:
                environ.pop(name, None)
        if self.deaf and environ["REQUEST_METHOD"] == "PUT" and self.seen["PUT"] % self.deaf == 0:
            b"".join(self._app(environ, lambda *_: None))
            answer("500 Internal Server Error", [("Content-Type", "text/plain")])
            return [b"done, and not told"]
        body: Iterable[bytes] = self._app(environ, answer)
        return body


@contextmanager
def serving() -> Iterator[S3Server]:
    """A server for the length of a context."""
    server = S3Server()
    server.start()
    try:
        yield server
    finally:
        server.stop()


@contextmanager
def speaking_to(server: S3Server, lease: float = 4.0, patience: float = 20.0) -> Iterator[str]:
    """The environment of clients of a server, and the URL of a prefix of a new bucket there."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ACCESS.items():
            patch.setenv(name, value)
        patch.setenv("AWS_ENDPOINT_URL", server.url)
        patch.setenv("SOLRL_LEASE_SECONDS", str(lease))
        patch.setenv("SOLRL_STORE_TIMEOUT", str(patience))
        for name in ("AWS_ENDPOINT_URL_S3", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_ALLOW_HTTP"):
            patch.delenv(name, raising=False)
        server.calm()
        yield f"s3://{server.make_bucket()}/a/prefix"
        buckets._buckets.clear()
