"""A real HTTP server that answers as a test says, one step a request."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Asked:
    """One request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any


@dataclass
class Say:
    """One answer: JSON, or bytes as they are, after a while."""

    body: Any = b""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    wait: float = 0.0
    drip: float = 0.0
    """Seconds between single bytes."""
    cut: bool = False
    """Close the connection without an answer."""


Step = Say | Callable[[Asked], Say]


class Scripted:
    """Answers request k with step k, and all further ones with the last."""

    def __init__(self, *steps: Step) -> None:
        self.steps, self.asked, self.released = list(steps), [], threading.Event()
        self._lock = threading.Lock()
        owner = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                asked = Asked(self.command, self.path, dict(self.headers), json.loads(raw) if raw else None)
                with owner._lock:
                    owner.asked.append(asked)
                    step = owner.steps[min(len(owner.asked), len(owner.steps)) - 1]
                say = step if isinstance(step, Say) else step(asked)
                owner.released.wait(say.wait)
                if say.cut:
                    self.close_connection = True
                    return
                content = say.body if isinstance(say.body, bytes) else json.dumps(say.body).encode()
                self.send_response(say.status)
                for name, value in say.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                try:
                    for piece in [content] if not say.drip else [content[i : i + 1] for i in range(len(content))]:
                        owner.released.wait(say.drip)
                        self.wfile.write(piece)
                        self.wfile.flush()
                except OSError:
                    self.close_connection = True

            do_GET = do_POST

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    @contextmanager
    def running(self) -> Iterator["Scripted"]:
        """Serve in a thread until the end of the block."""
        thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.released.set()
            self._server.shutdown()
            self._server.server_close()
            thread.join(10)
