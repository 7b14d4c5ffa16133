"""A stream of the server, read in a thread of its own, and programs that answer on the sockets of nodes."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from queue import Empty, Queue
from socketserver import ThreadingUnixStreamServer

import httpx

from efhc.runtime.pages import short_name


class StreamReader:
    """The events of a stream, as they come."""

    def __init__(self) -> None:
        self.queue: Queue[tuple[str, object]] = Queue()
        self.seen: list[tuple[str, object]] = []

    def wait(self, matches: Callable[[str, dict], bool], seconds: float = 60.0) -> dict:
        """Return the next event that matches."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            try:
                name, data = self.queue.get(timeout=left)
            except Empty:
                break
            self.seen.append((name, data))
            if matches(name, data):
                return data
        raise AssertionError(f"no such event within {seconds} s; last: {self.seen[-3:]}")

    def delta(self, part: str, seconds: float = 60.0, **where: object) -> dict:
        return self.wait(
            lambda name, data: (
                name == "delta" and data["part"] == part and all(data[key] == value for key, value in where.items())
            ),
            seconds,
        )


@contextmanager
def stream(client: httpx.Client, **asked: str) -> Iterator[StreamReader]:
    reader, ended = StreamReader(), threading.Event()

    def read() -> None:
        with (
            httpx.Client(base_url=client.base_url, timeout=30) as own,
            own.stream("GET", "/api/stream", params=asked) as answer,
        ):
            name = ""
            for line in answer.iter_lines():
                if ended.is_set():
                    return
                if line.startswith("event: "):
                    name = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    reader.queue.put((name, json.loads(line.removeprefix("data: "))))

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        yield reader
    finally:
        ended.set()


@contextmanager
def answering(folder: Path, status: Callable[[], str]) -> Iterator[None]:
    """Something that listens on the socket of a node, and answers with what `status` returns."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(status().encode())

        def log_message(self, *_: object) -> None:
            pass

    folder.mkdir(parents=True)
    with short_name(folder / "status.sock") as name:
        server = ThreadingUnixStreamServer(name, Handler)
    with server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield
        server.shutdown()
