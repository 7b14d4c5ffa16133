"""Real servers on this machine, good ones and bad ones."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

Respond = Callable[[BaseHTTPRequestHandler, bytes], None]


@contextmanager
def serving(files: Path, respond: Respond) -> Iterator[tuple[str, list[str]]]:
    """A real server on this machine; its address and the requested paths."""
    requests: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append(self.path)
            respond(self, (files / self.path.lstrip("/")).read_bytes())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/", requests
        finally:
            server.shutdown()
            thread.join()


def send(handler: BaseHTTPRequestHandler, body: bytes, promised: int | None = None) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(body) if promised is None else promised))
    handler.end_headers()
    handler.wfile.write(body)


def without_length(handler: BaseHTTPRequestHandler, body: bytes) -> None:
    handler.send_response(200)
    handler.end_headers()
    handler.wfile.write(body)


def leftovers(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()] if folder.exists() else []
