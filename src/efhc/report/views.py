"""What pages show of runs, as plain data. The live page gets it by request, an offline page holds it.

Both are drawn by the same scripts. A script reads nothing else: what is not here is not shown.
"""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

from efhc.learning.measures import Better

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
    latest: dict[str, float]
    """The measures of the last evaluation by name, without those that are not known."""
    iterations_per_second: float | None
    seconds_left: float | None
    problem: str | None


class MeasureView(TypedDict):
    """A measure that runs have, as `efhc.learning.measures` names it."""

    name: str
    """The column of a curve, and the word in the address of a page."""
    label: str
    better: Better
    family: str
    """The measure that each device has by itself, such as "own_accuracy" of "own_accuracy_min"."""


class Look(TypedDict):
    """How a strategy is drawn."""

    name: str
    color: str
    dash: str
    """A dash pattern of Matplotlib."""


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
    strategies: list[Look]
    """The look of each strategy, the same as in figures."""
    measure: str | None
    """The measure by which the runs are shown unless the reader chooses another. None: nodes evaluate nothing."""
    runs: list[RunSummary]
    problem: str | None
    """Why the runs cannot be shown, if they cannot."""


class Tree(TypedDict):
    """Everything that was found, without its curves."""

    title: str
    version: str
    groups: list[Group]
    measures: list[MeasureView]
    """All measures that any run has."""
    left_out: str | None
    """Which folders were not searched, in words."""


Curve = dict[str, list[float | None]]
"""What was evaluated, as columns of equal length. `k` counts iterations made; unknown values are None.

`bits`, `broadcasts` and `transmission_time` are totals up to there. `seconds` are those for which the run was made; of
an event-driven run and of nodes, its own. Columns besides `CURVE_COLUMNS` are the measures that the run has, and
further columns of its table.
"""
CURVE_COLUMNS = "consensus_error", "train_loss", "transmission_time", "bits", "broadcasts", "seconds"


class DeviceSamples(TypedDict):
    """Samples of all devices over time. Inner lists have one entry per device; unknown values are None."""

    k: list[int]
    accuracy: list[list[float | None] | None]
    own_accuracy: list[list[float | None] | None]
    drift: list[list[float | None] | None]
    threshold: list[list[float | None] | None]


class EventsView(TypedDict):
    """Who fired and which links were used, in single iterations."""

    k: list[int]
    fired: list[list[int]]
    used: list[list[tuple[int, int]] | None]
    """None: there is no room for the links of this iteration."""
    seconds: list[float | None]
    """When it was, on devices' own clocks: virtual seconds, or those of nodes. None in lockstep."""


class Wirings(TypedDict):
    """The physical links from single iterations on, until the next one."""

    k: list[int]
    links: list[list[tuple[int, int]]]


class DeviceView(TypedDict):
    """One device."""

    device: int
    bandwidth: float | None
    samples: int | None
    labels: list[int] | None
    node: NotRequired[dict[str, object]]
    """What a node of the network runtime says of itself, its links, rates and faults."""


class AboutRows(TypedDict):
    """What is known of a run besides its rows, whichever way it is made."""

    devices: list[DeviceView]
    facts: dict[str, str]
    """What to know about the run, in words, by name."""
    is_sample: bool
    """Whether iterations are missing in the events."""


class RunDetail(AboutRows):
    """One run in full."""

    id: str
    config: str
    """The config file, as text."""
    repeat: str
    """The command that makes the run again."""
    network: Wirings
    curve: NotRequired[Curve]
    """An offline page has it among the curves of the group only."""
    samples: DeviceSamples
    events: EventsView


class Delta(TypedDict):
    """What became known since: of each column of a part, keep the first `start` entries and append these."""

    id: str
    part: Literal["curve", "samples", "events", "network"]
    start: int
    columns: dict[str, list[object]]
