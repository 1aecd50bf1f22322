"""A server whose answers a test says."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class ScriptedServer:
    """Answers with a list of codes, the last one for ever, until it is stopped."""

    def __init__(self) -> None:
        self.codes = [200]
        self.asked = 0

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                script.asked += 1
                self.send_response(script.codes.pop(0) if len(script.codes) > 1 else script.codes[0])
                self.send_header("Retry-After", "0")
                self.send_header("Content-Length", "4")
                self.end_headers()
                self.wfile.write(b"true")

            def log_message(self, *_: object) -> None:
                pass

        script = self
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}/api"
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
