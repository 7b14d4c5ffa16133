"""Devices joined by a hostile network. One integer is one schedule, faults and all; every law is watched throughout.

python tests/core/device/hostile.py 1234          replays schedule 1234 and prints all that happens
python tests/core/device/hostile.py 0 10000       runs schedules 0 to 9999 and names those that break a law

Messages are delayed, and if the schedule says so lost, repeated and overtaken; links are cut, and their two ends notice
at different times; devices crash between any two effects of a reaction, with what they kept, without it, or for good;
they leave, join, finish early, run at different speeds and lose patience at any moment.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict, deque
from pathlib import Path
from random import Random

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from hostile_schedules import Broken, both, checked, edge_of, replay
from witness import Witness, combine

from efhc.core import protocol
from efhc.core.device import Device, durable, react, restarted, steps_in_order

FAULTS = ("overtake", "repeat", "lose", "cut", "crash", "forget", "die", "hurry", "leave", "join", "ragged")
MESSAGES_TO_REST = 20_000
"""Messages that may lead to one another before something is wrong."""
ROUNDS_TO_REST = 60
CRASH_BETWEEN_EFFECTS = 0.04


class Network:
    """Devices, the messages between them, and a random number generator that decides what happens next."""

    def __init__(self, schedule, *, faults=None, trace=None):
        self.random = random = Random(schedule)
        self.trace = trace
        gossip = random.random() < 0.3
        """Nothing but delays, and all fire all the time: the hardest test of the hull."""
        likely = 0.0 if gossip else random.choice((0.0, 0.15, 0.4, 0.8))
        self.faults = {fault for fault in FAULTS if random.random() < likely} if faults is None else set(faults)
        self.devices = random.randint(2, 8)
        self.witness = Witness(gradients=not gossip and random.random() < 0.5)
        self.speeds = [random.choice((0.2, 1.0, 1.0, 5.0)) for _ in range(self.devices)]
        iterations = (25,) if gossip else random.choice(((2, 5, 10), (10, 20)))
        self.iterations = [random.choice(iterations) for _ in range(self.devices)]
        self.start_values = random.choice((None, (-1.0, 1.0), (-1.0, -1.0, -1.0, 1.0)))
        """At the corners of the hull it is easiest to leave."""
        usual = 0.0 if gossip else random.choice((None, 0.0, 0.1, math.inf))
        self.thresholds = [random.choice((0.0, 0.1, math.inf)) if usual is None else usual for _ in range(self.devices)]
        self.sessions = [0] * self.devices
        self.cores: dict[int, Device] = {}
        self.kept: dict[int, Device] = {}
        self.lost, self.leaving, self.gone, self.dead = set(), set(), set(), set()
        """Devices that crashed and forgot all, that want to leave, that have left, and that never return."""
        self.edges, self.up = set(), set()
        """All links that there may be, and those that carry messages now."""
        self.mail = defaultdict(deque)
        self.notices = defaultdict(deque)
        """By directed link: what goes over it, and what its first device has yet to notice about it."""
        self.connections, self.seen = defaultdict(int), defaultdict(int)
        """How often a link has come up, and by directed link how often its first device has noticed."""
        slow = random.choice((0.0, 0.3, 0.5))
        self.paces = defaultdict(lambda: 0.03 if random.random() < slow else 1.0)
        """By link, as it is first used."""
        density = random.choice((0.3, 0.6, 1.0))
        late = {i for i in range(1, self.devices) if "join" in self.faults and random.random() < 0.4}
        for i in range(self.devices):
            self.edges |= {(j, i) for j in range(i) if random.random() < density}
        for i in sorted(set(range(self.devices)) - late):
            self.create(i)
        for edge in sorted(self.edges):
            self.connect(edge)
        self.notice_all()
        for i in list(self.cores):
            self.begin(i)
        self.moves = [
            (14.0, self.deliver_one),
            (self.random.choice((2.0, 6.0)), self.step_one),
            (4.0, self.notice_one),
            (1.5, self.repeat_one) if "repeat" in self.faults else None,
            (1.0, self.lose_one) if "lose" in self.faults else None,
            (1.0, self.hurry_one) if "hurry" in self.faults else None,
            (1.0, self.change_link) if "cut" in self.faults else None,
            (0.4, self.crash_one) if "crash" in self.faults or "forget" in self.faults else None,
            (0.8, self.restart_one),
            (0.1, self.bury_one) if "die" in self.faults else None,
            (0.2, self.give_up_one) if "die" in self.faults else None,
            (0.2, self.leave_one) if "leave" in self.faults else None,
            (0.5, self.join_one),
        ]  # fmt: skip
        self.moves = [move for move in self.moves if move is not None]

    def say(self, *words):
        if self.trace:
            self.trace(*words)

    # Carrying out what the core wants

    def do(self, i, event):
        """Tell device i what has happened and carry out what it wants, unless it crashes in between."""
        core = self.cores.get(i)
        if core is None:
            return
        if self.trace:
            self.say(f"  {i}:", event)
        for effect in react(core, event, combine):
            if "crash" in self.faults and self.random.random() < CRASH_BETWEEN_EFFECTS:
                self.say(f"  {i}: crashes before", effect)
                self.crash(i)
            if self.cores.get(i) is not core:
                return
            if self.trace:
                self.say(f"      {i}:", effect)
            self.carry_out(i, core, effect)

    def carry_out(self, i, core, effect):
        if isinstance(effect, protocol.Send):
            if i in self.leaving and isinstance(effect.message, protocol.Offer | protocol.Accept):
                raise Broken("leave", f"device {i} is leaving and begins {effect.message}")
            message = self.witness.sent(i, effect.neighbour, effect.message, core.model)
            if edge_of(i, effect.neighbour) in self.up:
                connection = self.connections[edge_of(i, effect.neighbour)]
                self.mail[i, effect.neighbour].append((connection, message))
        elif isinstance(effect, protocol.Keep):
            self.kept[i] = durable(core)
        elif isinstance(effect, protocol.Ended):
            self.witness.ended(i, effect.neighbour, effect.exchange, effect.outcome)
        elif isinstance(effect, protocol.Fired):
            self.witness.fired(i)
        elif isinstance(effect, protocol.Apply):
            self.step(i, 0.0)
        elif isinstance(effect, protocol.Copied):
            self.witness.start(core.model.value)
            self.witness.put_in_force(i, core.model)
            self.begin(i)

    def begin(self, i):
        """Events 1 and 2, or the end of the device's iterations."""
        core = self.cores.get(i)
        if core is None or core.waits_for_model:
            return
        if core.k >= self.iterations[i]:
            self.witness.has_finished(i)
            self.do(i, protocol.Finish())
        else:
            self.witness.began(i)
            self.do(i, protocol.Begin(abs(core.model.value - core.last_broadcast.value), self.thresholds[i]))

    def step(self, i, gradient):
        """Events 3 and 4."""
        core = self.cores[i]
        model = self.witness.stepped(i, steps_in_order(core), gradient)
        self.do(i, protocol.Stepped(model, len(core.steps)))
        if self.cores.get(i) is core:
            self.witness.put_in_force(i, model)

    def iterate(self, i):
        core = self.cores.get(i)
        if core is not None and not core.finished and not core.waits_for_model:
            self.step(i, self.random.uniform(-0.1, 0.1) if self.witness.gradients else 0.0)
            if self.cores.get(i) is core:
                self.begin(i)

    # Devices

    def create(self, i, *, copies=False):
        model = None if copies else self.witness.start(self.start_value())
        self.cores[i] = Device(i, self.sessions[i], model, model, waits_for_model=copies)
        self.kept[i] = durable(self.cores[i])
        if model is not None:
            self.witness.put_in_force(i, model)

    def start_value(self):
        return self.random.choice(self.start_values) if self.start_values else self.random.uniform(-1, 1)

    def crash(self, i):
        self.say(f"crash {i}")
        del self.cores[i]
        self.leaving.discard(i)
        if "forget" in self.faults and ("crash" not in self.faults or self.random.random() < 0.3):
            self.lost.add(i)
        if self.kept[i].model is not None:
            self.witness.put_in_force(i, self.kept[i].model)
        self.isolate(i)
        self.witness.crashed(i)

    def isolate(self, i):
        for edge in sorted(edge for edge in self.up if i in edge):
            self.disconnect(edge)
        for link in list(self.notices):
            if link[0] == i:
                self.notices[link].clear()
                self.seen[link] = self.connections[edge_of(*link)]
        for link in list(self.mail):
            if link[1] == i:
                self.mail[link].clear()

    def restart(self, i):
        self.say(f"restart {i}", "without a journal" if i in self.lost else "")
        self.sessions[i] += 1
        if i in self.lost:
            self.lost.discard(i)
            self.witness.lost(i)
            self.witness.finished.discard(i)
            self.create(i)
        else:
            self.cores[i] = core = restarted(self.kept[i], self.sessions[i])
            if core.finished and core.steps:
                self.step(i, 0.0)
        for edge in sorted(self.edges):
            if i in edge:
                self.connect(edge)
        if i in self.cores and not self.cores[i].finished:
            self.begin(i)

    def go(self, i):
        """A device that leaves is switched off once it is idle, but for what nobody is left to acknowledge."""
        core = self.cores.get(i)
        if core is None or not core.leaving or not self.is_idle(core):
            return
        if core.steps:
            self.step(i, 0.0)
        if self.cores.get(i) is core:
            self.say(f"{i} is gone")
            del self.cores[i]
            self.gone.add(i)
            self.isolate(i)
            self.witness.crashed(i)

    def is_idle(self, core):
        without_return = self.dead | self.gone
        decisions = core.unacknowledged.values()
        if decisions and all(decision.neighbour in without_return for decision in decisions):
            return all(link.exchange is None for link in core.links.values())
        return core.is_idle

    # Links

    def connect(self, edge):
        if edge not in self.up and all(end in self.cores for end in edge):
            self.up.add(edge)
            self.connections[edge] += 1
            for i, j in both(edge):
                self.notices[i, j].append(protocol.LinkUp(j))
            self.notice_unless_ragged(edge)

    def disconnect(self, edge):
        self.say("cut", edge)
        self.up.discard(edge)
        for i, j in both(edge):
            self.notices[i, j].append(protocol.LinkDown(j))
            if "ragged" not in self.faults or self.random.random() < 0.5:
                self.mail[i, j].clear()
        self.notice_unless_ragged(edge)

    def notice_unless_ragged(self, edge):
        if "ragged" not in self.faults:
            for link in both(edge):
                self.notice(link)

    def notice(self, link):
        while self.notices[link]:
            self.notice_next(link)

    def notice_next(self, link):
        event = self.notices[link].popleft()
        i, j = link
        if i in self.cores:
            self.seen[link] += isinstance(event, protocol.LinkUp)
            self.witness.link_changed(i, j, up=isinstance(event, protocol.LinkUp))
            self.do(i, event)

    def notice_all(self):
        for link in list(self.notices):
            self.notice(link)

    def deliver(self, link, place=0):
        """A message comes after its own connection, yet perhaps long after that is gone."""
        connection, message = self.mail[link][place]
        del self.mail[link][place]
        i, j = link
        while self.seen[j, i] < connection and self.notices[j, i]:
            self.notice_next((j, i))
        self.do(j, protocol.Received(i, message))

    # Moves

    def run(self, moves):
        weights = [weight for weight, _ in self.moves]
        for _, move in self.random.choices(self.moves, weights, k=moves):
            move()
            for i in [i for i, core in self.cores.items() if core.leaving]:
                self.go(i)

    def any_device(self, devices, weights=None):
        devices = sorted(devices)
        if not devices:
            return None
        return self.random.choices(devices, weights and [weights[i] for i in devices])[0]

    def any_mail(self):
        links = [link for link, mail in self.mail.items() if mail]
        return self.random.choices(links, [self.paces[edge_of(*link)] for link in links])[0] if links else None

    def any_place(self, link):
        return self.random.randrange(len(self.mail[link])) if "overtake" in self.faults else 0

    def deliver_one(self):
        link = self.any_mail()
        if link is not None:
            self.deliver(link, self.any_place(link))

    def repeat_one(self):
        link = self.any_mail()
        if link is not None:
            mail = self.mail[link]
            mail.append(mail[self.any_place(link)])

    def lose_one(self):
        link = self.any_mail()
        if link is not None:
            self.say("lose", link, self.mail[link].popleft())

    def notice_one(self):
        links = [link for link, notices in self.notices.items() if notices]
        if links:
            self.notice_next(self.random.choice(links))

    def step_one(self):
        i = self.any_device(self.cores, self.speeds)
        if i is not None:
            self.iterate(i)

    def hurry_one(self):
        i = self.any_device(self.cores)
        if i is not None and self.cores[i].links:
            self.do(i, protocol.NoProgress(self.random.choice(list(self.cores[i].links))))

    def change_link(self):
        edge = edge_of(*self.random.sample(range(self.devices), 2))
        self.edges.add(edge)
        if edge in self.up:
            self.disconnect(edge)
        else:
            self.connect(edge)

    def crash_one(self):
        i = self.any_device(self.cores)
        if i is not None:
            self.crash(i)

    def crashed(self):
        return set(self.kept) - set(self.cores) - self.gone - self.dead

    def restart_one(self):
        i = self.any_device(self.crashed())
        if i is not None:
            self.restart(i)

    def bury_one(self):
        i = self.any_device(self.crashed() - {0})
        if i is not None:
            self.dead.add(i)
            self.witness.lost(i)

    def give_up_one(self):
        doubts = [(i, j) for i, core in self.cores.items() for j in core.links if j in self.dead]
        if doubts:
            i, j = self.random.choice(doubts)
            self.do(i, protocol.GiveUp(j))

    def leave_one(self):
        i = self.any_device(set(self.cores) - {0})
        if i is not None:
            self.leaving.add(i)
            self.do(i, protocol.Leave())

    def join_one(self):
        i = self.any_device(set(range(self.devices)) - set(self.kept))
        if i is not None:
            self.create(i, copies=self.random.random() < 0.5)
            for edge in sorted(self.edges):
                if i in edge:
                    self.connect(edge)
            self.begin(i)

    # Rest

    def come_to_rest(self):
        """Faults end: what is down comes back, and every device makes up to three more iterations."""
        self.say("faults end")
        self.faults = set()
        for i in sorted(self.crashed()):
            self.restart(i)
        self.notice_all()
        for i, core in sorted(self.cores.items()):
            self.iterations[i] = min(self.iterations[i], core.k + 3)
            if core.waits_for_model:
                self.edges.add(edge_of(0, i))
        for edge in sorted(self.edges):
            self.connect(edge)
        rounds = 0
        while self.has_moved():
            rounds += 1
            if rounds > ROUNDS_TO_REST:
                raise Broken("rest", f"{[(i, waits_for(core)) for i, core in self.cores.items()]} go on and on")
        self.witness.check_rest()
        for i, core in self.cores.items():
            if core.steps or not self.is_idle(core):
                raise Broken("rest", f"device {i} has something left to do: {core}")

    def has_moved(self):
        """One round without faults; returns whether there was anything to do."""
        self.deliver_all()
        busy = [(i, j) for i, core in self.cores.items() for j in waits_for(core)]
        for i, j in busy:
            self.do(i, protocol.GiveUp(j) if j in self.dead | self.gone else protocol.NoProgress(j))
        self.deliver_all()
        unfinished = [i for i, core in self.cores.items() if not core.finished]
        for i in sorted(self.cores):
            self.go(i)
            self.iterate(i)
        return bool(busy or unfinished or any(self.mail.values()))

    def deliver_all(self):
        delivered = 0
        while any(self.mail.values()):
            for link in list(self.mail):
                while self.mail[link]:
                    self.deliver(link)
                    delivered += 1
                    if delivered > MESSAGES_TO_REST:
                        raise Broken("rest", f"the messages between {link} lead to further ones for ever")


def waits_for(core):
    """The neighbours whose link a driver's patience watches."""
    links = {j for j, link in core.links.items() if link.exchange is not None or (core.finished and link.pending_offer)}
    links |= {decision.neighbour for decision in core.unacknowledged.values() if decision.neighbour in core.links}
    return sorted(links | ({core.model_requested_from} if core.model_requested_from is not None else set()))


def run(schedule, *, trace=None):
    """Run one schedule from start to rest; returns the network, or raises `Broken`."""
    network = Network(schedule, trace=trace)
    network.run(network.random.choice((30, 100, 200, 400, 400)))
    network.come_to_rest()
    return network


def check(schedule):
    return checked(run, schedule, "tests/core/device/hostile.py")


if __name__ == "__main__":
    sys.exit(replay(run, lambda network: network.witness.committed, *sys.argv[1:]))
