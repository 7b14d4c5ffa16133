"""What pages show of runs, as plain data. The live page gets it by request, an offline page holds it.

Both are drawn by the same scripts. A script reads nothing else: what is not here is not shown.
"""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

State = Literal["waiting", "running", "done", "stopped", "failed"]
"""A waiting run was not begun. A stopped run was interrupted or killed, and can go on. A failed one cannot."""


class RunSummary(TypedDict):
    """One line of the list of runs."""

    id: str
    """Names the run in addresses: letters, digits, "-" and "_"."""
    strategy: str
    seed: int
    state: State
    k: int
    iterations: int
    accuracy: float | None
    iterations_per_second: float | None
    seconds_left: float | None
    problem: str | None


class Group(TypedDict):
    """Runs that belong together: an experiment, a point of a sweep, a figure, a set of nodes."""

    id: str
    name: str
    kind: Literal["run", "reproduction", "sweep", "tuning", "store", "nodes"]
    place: str
    """The folder, relative to the one that is watched."""
    state: State
    changed: float | None
    """When files were last added to its folders, in seconds since 1970, if that is known."""
    runs: list[RunSummary]
    problem: str | None
    """Why the runs cannot be shown, if they cannot."""


class Tree(TypedDict):
    """Everything that was found, without its curves."""

    title: str
    version: str
    groups: list[Group]
    left_out: str | None
    """Which folders were not searched, in words."""


class Curve(TypedDict):
    """What was evaluated, as columns of equal length. `k` counts iterations made; unknown values are None."""

    k: list[int]
    accuracy: list[float | None]
    accuracy_min: list[float | None]
    accuracy_max: list[float | None]
    mean_model_accuracy: list[float | None]
    consensus_error: list[float | None]
    train_loss: list[float | None]
    transmission_time: list[float | None]
    """Total up to here."""
    bits: list[float | None]
    """Total bits on air up to here."""
    broadcasts: list[float | None]
    """Total up to here."""
    seconds: list[float | None]
    """Seconds for which the run was made; of an event-driven run and of nodes, its own seconds."""


class DeviceSamples(TypedDict):
    """Samples of all devices over time. Inner lists have one entry per device; unknown values are None.

    The accuracy of nodes is not known: its inner lists are empty.
    """

    k: list[int]
    accuracy: list[list[float | None]]
    drift: list[list[float | None] | None]
    threshold: list[list[float | None] | None]


class Events(TypedDict):
    """Who fired and which links were used, in single iterations."""

    k: list[int]
    fired: list[list[int]]
    used: list[list[tuple[int, int]] | None]
    """None: there is no room for the links of this iteration."""
    is_sample: bool
    """Whether iterations are left out."""


class Wiring(TypedDict):
    """The physical links from iteration k on."""

    k: int
    links: list[tuple[int, int]]


class Device(TypedDict):
    """One device."""

    device: int
    bandwidth: float | None
    samples: int | None
    labels: list[int] | None
    node: NotRequired[dict[str, object]]
    """What a node of the network runtime says of itself, its links, rates and faults."""


class RunDetail(TypedDict):
    """One run in full."""

    id: str
    facts: dict[str, str]
    """What to know about the run, in words, by name."""
    config: str
    """The config file, as text."""
    repeat: str
    """The command that makes the run again."""
    devices: list[Device]
    network: list[Wiring]
    curve: Curve
    samples: DeviceSamples
    events: Events


class Delta(TypedDict):
    """What became known since: of each column, keep the first `start` entries and append these.

    The columns of the network are `k` and `links`, one entry per `Wiring`.
    """

    id: str
    part: Literal["curve", "samples", "events", "network"]
    start: int
    columns: dict[str, list[object]]
