"""Links and devices that come and go."""

from __future__ import annotations

from heapq import heappush
from typing import Any

from efhc.core.device import restarted
from efhc.core.device_state import Device, durable, is_idle
from efhc.core.graph import Graph
from efhc.core.protocol import Finish, GiveUp, Leave, LinkDown, LinkUp
from efhc.drivers.event_driven.checkpoints import attributes, set_attributes
from efhc.drivers.event_driven.churn import Churn
from efhc.drivers.event_driven.exchanges import Exchanges
from efhc.drivers.event_driven.iterations import Iterations
from efhc.drivers.event_driven.run import CHURN, GIVE_UP, NETWORK, Run
from efhc.drivers.event_driven.settings import EventDriven
from efhc.network.over_time import StaticGraph
from efhc.scenarios.scenario import Scenario


class Presence:
    """Who is there in one run, and which links are up."""

    def __init__(
        self,
        scenario: Scenario,
        settings: EventDriven,
        churn: Churn,
        exchanges: Exchanges,
        iterations: Iterations,
    ) -> None:
        self._scenario, self._churn, self._exchanges, self._iterations = scenario, churn, exchanges, iterations
        self._network_seconds, self._give_up_seconds = settings.network_seconds, settings.give_up_seconds
        self._network_changes = not isinstance(scenario.network, StaticGraph)
        self._graph_number, self._graph = 0, scenario.network.graph(0)
        self._rewired_at = 0.0
        devices = len(scenario.bandwidths.values)
        self._churn_counts = [0] * devices
        self.changes = settings.churn is not None
        """Whether devices come and go."""
        self.present = [device not in churn.absent for device in range(devices)]
        self.leaving: dict[int, float] = {}
        """Devices that end what is in flight before they go, and since when."""
        self._journals: dict[int, Device] = {}
        self._deadlines: dict[tuple[int, int], float] = {}
        """When a device gives up a neighbour out of reach."""

    def start(self, run: Run) -> None:
        """The first graph is there, and what changes it is planned."""
        for number in range(len(self.present)):
            self._plan_churn(run, number)
            if self.changes:
                self.keep(run.devices[number])
        new = self._scenario.exchange_at_start
        for i, j in self._graph.links.tolist():
            if self.present[i] and self.present[j]:
                self._connect(run, i, j, new=new)
        self._note_network(run)
        if self._network_changes:
            heappush(run.due, (self._network_seconds, NETWORK))

    def there(self) -> list[int]:
        """Return the numbers of the devices that are there."""
        return [number for number, present in enumerate(self.present) if present]

    def new_device(self, run: Run, number: int, *, copies: bool = False) -> Device:
        """Return a device with its initial model, in a new session."""
        model = run.rows.holding(self._scenario.initial_model(number))
        return Device(number, self._iterations.sessions[number], model, model, copies=copies)

    def keep(self, device: Device) -> None:
        """A device writes its journal: a crash leaves that."""
        self._journals[device.number] = durable(device)

    # Links that come and go

    def change_network(self, run: Run) -> None:
        """The next graph: links that it does not have go down, those that it has are up."""
        self._graph_number += 1
        before, now = self._graph, self._scenario.network.graph(self._graph_number)
        heappush(run.due, (run.now + self._network_seconds, NETWORK))
        if now is before:
            return
        self._graph = now
        for i, j in before.links[before.new_since(now)].tolist():
            if self.present[i] and self.present[j]:
                self._disconnect(run, i, j)
        if (new := now.new_since(before)).any() or len(now.links) != len(before.links):
            for i, j in now.links[new].tolist():
                if self.present[i] and self.present[j]:
                    self._connect(run, i, j)
            self._rewired_at = run.now
            self._note_network(run)

    @property
    def wiring(self) -> tuple[Graph, float]:
        """The graph, and the second at which its links changed; 0 if that was before the run began or went on."""
        return self._graph, self._rewired_at

    def _connect(self, run: Run, i: int, j: int, *, new: bool = True) -> None:
        self._deadlines.pop((i, j), None)
        self._deadlines.pop((j, i), None)
        for number, neighbour in ((i, j), (j, i)):
            run.react(number, LinkUp(neighbour, new))

    def _disconnect(self, run: Run, i: int, j: int) -> None:
        self._exchanges.cut(run, i, j)
        for number, neighbour in ((i, j), (j, i)):
            if self.present[number]:
                run.react(number, LinkDown(neighbour))
                self._plan_to_give_up(run, number, neighbour)

    def _note_network(self, run: Run) -> None:
        i, j = self._graph.links.T.tolist()
        run.record.network.append((self._graph_number, i, j))

    # Neighbours that do not return

    def _plan_to_give_up(self, run: Run, number: int, neighbour: int) -> None:
        """A device in doubt about a neighbour out of reach does not wait for ever."""
        link = run.devices[number].links.get(neighbour)
        if link is not None and link.in_doubt:
            self._deadlines[number, neighbour] = due = run.now + self._give_up_seconds
            heappush(run.due, (due, GIVE_UP, number, neighbour))

    def give_up(self, run: Run, number: int, neighbour: int) -> None:
        """Patience with a neighbour out of reach ends, unless it was in reach since."""
        if self.present[number] and self._deadlines.get((number, neighbour)) == run.now:
            del self._deadlines[number, neighbour]
            run.react(number, GiveUp(neighbour))

    def may_hear(self, run: Run) -> bool:
        """Whether a device in doubt may still come into reach of the one that can tell."""
        for number, device in enumerate(run.devices):
            kept = device if self.present[number] else self._journals.get(number)
            if kept is not None and any(
                link.in_doubt and self._may_meet(number, neighbour) for neighbour, link in kept.links.items()
            ):
                return True
        return False

    def _may_meet(self, number: int, neighbour: int) -> bool:
        if self.present[number] and self.present[neighbour]:
            return self._network_changes
        return all(self.present[one] or self._comes_back(one) for one in (number, neighbour))

    def _comes_back(self, number: int) -> bool:
        return self._churn.next_event(number, self._churn_counts[number]) is not None

    def anybody_to_come(self, run: Run) -> bool:
        """Whether a device that has steps to make is away, or waits to leave, and will come back."""
        if not self.changes:
            return False
        away = (n for n, present in enumerate(self.present) if not present or n in self.leaving)
        return any(self._iterations.has_steps_to_make(run.devices[n]) and self._comes_back(n) for n in away)

    # Devices that come and go

    def _plan_churn(self, run: Run, number: int) -> None:
        if event := self._churn.next_event(number, self._churn_counts[number]):
            heappush(run.due, (event.seconds, CHURN, number))

    def make_churn(self, run: Run, number: int) -> None:
        """A device comes or goes, and the next time is planned."""
        event = self._churn.next_event(number, self._churn_counts[number])
        assert event is not None
        self._churn_counts[number] += 1
        self._plan_churn(run, number)
        if event.what == "leave":
            self._leave(run, number)
        elif event.what == "crash":
            self._switch_off(run, number)
            if self._churn.journal == "lose":
                self._journals.pop(number, None)
        else:
            self._switch_on(run, number, anew=event.what == "join" or self._churn.journal == "lose")

    def _leave(self, run: Run, number: int) -> None:
        """A device that leaves ends what is in flight before it goes."""
        self.leaving[number] = due = run.now + self._give_up_seconds
        heappush(run.due, (due, GIVE_UP, number, -1))
        self._iterations.end_session(number)
        run.react(number, Leave())
        run.react(number, Finish())
        if run.devices[number].steps:
            run.apply(number)

    def let_go(self, run: Run) -> None:
        """Let devices go that have nothing in flight any more, or have waited too long for that."""
        for number, deadline in list(self.leaving.items()):
            if is_idle(run.devices[number]) or run.now >= deadline:
                self._switch_off(run, number)

    def _switch_off(self, run: Run, number: int) -> None:
        """A device is gone at once, and its neighbours notice."""
        device = run.devices[number]
        self.leaving.pop(number, None)
        self.present[number] = False
        self._iterations.end_session(number)
        for neighbour, link in list(device.links.items()):
            if link.exchange is not None and link.exchange.in_doubt:
                self._exchanges.forget(link.exchange.token)
            elif link.exchange is not None:
                self._exchanges.note_end(run, number, neighbour, link.exchange, "withdrawn")
            if link.up:
                self._disconnect(run, number, neighbour)

    def _switch_on(self, run: Run, number: int, *, anew: bool) -> None:
        """A device comes: from its journal, or with a first model."""
        if number in self.leaving:  # it has not gone yet: it goes now
            self._switch_off(run, number)
        if anew:
            self._iterations.gradients.forget_local(number)
            run.devices[number] = self.new_device(run, number, copies=self._churn.start == "copy")
            self.keep(run.devices[number])
        else:
            run.devices[number] = restarted(self._journals[number], self._iterations.sessions[number])
            for neighbour in run.devices[number].links:
                self._plan_to_give_up(run, number, neighbour)
        self.present[number] = True
        if run.devices[number].finished:
            if run.devices[number].steps:  # of before the crash
                run.apply(number)
        elif not run.devices[number].copies:  # one that waits for a model begins when that is there
            self._iterations.beginning.add(number)
        for i, j in self._graph.links[(self._graph.links == number).any(axis=1)].tolist():
            if self.present[i] and self.present[j]:
                self._connect(run, i, j)

    # Checkpoints

    SAVED = ("present", "leaving", "_churn_counts", "_journals", "_graph_number", "_deadlines")

    def state(self) -> dict[str, Any]:
        """Return plain data that `restore` goes on from."""
        return attributes(self, self.SAVED)

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` returned."""
        set_attributes(self, self.SAVED, state)
        self._graph = self._scenario.network.graph(self._graph_number)
