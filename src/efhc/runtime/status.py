"""The status of a node as plain data, which /status, /metrics and `efhc status` show."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from typing import Any

OUTCOMES = ("committed", "refused", "withdrawn", "unresolved")
STATES = ("starting", "waiting", "training", "finished", "stopping")
"""The states of a node. It waits for a model to copy or, in lockstep, for the iteration from which all continue."""
READY_STATES = ("training", "finished")
"""The states in which /readyz answers 200."""


def _metric(name: str, meaning: str, default: Any = 0) -> Any:
    """Return a field that /metrics shows under a name. What ends in `_total` only grows, until a restart."""
    return field(default=default, metadata={"metric": name, "meaning": meaning})


@dataclass
class NeighbourStatus:
    """One neighbour, as seen by this node."""

    device: int
    up: bool = _metric("up", "Whether the link is up; a short interruption does not end it.", False)
    connected: bool = _metric("connected", "Whether there is a connection right now.", False)
    session: int | None = None
    iteration: int | None = _metric("iteration", "Iteration of the neighbour, as last received.", None)
    bytes_sent: int = _metric("sent_bytes_total", "Bytes sent, all included.")
    bytes_received: int = _metric("received_bytes_total", "Bytes received, all included.")
    model_bytes_sent: int = _metric("sent_model_bytes_total", "Bytes of models sent.")
    model_bytes_received: int = _metric("received_model_bytes_total", "Bytes of models received.")
    rate: float | None = _metric(
        "rate_bytes_per_second", "Bytes of models per second that the neighbour acknowledged.", None
    )
    exchanges: dict[str, int] = field(default_factory=lambda: dict.fromkeys(OUTCOMES, 0))
    lost: int = _metric("lost_total", "Exchanges that one of the two committed and the other lost.")
    interruptions: int = _metric("interruptions_total", "Connections that broke.")
    downs: int = _metric("downs_total", "How often the link went down.")
    """By `down_after`, or by a restart of the neighbour."""
    last_problem: str = ""


@dataclass
class NodeStatus:
    """One node."""

    device: int
    session: int = field(metadata={"metric": "session", "meaning": "Random number of this start of the device."})
    mode: str
    version: str
    pid: int
    state: str = "starting"
    """One of `STATES`."""
    waits_for: list[int] = field(
        default_factory=list,
        metadata={"metric": "waits_for", "meaning": "Number of devices without which a node in lockstep cannot go on."},
    )
    """Or that need it before it can end."""
    iteration: int = _metric("iteration", "Iteration k of the device.")
    iterations: int = _metric("iterations", "Number of iterations of the experiment.")
    loss: float | None = _metric("loss", "Loss of the last mini-batch.", None)
    drift: float | None = _metric("drift", "Drift from the last broadcast model, (1/n)^(1/2) ||w - w_hat||.", None)
    threshold: float | None = _metric("threshold", "Drift at which the device broadcasts.", None)
    bandwidth: float | None = _metric(
        "bandwidth_parameters_per_second", "b_i that the threshold was computed with.", None
    )
    broadcasts: int = _metric("broadcasts_total", "How often the device fired.")
    steps: int = _metric("steps_total", "Gradient steps made since the node started.")
    steps_per_second: float | None = _metric(
        "steps_per_second", "Gradient steps per second, over the last 5 s or so.", None
    )
    in_doubt: int = _metric("in_doubt", "Exchanges that only the neighbour can decide.")
    unresolved: int = _metric("unresolved_total", "Exchanges that were given up in doubt.")
    unresolved_norm: float = _metric(
        "unresolved_norm_total", "Sum of the norms of the steps that were given up in doubt.", 0.0
    )
    lost: int = _metric("lost_total", "Exchanges that one end committed and the other end lost.")
    links_up: int = _metric("links_up", "Number of links that are up.")
    refused: int = _metric("refused_total", "Connections that were refused.")
    """Of strangers, or of neighbours that do not agree."""
    journal_bytes: int = _metric("journal_bytes", "Size of the journal.")
    certificate_expires: float | None = _metric(
        "certificate_expires_timestamp_seconds", "Unix time at which the certificate expires.", None
    )
    uptime: float = _metric("uptime_seconds", "Seconds since the node started.", 0.0)
    neighbours: list[NeighbourStatus] = field(default_factory=list)


# As Prometheus reads it. A number that is not known yet has no line.

Samples = Iterable[tuple[dict[str, str], Any]]
"""Pairs of labels and a value."""


def as_prometheus(status: NodeStatus) -> str:
    """Return the text that /metrics answers."""
    return "".join(_lines(status))


def _lines(status: NodeStatus) -> Iterator[str]:
    facts = {"device": str(status.device), "version": status.version, "mode": status.mode}
    yield from _samples("info", "What the node is; always 1.", [(facts, 1)])
    states = [({"state": state}, int(state == status.state)) for state in STATES]
    yield from _samples("state", "1 for the state that the node is in.", states)
    yield from _numbers(NodeStatus, "", [({}, status)])
    links = [({"neighbour": str(one.device)}, one) for one in status.neighbours]
    ends = [(label | {"outcome": how}, count) for label, one in links for how, count in one.exchanges.items()]
    yield from _samples("exchanges_total", "Exchanges that ended, by neighbour and outcome.", ends)
    yield from _numbers(NeighbourStatus, "link_", links)


def _numbers(kind: type[Any], prefix: str, labelled: Samples) -> Iterator[str]:
    """Yield the lines of all fields of a status that are metrics."""
    for each in fields(kind):
        if name := each.metadata.get("metric"):
            values = [(labels, getattr(status, each.name)) for labels, status in labelled]
            yield from _samples(prefix + name, each.metadata["meaning"], values)


def _samples(name: str, meaning: str, samples: Samples) -> Iterator[str]:
    yield f"# HELP efhc_{name} {meaning}\n"
    yield f"# TYPE efhc_{name} {'counter' if name.endswith('_total') else 'gauge'}\n"
    for labels, value in samples:
        if value is not None:
            inner = ",".join(f'{label}="{_escaped(text)}"' for label, text in labels.items())
            number = plain_number(len(value) if isinstance(value, list) else value)
            shown = str(number).replace("nan", "NaN").replace("inf", "Inf")
            sign = "+" if number == math.inf else ""
            yield f"efhc_{name}{'{' + inner + '}' if inner else ''} {sign}{shown}\n"


def plain_number(value: Any) -> int | float:
    """Return a number or truth value, which may be one of NumPy, as a number of Python."""
    try:
        return operator.index(value)
    except TypeError:
        return float(value)


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
