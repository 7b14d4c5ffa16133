"""How a node is, as plain data: what /status, /metrics and `efhc status` show."""

from __future__ import annotations

from dataclasses import dataclass, field

OUTCOMES = ("committed", "refused", "withdrawn", "unresolved")
STATES = ("starting", "waiting", "training", "finished", "stopping")
"""What a node does. It waits for a model to copy or, in lockstep, until it knows from which iteration all go on."""
READY_STATES = ("training", "finished")
"""The states in which /readyz says yes."""


@dataclass
class NeighbourStatus:
    """One neighbour, as seen by this node."""

    device: int
    up: bool = False
    """Whether the link counts as there; an interruption shorter than `down_after` does not end it."""
    connected: bool = False
    session: int | None = None
    iteration: int | None = None
    """The neighbour's iteration, when it last told."""
    bytes_sent: int = 0
    bytes_received: int = 0
    model_bytes_sent: int = 0
    model_bytes_received: int = 0
    rate: float | None = None
    """Bytes of models per second."""
    exchanges: dict[str, int] = field(default_factory=lambda: dict.fromkeys(OUTCOMES, 0))
    lost: int = 0
    """Exchanges that one end committed and the other end lost: without a journal, or with its state."""
    interruptions: int = 0
    downs: int = 0
    """How often the link went down, by `down_after` or by a restart of the neighbour."""
    last_problem: str = ""


@dataclass
class NodeStatus:
    """One node."""

    device: int
    session: int
    mode: str
    version: str
    pid: int
    state: str = "starting"
    """One of `STATES`."""
    waits_for: list[int] = field(default_factory=list)
    """The devices without which a node in lockstep cannot go on, or that need it before it can end."""
    iteration: int = 0
    iterations: int = 0
    """The experiment's number of iterations."""
    loss: float | None = None
    drift: float | None = None
    threshold: float | None = None
    bandwidth: float | None = None
    """b_i that the last threshold was computed with, in parameters per second."""
    broadcasts: int = 0
    steps: int = 0
    """Gradient steps made in this session."""
    steps_per_second: float | None = None
    in_doubt: int = 0
    """Exchanges that only the neighbour can decide."""
    unresolved: int = 0
    unresolved_norm: float = 0.0
    """Sum of the norms of the steps that were given up in doubt."""
    lost: int = 0
    links_up: int = 0
    refused: int = 0
    """Connections of strangers, or of neighbours that do not agree, that were refused."""
    journal_bytes: int = 0
    certificate_expires: float | None = None
    """Unix time."""
    uptime: float = 0.0
    neighbours: list[NeighbourStatus] = field(default_factory=list)
