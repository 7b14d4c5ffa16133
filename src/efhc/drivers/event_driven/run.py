"""What the parts of a run use of the whole: its time, what is due, and its devices.

A part is given the run with every call and keeps no reference to it: without a cycle, the models of a run are freed as
soon as nobody holds the run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Protocol

import numpy as np

from efhc.base.arrays import Floats
from efhc.core.state import Local
from efhc.drivers.event_driven.record import EventRecord

GRADIENT, NETWORK, CHURN, RETRY, GIVE_UP, SAMPLE = range(6)
"""What is due, in the order of one instant; messages come before RETRY."""


class Run(Protocol):
    """A run, as its parts see it."""

    now: float
    due: list[tuple[Any, ...]]
    """A heap of (time, what, ...)."""
    devices: list[Any]
    """The devices, as the link law has them."""
    record: EventRecord

    def journal(self, number: int) -> None:
        """A device writes down what must survive a crash."""


class Links(Protocol):
    """A link law in virtual time: what devices do by themselves, and with one another."""

    steps: int
    """The number of steps that all devices have made."""
    broadcasts: int
    committed: int
    """Steps over links that both ends have made or will make."""
    unresolved: int
    """Steps that may be at one end only: a device did not come back."""
    running: set[int]
    """The devices that have an iteration under way."""
    beginning: set[int]
    """The devices that begin an iteration at this instant."""
    sessions: list[int]
    """By device: the gradient of an earlier session is not used."""

    # Devices

    def new_device(self, number: int, *, copies: bool = False) -> Any:
        """Return a device with its initial model, in a new session; one that `copies` waits for a neighbour's."""

    def durable(self, device: Any) -> Any:
        """Return what a crash leaves of a device, if it has just written its journal."""

    def restarted(self, kept: Any) -> Any:
        """Return the device that starts from what `durable` kept, in a new session and without a link."""

    def waits_for_model(self, device: Any) -> bool:
        """Return whether a device waits for a model to start from."""

    def has_steps_to_make(self, device: Any) -> bool:
        """Return whether a device is not at its last iteration yet."""

    def is_idle(self, device: Any) -> bool:
        """Return whether nothing of a device is under way."""

    def in_doubt(self, device: Any) -> list[int]:
        """Return the neighbours that have to say how an exchange ended."""

    @property
    def local(self) -> Local:
        """What devices keep to themselves."""

    def models(self, run: Run) -> Floats:
        """Return the models of all devices, (m, n)."""

    def drifts(self, run: Run) -> list[float]:
        """Return how far each device's model is from what its neighbours know of it."""

    def threshold(self, number: int, k: int) -> float:
        """threshold_i(k) of a device."""

    def imbalance(self, run: Run) -> float:
        """Return the norm of the sum of the steps that one end has made and the other has not."""

    # Time

    def begin(self, run: Run, numbers: Iterable[int]) -> None:
        """Iterations begin."""

    def step(self, run: Run, due: Iterable[tuple[Any, ...]], leaving: Collection[int]) -> None:
        """Gradients are there, (device, session). Devices that are leaving do not begin again."""

    def deliver(self, run: Run) -> None:
        """Deliver all messages of this instant, and those that they lead to."""

    def wait_is_over(self, run: Run, number: int, neighbour: int, *, is_there: bool) -> None:
        """A device has waited long enough for a neighbour."""

    def may_get_on(self, run: Run, number: int, neighbour: int) -> bool:
        """Return whether waiting can still lead to something, now that no device makes steps any more."""

    def give_up(self, run: Run, number: int, neighbour: int) -> None:
        """A neighbour that has to say how an exchange ended will not return."""

    def unresolved_text(self, count: int) -> str:
        """Return the warning that `count` steps may be at one end only."""

    def finish(self, run: Run, present: list[bool]) -> None:
        """The run is over: what is still under way is counted as it is."""

    # Links and devices that come and go

    def link_up(self, run: Run, i: int, j: int, *, new: bool) -> None:
        """Two devices have come into reach of one another; `new`: they have just met (Event 1)."""

    def link_down(self, run: Run, number: int, neighbour: int) -> None:
        """A neighbour is out of a device's reach."""

    def cut(self, run: Run, i: int, j: int) -> None:
        """Lose everything that is under way between two devices."""

    def end_session(self, number: int) -> None:
        """The step of a device that is under way is not made."""

    def leave(self, run: Run, number: int) -> None:
        """A device is to go: it begins nothing new, and goes once it is idle."""

    def linked(self, device: Any) -> list[tuple[int, bool]]:
        """Return the neighbours with which a device has anything to do, and whether the link to each is up."""

    def part(self, run: Run, number: int, neighbour: int) -> None:
        """A device is gone: note what becomes of what it had under way with a neighbour."""

    def switch_on(self, run: Run, number: int, *, anew: bool) -> None:
        """A device is there again."""

    # Checkpoints

    def state(self) -> dict[str, Any]:
        """Return plain data that `restore` goes on from."""

    def tensors(self) -> dict[str, np.ndarray]:
        """Return arrays that `restore` goes on from."""

    def restore(self, state: dict[str, Any], tensors: Mapping[str, np.ndarray]) -> None:
        """Go on from what `state` and `tensors` returned."""
