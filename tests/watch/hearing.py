"""A stream of the server, heard in a thread of its own."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty, Queue

import httpx


class Heard:
    """The events of a stream, as they come."""

    def __init__(self) -> None:
        self.queue: Queue[tuple[str, object, float]] = Queue()
        self.seen: list[tuple[str, object]] = []

    def wait(self, is_it: Callable[[str, dict], bool], seconds: float = 10.0) -> tuple[dict, float]:
        """Return the next event like this, and when it came."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            try:
                name, data, at = self.queue.get(timeout=left)
            except Empty:
                break
            self.seen.append((name, data))
            if is_it(name, data):
                return data, at
        raise AssertionError(f"nothing like it within {seconds} s; last: {self.seen[-3:]}")

    def delta(self, part: str, seconds: float = 10.0, **where: object) -> tuple[dict, float]:
        return self.wait(
            lambda name, data: (
                name == "delta" and data["part"] == part and all(data[key] == value for key, value in where.items())
            ),
            seconds,
        )


@contextmanager
def stream(client: httpx.Client, **asked: str) -> Iterator[Heard]:
    heard, ended = Heard(), threading.Event()

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
                    heard.queue.put((name, json.loads(line.removeprefix("data: ")), time.time()))

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    try:
        yield heard
    finally:
        ended.set()
