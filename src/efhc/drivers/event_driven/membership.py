"""Links and devices that come and go."""

from __future__ import annotations

from collections.abc import Mapping
from heapq import heappush
from typing import TYPE_CHECKING, Any, ClassVar

from efhc.core.graph import Graph
from efhc.drivers.event_driven.checkpoints import Saved
from efhc.drivers.event_driven.churn import Churn
from efhc.drivers.event_driven.clocked_links import CHURN, GIVE_UP, NETWORK
from efhc.network.topologies import StaticGraph

if TYPE_CHECKING:
    from efhc.drivers.event_driven.exchange_links import ExchangeLinks
    from efhc.drivers.event_driven.half_step_links import HalfStepLinks
    from efhc.drivers.event_driven.simulator import Simulator


class Membership(Saved):
    """Which devices of one run are present, and which links are up."""

    def __init__(self, run: Simulator, churn: Churn, links: ExchangeLinks | HalfStepLinks) -> None:
        scenario, settings = run.scenario, run.settings
        self._scenario, self._churn, self._links = scenario, churn, links
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
        """The devices that finish what is in flight before they go, and until when they wait for it."""
        self._journals: dict[int, Any] = {}
        self._deadlines: dict[tuple[int, int], float] = {}
        """When a device gives up a neighbour that is out of reach."""

    def start(self, run: Simulator) -> None:
        """Bring the links of the first graph up, and plan changes."""
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

    def present_devices(self) -> list[int]:
        """Return the numbers of the devices that are present."""
        return [number for number, present in enumerate(self.present) if present]

    def keep(self, device: Any) -> None:
        """Write a device's journal, which is left after a crash."""
        self._journals[device.number] = self._links.durable(device)

    # Links that come and go

    def change_network(self, run: Simulator) -> None:
        """Go on to the next graph: links that it lacks go down, and new ones come up."""
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

    def _connect(self, run: Simulator, i: int, j: int, *, new: bool = True) -> None:
        self._deadlines.pop((i, j), None)
        self._deadlines.pop((j, i), None)
        self._links.link_up(run, i, j, new=new)

    def _disconnect(self, run: Simulator, i: int, j: int) -> None:
        self._links.cut(run, i, j)
        for number, neighbour in ((i, j), (j, i)):
            if self.present[number]:
                self._links.link_down(run, number, neighbour)
                self._plan_to_give_up(run, number, neighbour)

    def _note_network(self, run: Simulator) -> None:
        i, j = self._graph.links.T.tolist()
        run.record.network.append((self._graph_number, i, j))

    # Neighbours that do not return

    def _plan_to_give_up(self, run: Simulator, number: int, neighbour: int) -> None:
        """Plan the time at which a device in doubt gives up a neighbour that is out of reach."""
        if neighbour in self._links.in_doubt(run.devices[number]):
            self._deadlines[number, neighbour] = due = run.now + self._give_up_seconds
            heappush(run.due, (due, GIVE_UP, number, neighbour))

    def give_up(self, run: Simulator, number: int, neighbour: int) -> None:
        """Give up a neighbour, unless it was in reach since."""
        if self.present[number] and self._deadlines.get((number, neighbour)) == run.now:
            del self._deadlines[number, neighbour]
            self._links.give_up(run, number, neighbour)

    def may_resolve(self, run: Simulator) -> bool:
        """Return whether a device in doubt may still come into reach of the neighbour that knows."""
        for number, device in enumerate(run.devices):
            kept = device if self.present[number] else self._journals.get(number)
            if kept is not None and any(self._may_meet(number, neighbour) for neighbour in self._links.in_doubt(kept)):
                return True
        return False

    def _may_meet(self, number: int, neighbour: int) -> bool:
        if self.present[number] and self.present[neighbour]:
            return self._network_changes
        return all(self.present[one] or self._comes_back(one) for one in (number, neighbour))

    def _comes_back(self, number: int) -> bool:
        return self._churn.events.next_event(number, self._churn_counts[number]) is not None

    def awaits_return(self, run: Simulator) -> bool:
        """Return whether a device that has steps to make is absent or leaving, and will come back."""
        if not self.changes:
            return False
        away = (n for n, present in enumerate(self.present) if not present or n in self.leaving)
        return any(self._links.has_steps_to_make(run.devices[n]) and self._comes_back(n) for n in away)

    # Devices that come and go

    def _plan_churn(self, run: Simulator, number: int) -> None:
        if event := self._churn.events.next_event(number, self._churn_counts[number]):
            heappush(run.due, (event.seconds, CHURN, number))

    def make_churn(self, run: Simulator, number: int) -> None:
        """Let a device come or go, and plan its next change."""
        event = self._churn.events.next_event(number, self._churn_counts[number])
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

    def _leave(self, run: Simulator, number: int) -> None:
        """Let a device finish what is in flight before it goes."""
        self.leaving[number] = due = run.now + self._give_up_seconds
        heappush(run.due, (due, GIVE_UP, number, -1))
        self._links.end_session(number)
        self._links.leave(run, number)

    def let_go(self, run: Simulator) -> None:
        """Switch off leaving devices that have nothing in flight any more, or have waited too long."""
        for number, deadline in list(self.leaving.items()):
            if run.devices[number].is_idle or run.now >= deadline:
                self._switch_off(run, number)

    def _switch_off(self, run: Simulator, number: int) -> None:
        """Switch a device off at once. Its neighbours notice."""
        self.leaving.pop(number, None)
        self.present[number] = False
        self._links.end_session(number)
        for neighbour, is_up in self._links.linked(run.devices[number]):
            self._links.part(run, number, neighbour)
            if is_up:
                self._disconnect(run, number, neighbour)

    def _switch_on(self, run: Simulator, number: int, *, anew: bool) -> None:
        """Switch a device on: from its journal, or with a first model."""
        if number in self.leaving:  # it has not gone yet
            self._switch_off(run, number)
        if anew:
            run.devices[number] = self._links.new_device(number, copies=self._churn.start == "copy")
            self.keep(run.devices[number])
        else:
            run.devices[number] = self._links.restarted(self._journals[number])
            for neighbour in self._links.in_doubt(run.devices[number]):
                self._plan_to_give_up(run, number, neighbour)
        self.present[number] = True
        self._links.switch_on(run, number, anew=anew)
        for i, j in self._graph.links[(self._graph.links == number).any(axis=1)].tolist():
            if self.present[i] and self.present[j]:
                self._connect(run, i, j)

    # Checkpoints

    SAVED: ClassVar = ("present", "leaving", "_churn_counts", "_journals", "_graph_number", "_deadlines")

    def restore(self, state: Mapping[str, Any]) -> None:
        super().restore(state)
        self._graph = self._scenario.network.graph(self._graph_number)
