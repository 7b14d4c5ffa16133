"""The iterations of all devices, each on its own clock: Events 1 and 2 when one begins, 3 and 4 when it ends."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from heapq import heappush
from typing import Any

import numpy as np

from efhc.core.device import react
from efhc.core.device_state import Device
from efhc.core.protocol import Begin, Finish, Stepped
from efhc.core.triggers import Trigger
from efhc.drivers.event_driven.checkpoints import attributes, set_attributes
from efhc.drivers.event_driven.compute import ComputeClock
from efhc.drivers.event_driven.exchanges import Exchanges
from efhc.drivers.event_driven.gradients import Gradients
from efhc.drivers.event_driven.rows import Rows
from efhc.drivers.event_driven.run import GRADIENT, Run
from efhc.drivers.event_driven.settings import EventDriven
from efhc.scenarios.scenario import Scenario


class Iterations:
    """What the devices of one run do by themselves."""

    def __init__(
        self,
        scenario: Scenario,
        trigger: Trigger,
        settings: EventDriven,
        iterations: int,
        clock: ComputeClock,
        gradients: Gradients,
        exchanges: Exchanges,
    ) -> None:
        self._scenario, self._trigger, self._clock, self._exchanges = scenario, trigger, clock, exchanges
        self._iterations = iterations if settings.seconds is None else None
        self._measures = settings.bandwidth == "measured"
        self._reader = gradients.reader
        self.gradients = gradients
        self.steps = 0
        """The number of steps that all devices have made."""
        self.broadcasts = 0
        self.running: set[int] = set()
        """The devices that have an iteration under way."""
        self.sessions = [0] * len(scenario.bandwidths.values)
        """By device: the gradient of an earlier session is not used."""
        self.beginning: set[int] = set()
        """The devices that begin an iteration at this instant."""
        self._fired: set[int] = set()
        self._drifts: dict[int, float] = {}
        """Of the devices that have just stepped."""

    def begin(self, run: Run, numbers: list[int]) -> None:
        """Iterations begin: Events 1 and 2, and the gradients start."""
        self.beginning.difference_update(numbers)
        devices = [run.devices[number] for number in numbers]
        if unknown := [device for device in devices if device.number not in self._drifts]:
            drifts = run.rows.drifts([d.model.index for d in unknown], [d.last_broadcast.index for d in unknown])
            self._drifts.update(zip((device.number for device in unknown), drifts, strict=True))
        at_once = self._exchanges.at_once
        for device in devices:
            number, k = device.number, device.k
            drift = self._drifts.pop(number)
            if not self.has_steps_to_make(device):
                self.running.discard(number)
                run.react(number, Finish())
                if device.steps:  # of before a crash
                    run.apply(number)
                continue
            self.running.add(number)
            run.react(number, Begin(drift, self.threshold(number, k), at_once))
            self.gradients.start(device)
            seconds = self._clock.seconds(number, k)
            heappush(run.due, (run.now + seconds, GRADIENT, number, self.sessions[number]))
        if at_once:
            self._exchanges.make_at_once(
                run, ((one, neighbour, link) for one in devices for neighbour, link in one.links.items() if link.owes)
            )

    def threshold(self, number: int, k: int) -> float:
        """threshold_i(k) of a device."""
        if self._measures:
            return self._reader.threshold_with(self._trigger, number, k, self._exchanges.measured_rate(number))
        return self._reader.threshold(self._trigger, number, k)

    def note_broadcast(self, number: int) -> None:
        """A device has fired."""
        self._fired.add(number)
        self.broadcasts += 1

    def step(self, run: Run, due: Iterable[tuple[Any, ...]], leaving: Collection[int]) -> None:
        """Gradients are there, (device, session): Events 3 and 4. Devices that are leaving do not begin again."""
        numbers = [number for number, session in due if self.sessions[number] == session]
        if not numbers:
            return
        devices = [run.devices[number] for number in numbers]
        taken = [self.gradients.take(number, run.devices) for number in numbers]
        step_sizes = [self._scenario.step_size(device.k) for device in devices]
        drifts = run.rows.step(devices, [row for row, _ in taken], step_sizes)
        self._drifts.update(zip(numbers, drifts, strict=True))
        fired, steps = self._fired, run.record.steps
        for device, (row, loss) in zip(devices, taken, strict=True):
            number = device.number
            steps.append((number, device.k, run.now, number in fired, loss))
            run.carry_out(number, react(device, Stepped(row, len(device.steps)), run.rows.combined))
        fired.difference_update(numbers)
        self.steps += len(numbers)
        self.beginning.update(number for number in numbers if number not in leaving)

    def has_steps_to_make(self, device: Device) -> bool:
        """Whether a device is not at its last iteration yet."""
        return self._iterations is None or device.k < self._iterations

    def end_session(self, number: int) -> None:
        """The step of a device that is under way is not made."""
        self.beginning.discard(number)
        self.running.discard(number)
        self._drifts.pop(number, None)
        self._fired.discard(number)
        self.gradients.drop(number)
        self.sessions[number] += 1

    # Checkpoints

    SAVED = ("steps", "broadcasts", "running", "sessions", "beginning", "_fired")

    def state(self) -> dict[str, Any]:
        """Return plain data that `restore` goes on from. Drifts are computed again."""
        return attributes(self, self.SAVED) | {"gradients": self.gradients.state()}

    def restore(self, state: dict[str, Any], rows: Rows, tensors: Mapping[str, np.ndarray]) -> None:
        """Go on from what `state` returned, with models in these rows."""
        set_attributes(self, self.SAVED, state)
        self.gradients = Gradients(self._scenario, self._reader, rows)
        self.gradients.restore(state["gradients"], tensors)
