"""The settings of one node: what a NODE.toml holds."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from efhc.base.errors import Unusable
from efhc.base.policy import Policy

Seconds = Annotated[float, Field(gt=0, le=1e9, strict=False)]


class Address(NamedTuple):
    """Where a node listens."""

    host: str
    port: int

    @classmethod
    def of(cls, text: str) -> Address:
        """Read "host:port" or "[v6]:port". Raises `ValueError` if it is neither."""
        host, colon, port = text.rpartition(":")
        host = host.removeprefix("[").removesuffix("]")
        if not colon or not host or not port.isascii() or not port.isdigit() or int(port) >= 1 << 16:
            raise ValueError("host:port, such as 192.0.2.7:7700")
        return cls(host, int(port))

    @property
    def is_loopback(self) -> bool:
        """Whether it can be reached from this machine only."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:  # a name: who knows where it leads
            return False

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _address(text: str) -> str:
    if not Address.of(text).port:
        raise ValueError("a port from 1 to 65535")
    return text


AddressText = Annotated[str, AfterValidator(_address)]


Mode = Literal["free-running", "lockstep"]


class Neighbour(Policy):
    """A device that may connect to this one."""

    device: int = Field(ge=0)
    """Its number."""
    address: AddressText | None = None
    """Where it listens, "host:port". Default: nowhere that this node can reach, so the neighbour has to connect."""


class Tls(Policy):
    """The files of this node's identity, which `efhc certs` makes. Relative paths count from the node file."""

    authority: Path = Field(strict=False)
    """Certificate of the authority that issued the certificates of all nodes."""
    certificate: Path = Field(strict=False)
    """Certificate of this node. A renewed one is taken up without a restart."""
    key: Path = Field(strict=False)
    """Private key of this node. Only its owner may be able to read it."""


class Limits(Policy):
    """Limits that the node keeps to, whatever its neighbours send."""

    send: Annotated[float, Field(gt=0, strict=False)] | None = None
    """Bytes per second that the node sends at most, to all neighbours together, without what TLS and TCP add. Default:
    no limit."""
    norm: float = Field(default=1000.0, gt=0, strict=False)
    """A received model is refused if its norm is more than this many times that of the node's own model (or 1)."""
    strangers: int = Field(default=32, ge=1)
    """Number of connections that may be open before their other end has shown who it is."""
    patience: Seconds = 30.0
    """Seconds without any progress after which a free-running node withdraws an exchange, or sends again."""
    give_up: Seconds = 3600.0
    """Seconds for which an exchange may stay in doubt with a neighbour that does not return. Then it is unresolved.
    In lockstep: seconds for which a node that has made all iterations waits for the others."""
    journal: int = Field(default=1 << 28, ge=1 << 16)
    """Bytes of the journal after which a free-running node makes a checkpoint."""


class Metrics(Policy):
    """Where the node reports its state."""

    port: int | None = Field(default=None, ge=0, lt=1 << 16)
    """Loopback port of /metrics, /healthz, /readyz and /status; 0 takes a free one. Default: none.
    The file `status.sock` in the state folder answers the same in any case."""


class RecordingSettings(Policy):
    """What the node records so that a run can be collected. `efhc launch` sets it."""

    start: float = Field(default=0.0, strict=False)
    """Wall-clock time that counts as second 0 of the run. Default: nothing is recorded."""
    begin: float = Field(default=0.0, ge=0, strict=False)
    """Second of the run before which a free-running node makes no step. In a run that is resumed, it is the second at
    which the nodes were stopped."""
    models_after: Annotated[tuple[int, ...], Field(strict=False)] | Literal["every"] = ()
    """Numbers of iterations after which the model is kept, or "every". Default: none."""
    models_seconds: Seconds | None = None
    """Seconds between two kept models of a free-running node."""
    gradients: bool = False
    """Keep the sum of all gradient steps in the model of a free-running node, to check the law of the sum."""


