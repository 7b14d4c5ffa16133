"""The status of a node as Prometheus reads it. A number that is not known yet has no line."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from efhc.runtime.status import STATES, NeighbourStatus, NodeStatus

Labels = dict[str, str]


class Metric(NamedTuple):
    """One number, or one per neighbour, and what Prometheus shows about it."""

    name: str
    """What ends in `_total` only grows, until the node is restarted."""
    meaning: str
    samples: Sequence[tuple[Labels, float | None]]


def as_prometheus(status: NodeStatus) -> str:
    """Return the text that /metrics answers."""
    return "".join(line for metric in metrics(status) for line in _lines(metric))


def metrics(status: NodeStatus) -> Iterator[Metric]:
    """Yield every number of a status."""
    facts = {"device": str(status.device), "version": status.version, "mode": status.mode}
    yield Metric("efhc_info", "What the node is; always 1.", [(facts, 1)])
    states = [({"state": state}, int(state == status.state)) for state in STATES]
    yield Metric("efhc_state", "1 for the state that the node is in.", states)
    expires = status.certificate_expires
    for name, meaning, value in (
        ("session", "Random number of this start of the device.", status.session),
        ("uptime_seconds", "Seconds since the node started.", status.uptime),
        ("waits_for", "Number of devices without which a node in lockstep cannot go on.", len(status.waits_for)),
        ("iteration", "Iteration k of the device.", status.iteration),
        ("iterations", "Number of iterations of the experiment.", status.iterations),
        ("steps_total", "Gradient steps made since the node started.", status.steps),
        ("steps_per_second", "Gradient steps per second, over the last 5 s or so.", status.steps_per_second),
        ("loss", "Loss of the last mini-batch.", status.loss),
        ("drift", "Drift from the last broadcast model, (1/n)^(1/2) ||w - w_hat||.", status.drift),
        ("threshold", "Drift at which the device broadcasts.", status.threshold),
        ("bandwidth_parameters_per_second", "b_i that the threshold was computed with.", status.bandwidth),
        ("broadcasts_total", "How often the device fired.", status.broadcasts),
        ("in_doubt", "Exchanges that only the neighbour can decide.", status.in_doubt),
        ("unresolved_total", "Exchanges that were given up in doubt.", status.unresolved),
        ("unresolved_norm_total", "Sum of the norms of the steps that were given up in doubt.", status.unresolved_norm),
        ("lost_total", "Exchanges that one end committed and the other end lost.", status.lost),
        ("links_up", "Number of links that are up.", status.links_up),
        ("refused_total", "Connections that were refused.", status.refused),
        ("journal_bytes", "Size of the journal.", status.journal_bytes),
        ("certificate_expires_timestamp_seconds", "Unix time at which the certificate expires.", expires),
    ):
        yield Metric(f"efhc_{name}", meaning, [({}, value)])
    yield from _metrics_of_links(status.neighbours)


def _metrics_of_links(neighbours: Sequence[NeighbourStatus]) -> Iterator[Metric]:
    ends = [
        ({"neighbour": str(one.device), "outcome": how}, n) for one in neighbours for how, n in one.exchanges.items()
    ]
    yield Metric("efhc_exchanges_total", "Exchanges that ended, by neighbour and outcome.", ends)
    for name, meaning, field in (
        ("up", "Whether the link is up; a short interruption does not end it.", "up"),
        ("connected", "Whether there is a connection right now.", "connected"),
        ("iteration", "Iteration of the neighbour, when it last told.", "iteration"),
        ("interruptions_total", "Connections that broke.", "interruptions"),
        ("downs_total", "How often the link went down.", "downs"),
        ("lost_total", "Exchanges that one of the two committed and the other lost.", "lost"),
        ("sent_bytes_total", "Bytes sent, all included.", "bytes_sent"),
        ("received_bytes_total", "Bytes received, all included.", "bytes_received"),
        ("sent_model_bytes_total", "Bytes of models sent.", "model_bytes_sent"),
        ("received_model_bytes_total", "Bytes of models received.", "model_bytes_received"),
        ("rate_bytes_per_second", "Bytes of models per second that the neighbour acknowledged.", "rate"),
    ):
        samples = [({"neighbour": str(one.device)}, getattr(one, field)) for one in neighbours]
        yield Metric(f"efhc_link_{name}", meaning, samples)


def plain_number(value: Any) -> int | float:
    """Return a number or truth value, which may be one of NumPy, as a number of Python."""
    try:
        return operator.index(value)
    except TypeError:
        return float(value)


def _lines(metric: Metric) -> Iterator[str]:
    yield f"# HELP {metric.name} {metric.meaning}\n"
    yield f"# TYPE {metric.name} {'counter' if metric.name.endswith('_total') else 'gauge'}\n"
    for labels, value in metric.samples:
        if value is not None:
            inner = ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items())
            yield f"{metric.name}{{{inner}}} {_number(value)}\n" if inner else f"{metric.name} {_number(value)}\n"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    number = plain_number(value)
    if isinstance(number, float) and not math.isfinite(number):
        return {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}[str(number)]
    return repr(number)
