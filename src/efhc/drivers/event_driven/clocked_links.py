"""What `ExchangeLinks` and `HalfStepLinks` have in common: the two link laws in virtual time.

A part is given the run with every call and keeps no reference to it: without a cycle, the models of a run are freed as
soon as the last reference to the run is gone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import heappush
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from efhc.base.arrays import Floats
from efhc.core.local_steps import LocalRows, Moment, total_descent
from efhc.core.state import Local
from efhc.drivers.event_driven.checkpoints import Saved
from efhc.drivers.event_driven.gradients import Gradients
from efhc.strategies.forms import Form

if TYPE_CHECKING:
    from efhc.drivers.event_driven.simulator import Simulator

GRADIENT, NETWORK, CHURN, RETRY, GIVE_UP, SAMPLE = range(6)
"""The kinds of entries of `Simulator.due`, in the order of one instant; messages come before RETRY."""


class ClockedLinks(Saved):
    """A link law in virtual time: the local steps of devices, and the messages between them."""

    SAVED: ClassVar[tuple[str, ...]] = (
        "steps", "broadcasts", "committed", "unresolved", "running", "beginning", "sessions",
    )  # fmt: skip
    """The attributes that a checkpoint holds. A link law adds its own."""

    def __init__(self, run: Simulator, form: Form, gradients: Gradients) -> None:
        assert form.parts is not None
        scenario, settings = run.scenario, run.settings
        self._scenario, self._parts, self._clock, self._messages = scenario, form.parts, run.clock, run.messages
        self._iterations = run.iterations if settings.seconds is None else None
        self._measures = settings.bandwidth == "measured"
        self.gradients = gradients
        devices, parameters = len(scenario.bandwidths.values), scenario.learner.backend.parameters
        self._rows = LocalRows(self._parts.local, devices, parameters, scenario.learner.data.precision)
        self.steps = 0
        """The number of steps that all devices have made."""
        self.broadcasts = 0
        self.committed = 0
        """The number of steps over links that both ends have made or will make."""
        self.unresolved = 0
        """The number of steps that may have been made at one end only, because a device did not come back."""
        self.running: set[int] = set()
        """The devices that compute a gradient."""
        self.beginning: set[int] = set()
        """The devices that begin an iteration at this instant."""
        self.sessions = [0] * devices
        """The number of the session of each device. The gradient of an earlier session is not used."""

    # Devices

    def has_steps_to_make(self, device: Any) -> bool:
        """Return whether a device is not at its last iteration yet."""
        return self._iterations is None or device.k < self._iterations

    @property
    def local(self) -> Local:
        """What devices never mix."""
        return self.gradients.local

    def _measured(self, number: int) -> float | None:
        """Return the bandwidth that a device has measured; None if it knows the true one."""
        return self._messages.measured[number] if self._measures else None

    def in_doubt(self, device: Any) -> list[int]:
        """Return the neighbours that alone know how an exchange with this device ended: none with half-steps."""
        return []

    def give_up(self, run: Simulator, number: int, neighbour: int) -> None:
        """A neighbour that alone knows how an exchange ended will not return."""

    def linked(self, device: Any) -> list[tuple[int, bool]]:
        """Return the neighbours on whose links a device has any state, and whether each link is up."""
        return [(neighbour, True) for neighbour in device.links]

    # Iterations

    def _start_gradient(self, run: Simulator, device: Any) -> float:
        """Start the gradient of a device's iteration at its model. Returns how many seconds it takes."""
        number, first, count = device.number, device.k * self._parts.local.steps, self._parts.local.steps
        self.gradients.start(number, first, device.model)
        seconds = sum(self._clock.seconds(number, first + s) for s in range(count))
        heappush(run.due, (run.now + seconds, GRADIENT, number, self.sessions[number]))
        return seconds

    def _current(self, due: Iterable[tuple[Any, ...]]) -> list[int]:
        """Return the devices of gradients that are due, without those of earlier sessions."""
        return [number for number, session in due if self.sessions[number] == session]

    def _descent(
        self, devices: Sequence[Any], x: Floats, gradients: Floats, alphas: Sequence[float], gates: Floats
    ) -> Floats:
        """Return the directions u - h of local steps that begin at x, where `gradients` are the first ones."""
        numbers, steps = [device.number for device in devices], self._parts.local.steps
        column = np.array(alphas, gradients.dtype)[:, None]

        def direction(s: int, x: Floats) -> Floats:
            batches = [device.k * steps + s for device in devices]
            found = gradients if s == 0 else self.gradients.at(numbers, batches, x)
            return self._rows.descent(numbers, x, found, alphas, Moment(column, np.array(batches) + 1, gates))

        return total_descent(steps, x, column, direction)

    def end_session(self, number: int) -> None:
        """Drop the step that a device is computing."""
        self.beginning.discard(number)
        self.running.discard(number)
        self.gradients.drop(number)
        self.sessions[number] += 1

    # Checkpoints

    def state(self) -> dict[str, Any]:
        return super().state() | {"gradients": self.gradients.state()}

    def tensors(self) -> dict[str, np.ndarray]:
        """Return the arrays that change during a run."""
        return self.gradients.tensors() | self._rows.tensors()

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self.gradients.restore(state["gradients"])

    def restore_tensors(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Go on from what `tensors` returned."""
        for name, values in self.tensors().items():
            values[...] = tensors[name]