class NodeSettings(Policy):
    """One device of an experiment, as one process."""

    experiment: Path = Field(strict=False)
    """The experiment's file, the same on all devices: model, strategy, schedules, number of devices, seed."""
    strategy: str | None = None
    """The name of the strategy. Default: the only one of the experiment."""
    seed: int | None = Field(default=None, ge=0)
    """The seed. Default: the only one of the experiment."""
    device: int = Field(ge=0)
    """The number of this device, from 0."""
    listen: AddressText | None = None
    """Where to listen, "host:port". Default: nowhere; this node connects to all its neighbours."""
    neighbours: tuple[Neighbour, ...] = Field(default=(), strict=False)
    """The devices that may connect; all others are refused. SIGHUP reads this table anew."""
    data: Path | None = Field(default=None, strict=False)
    """The device's own samples, an .npz file with `x`, `y` and `classes` or a folder of images. Default: its part of
    the experiment's data."""
    state: Path = Field(default=Path("state"), strict=False)
    """Folder of the checkpoint, the journal and the status socket."""
    mode: Mode = "free-running"
    """Whether the device steps on its own clock, or waits for its neighbours in each iteration as `efhc run` does."""
    bandwidth: Annotated[float, Field(gt=0, strict=False)] | Literal["measured"] | None = None
    """b_i in parameters per second, or "measured". Default: the one that the experiment draws for this device."""
    pace: float = Field(default=0.0, ge=0, le=1e9, strict=False)
    """Seconds that a step takes at least."""
    join: Literal["fresh", "copy"] = "fresh"
    """What a node without a state starts from: w_i(0) of the experiment, or a neighbour's model and iteration."""
    stay: bool = True
    """Whether a free-running node that has made its last iteration stays to answer its neighbours."""
    wire: Literal["exact", "float16"] = "exact"
    """How models are sent: in the precision of the experiment, or rounded to float16. All nodes must agree."""
    journal: bool = True
    """Whether exchanges of a free-running node are on disk before a neighbour relies on them. If not, those that a kill
    loses are counted."""
    checkpoint_seconds: Seconds = 60.0
    """Seconds between checkpoints of a free-running node."""
    checkpoint_every: int = Field(default=50, ge=1)
    """Iterations between checkpoints of a node in lockstep; the same on all nodes."""
    down_after: Seconds = 10.0
    """Seconds without a connection after which a link of a free-running node counts as gone, so that its return is
    Event 1."""
    stop_seconds: Seconds = 10.0
    """Seconds within which exchanges under way may finish when the node is asked to stop."""
    log: Literal["debug", "info", "warning", "error"] = "info"
    """The least level of what is logged."""
    tls: Tls | None = None
    """The node's identity. Required unless the node was started with `--insecure`, on loopback only."""
    limits: Limits = Limits()
    """Limits of the node."""
    metrics: Metrics = Metrics()
    """Where the node reports its state."""
    record: RecordingSettings = RecordingSettings()
    """What the node records for the result of a run."""

    @field_validator("state")
    @classmethod
    def _has_a_folder_of_its_own(cls, state: Path) -> Path:
        if state == Path():
            raise ValueError("a folder of its own, such as 'state'")
        return state

    @model_validator(mode="after")
    def _neighbours_are_others(self) -> Self:
        seen: set[int] = set()
        for neighbour in self.neighbours:
            if neighbour.device == self.device:
                raise Unusable("neighbours", f"device {self.device}, which is this node itself", "other devices")
            if neighbour.device in seen:
                raise Unusable("neighbours", f"device {neighbour.device} twice", "each device once")
            if neighbour.address is not None and neighbour.address == self.listen:
                given = f"{neighbour.address} as the address of device {neighbour.device}: this node listens there"
                raise Unusable("neighbours", given, "the address of the neighbour")
            seen.add(neighbour.device)
        if self.listen is None and (silent := [n.device for n in self.neighbours if n.address is None]):
            given = f"device {silent[0]} without an address, while this node listens nowhere"
            raise Unusable("neighbours", given, "an address; or listen = 'host:port'")
        return self

    @model_validator(mode="after")
    def _lockstep_is_exact(self) -> Self:
        if self.mode == "lockstep":
            for table, within, names in (
                (self, "", ("wire", "join", "bandwidth", "journal", "checkpoint_seconds", "down_after", "stay")),
                (self.limits, "limits.", ("patience", "journal")),
                (self.record, "record.", ("begin", "models_seconds", "gradients")),
            ):
                for name in names:
                    if (given := getattr(table, name)) != type(table).model_fields[name].default:
                        shown = f"{given!r} with mode = 'lockstep'"
                        raise Unusable(within + name, shown, "mode = 'free-running', or remove this setting")
        return self
