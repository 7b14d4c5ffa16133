"""Links and devices that come and go."""

from __future__ import annotations

from heapq import heappush
from typing import Any

from efhc.core.device import Device, durable, is_idle, restarted
from efhc.core.protocol import Finish, GiveUp, Leave, LinkDown, LinkUp, Token
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
        devices = len(scenario.bandwidths.values)
        self._churn_counts = [0] * devices
        self.changes = settings.churn is not None
        """Whether devices come and go."""
        self.present = [device not in churn.absent for device in range(devices)]
        self.leaving: dict[int, float] = {}
        """Devices that end what is in flight before they go, and since when."""
        self._journals: dict[int, Device] = {}
        iterations.running = sum(self.present)

    def start(self, run: Run) -> None:
        """The first graph is there, and what changes it is planned."""
        for number in range(len(self.present)):
            self._plan_churn(run, number)
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
        before, now = self._graph, self._scenario.graphs(self._graph_number)[1]
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
            self._note_network(run)

    def _connect(self, run: Run, i: int, j: int, *, new: bool = True) -> None:
        for number, neighbour in ((i, j), (j, i)):
            run.react(number, LinkUp(neighbour))
            if not new:
                run.devices[number].links[neighbour].new = False

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
        if link is not None and link.exchange is not None:
            due = run.now + self._give_up_seconds
            heappush(run.due, (due, GIVE_UP, number, neighbour, link.exchange.token))

    def give_up(self, run: Run, number: int, neighbour: int, token: Token | None) -> None:
        """Patience with a neighbour out of reach ends, if the exchange is still the same."""
        if self._is_in_flight(run, number, neighbour, token):
            run.react(number, GiveUp(neighbour))

    def may_hear_of(self, run: Run, number: int, neighbour: int, token: Token | None) -> bool:
        """Whether a device in doubt may come into reach of the one that can tell."""
        if not self._is_in_flight(run, number, neighbour, token):
            return False
        if self.present[neighbour]:
            return self._network_changes
        return self._churn.next_event(neighbour, self._churn_counts[neighbour]) is not None

    def _is_in_flight(self, run: Run, number: int, neighbour: int, token: Token | None) -> bool:
        link = run.devices[number].links.get(neighbour)
        return self.present[number] and link is not None and link.exchange is not None and link.exchange.token == token

    def anybody_to_come(self, run: Run) -> bool:
        """Whether a device that has not finished is away and will come back."""
        if not self.changes:
            return False
        away = (n for n, present in enumerate(self.present) if not present and not run.devices[n].finished)
        return any(self._churn.next_event(number, self._churn_counts[number]) is not None for number in away)

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
        if not run.devices[number].finished and not run.devices[number].copies:
            self._iterations.running -= 1
        self.leaving[number] = run.now
        heappush(run.due, (run.now + self._give_up_seconds, GIVE_UP, number, -1, None))
        self._iterations.end_session(number)
        run.react(number, Leave())
        run.react(number, Finish())
        if run.devices[number].steps:
            run.apply(number)

    def let_go(self, run: Run) -> None:
        """Let devices go that have nothing in flight any more, or have waited too long for that."""
        for number, since in list(self.leaving.items()):
            waited = run.now - since
            if is_idle(run.devices[number]) or waited >= self._give_up_seconds:
                del self.leaving[number]
                run.devices[number].leaving = False
                self._switch_off(run, number, was_running=False)

    def _switch_off(self, run: Run, number: int, *, was_running: bool | None = None) -> None:
        """A device is gone at once, and its neighbours notice."""
        device = run.devices[number]
        if number in self.leaving:
            del self.leaving[number]
        elif was_running is None and not device.finished and not device.copies:
            self._iterations.running -= 1
        self.present[number] = False
        self._iterations.end_session(number)
        for neighbour, link in list(device.links.items()):
            if link.exchange is not None and not link.exchange.in_doubt:
                self._exchanges.note_end(run, number, neighbour, link.exchange, "withdrawn")
            if link.up:
                self._disconnect(run, number, neighbour)

    def _switch_on(self, run: Run, number: int, *, anew: bool) -> None:
        """A device comes: from its journal, or with a first model."""
        if anew:
            self._iterations.gradients.forget_local(number)
            self._journals.pop(number, None)
            run.devices[number] = self.new_device(run, number, copies=self._churn.start == "copy")
        else:
            kept = self._journals.get(number) or self.new_device(run, number)
            run.devices[number] = restarted(kept, self._iterations.sessions[number])
            for neighbour in run.devices[number].links:
                self._plan_to_give_up(run, number, neighbour)
        self.present[number] = True
        if run.devices[number].copies:
            pass  # it waits for a model, and a run does not wait for it
        elif not run.devices[number].finished:
            self._iterations.running += 1
            self._iterations.beginning.add(number)
        elif run.devices[number].steps:  # of before the crash
            run.apply(number)
        for i, j in self._graph.links[(self._graph.links == number).any(axis=1)].tolist():
            if self.present[i] and self.present[j]:
                self._connect(run, i, j)

    # Checkpoints

    SAVED = ("present", "leaving", "_churn_counts", "_journals", "_graph_number")

    def state(self) -> dict[str, Any]:
        """Return plain data that `restore` goes on from."""
        return {name: getattr(self, name) for name in self.SAVED}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `state` returned."""
        for name in self.SAVED:
            setattr(self, name, state[name])
        self._graph = self._scenario.network.graph(self._graph_number)
