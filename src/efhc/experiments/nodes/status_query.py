"""Query the status of running nodes, over the socket in their state folder or a port of this machine."""

from __future__ import annotations

import http.client
import json
import math
import socket
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from efhc.base.errors import InputError
from efhc.runtime.node_settings import Address
from efhc.runtime.pages import SOCKET_NAME, short_name

SECONDS = 3.0
"""How long a node may take to answer."""
DEPTH = 3
"""How many folders deep sockets are looked for."""


class Answer(NamedTuple):
    """The status of a node, or why there is none."""

    place: str
    """The state folder, or the address."""
    status: dict[str, Any] | None
    problem: str = ""


def query_all(places: Iterable[str]) -> list[Answer]:
    """Return the answers of all nodes at these places, by device. A folder without a node adds none.

    A place is a state folder, a folder with state folders in it, a node file, or "host:port" on this machine. Raises
    `InputError` if a place is none of these.
    """
    answers = query_each(dict.fromkeys(target for place in places for target in _targets(place)))
    return sorted(answers, key=lambda answer: answer.status["device"] if answer.status else math.inf)


def query_each(targets: Iterable[Path | Address]) -> list[Answer]:
    """Return the answers of nodes, in the order of `targets`."""
    with ThreadPoolExecutor(max_workers=16) as threads:
        return list(threads.map(query_status, targets))


def query_status(target: Path | Address) -> Answer:
    """Return the answer of the node with this socket or at this address."""
    place = str(target.parent if isinstance(target, Path) else target)
    connection = (
        _OverSocket(target) if isinstance(target, Path) else http.client.HTTPConnection(*target, timeout=SECONDS)
    )
    problem = "what answers there is not an efhc node"
    try:
        connection.request("GET", "/status")
        response = connection.getresponse()
        content = response.read(1 << 24)
        if response.status != http.HTTPStatus.OK:
            return Answer(place, None, f"it answers {response.status} {response.reason}")
        status = json.loads(content)
        if isinstance(status, dict) and isinstance(status.get("device"), int):
            return Answer(place, status)
    except (ConnectionRefusedError, FileNotFoundError):
        problem = "does not answer; the node is not running"
    except RecursionError:  # of a table that is nested too deep
        pass
    except (OSError, http.client.HTTPException, ValueError) as error:
        problem = f"no answer ({getattr(error, 'strerror', None) or error})"
    finally:
        connection.close()
    return Answer(place, None, problem)


class _OverSocket(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(SECONDS)
        with short_name(self._path) as name:
            self.sock.connect(name)


def _targets(place: str) -> list[Path] | list[Address]:
    path = Path(place)
    if path.is_dir():
        return [found for depth in range(DEPTH + 1) for found in sorted(path.glob("*/" * depth + SOCKET_NAME))]
    if path.is_file():
        from efhc.experiments.nodes.node_files import read_node

        return [read_node(path).state / SOCKET_NAME]
    allowed = "a state folder, a folder of several, a node file, or host:port on this machine"
    try:
        address = Address.of(place.removeprefix("http://").rstrip("/"))
    except ValueError:
        raise InputError("PLACE", f"{place}, which does not exist", allowed) from None
    if not address.is_loopback:
        raise InputError("PLACE", f"{place}, an address of another machine", allowed)
    return [address]
