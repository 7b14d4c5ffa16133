# ruff: noqa: T201 - a tool for the command line
"""Devices with half-steps on a hostile network. One integer is one schedule; every law is watched throughout.

python tests/core/half_steps/hostile.py 1234          replays schedule 1234 and prints all that happens
python tests/core/half_steps/hostile.py 0 10000       runs schedules 0 to 9999 and names those that break a law

Messages are delayed, and if the schedule says so lost, repeated, overtaken and forged; links go down and come up again,
which their two ends may notice at different times; devices crash and go back to their journal, lose their state, join
without a model, and finish.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

import numpy as np

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from efhc.base.arrays import Floats
from efhc.core.half_steps import Effect, Frame, Introduction, Message, Violation
from efhc.strategies.parts.codecs import CodecPolicy, FullCodec, LevelsCodec
from half_steps.driver import Driver, Link
from half_steps.witness import Broken

FAULTS = ("overtake", "repeat", "lose", "hurry", "cut", "ragged", "forget", "join", "finish", "crash", "forge")
MESSAGES_TO_REST = 1_000
"""Messages that may lead to one another before something is wrong."""
ROUNDS_TO_REST = 10
MOVES_PER_CHECK = 10
CODECS: tuple[CodecPolicy, ...] = (FullCodec(), LevelsCodec(bits=2), LevelsCodec(bits=1))


class Network(Driver):
    """A driver whose random number generator decides what happens next."""

    def __init__(
        self, schedule: int, *, faults: Sequence[str] | None = None, trace: Callable[..., None] | None = None
    ) -> None:
        self.random = random = Random(schedule)
        self.gossip = random.random() < 0.3
        """No gradients, whole models, and links that stay: the norm is watched."""
        likely = random.choice((0.0, 0.2, 0.4, 0.7))
        drawn = [fault for fault in FAULTS if random.random() < likely]
        stay = {"cut", "ragged", "forget", "join"} if self.gossip else set()
        self.faults = set(drawn if faults is None else faults) - stay
        codec = CODECS[0] if self.gossip else random.choice(CODECS)
        self.threshold = 0.0 if self.gossip else random.choice((0.0, 0.0, 0.2))
        super().__init__(
            parameters=random.randint(1, 4),
            rate=random.choice((0.5, 0.5, 0.1, 1.0)),
            theta=0.0 if self.gossip else random.choice((0.0, 0.3, 1.0)),
            codec=codec,
            differences=random.random() < 0.5,
            whole=isinstance(codec, FullCodec) and self.threshold == 0.0,
            journalled="crash" in self.faults,
            trace=trace,
        )
        self.devices = random.randint(2, 6)
        self.speeds = [random.choice((0.2, 1.0, 1.0, 5.0)) for _ in range(self.devices)]
        self.fires = random.choice((1.0, 0.8, 0.4))
        self.absorbs = random.choice((1.0, 0.5))
        """How likely a device is to add at once what links have added to its model."""
        self.edges: set[Link] = set()
        self.up: set[Link] = set()
        """The links that there may be, and those that are up, whether or not their ends have noticed."""
        self.notices: defaultdict[Link, deque[bool]] = defaultdict(deque)
        """By directed link: the ups (True) and downs that its first device has yet to notice."""
        self.begin()
        moves: list[tuple[float, Callable[[], None], bool]] = [
            (14.0, self.deliver_one, True),
            (random.choice((3.0, 8.0)), self.step_one, True),
            (3.0, self.notice_one, "ragged" in self.faults),
            (1.5, self.repeat_one, "repeat" in self.faults),
            (1.5, self.lose_one, "lose" in self.faults),
            (2.0, self.retry_one, bool({"hurry", "lose"} & self.faults)),
            (0.7, self.change_link, "cut" in self.faults),
            (0.3, self.forget_one, "forget" in self.faults),
            (0.3, self.join_one, "join" in self.faults),
            (0.2, self.finish_one, "finish" in self.faults),
            (0.7, self.crash_one, "crash" in self.faults),
            (0.7, self.forge_one, "forge" in self.faults),
        ]
        self.moves = [(weight, move) for weight, move, allowed in moves if allowed]

    def begin(self) -> None:
        random, m = self.random, self.devices
        late = {i for i in range(1, m) if "join" in self.faults and random.random() < 0.4}
        density = random.choice((0.4, 0.7, 1.0))
        self.edges = {(i, j) for j in range(m) for i in range(j) if random.random() < density}
        alike, start = random.random() < 0.25 and not self.gossip, self.numbers(1.0)
        for i in sorted(set(range(m)) - late):
            self.create(i, start if alike else self.numbers(1.0))
        if alike:
            self.up = {edge for edge in self.edges if all(i in self.cores for i in edge)}
            self.start_alike(sorted(self.up))
        for edge in sorted(self.edges):
            self.connect(edge)

    def numbers(self, scale: float) -> Floats:
        return np.array([self.random.gauss(0.0, scale) for _ in range(self.parameters)])

    def react(self, i: int, effects: Sequence[Effect], *, keep: bool = False, forged: bool = False) -> None:
        super().react(i, effects, keep=keep, forged=forged)
        if self.random.random() < self.absorbs:
            self.absorb(i)

    def step_at_random(self, i: int, fires: float, threshold: float) -> None:
        random = self.random
        if random.random() < 0.1:
            self.keep(i)
        gradient = np.zeros(self.parameters) if self.gossip else self.numbers(0.5)
        self.step(
            i,
            random.choice((0.05, 0.1, 0.5)),
            gradient,
            lambda told: [threshold if random.random() < fires else None for _ in told],
            affordable=fires == 1.0 or random.random() < 0.9,
        )

    # Links

    def connect(self, edge: Link) -> None:
        if edge not in self.up and all(i in self.cores for i in edge):
            self.up.add(edge)
            self.tell_ends(edge, up=True)

    def disconnect(self, edge: Link) -> None:
        self.up.discard(edge)
        for link in both(edge):
            if "ragged" not in self.faults or self.random.random() < 0.5:
                self.mail[link].clear()
        self.tell_ends(edge, up=False)

    def tell_ends(self, edge: Link, *, up: bool) -> None:
        for link in both(edge):
            self.notices[link].append(up)
            if "ragged" not in self.faults or self.random.random() < 0.5:
                self.notice(link)

    def notice(self, link: Link) -> None:
        while self.notices[link]:
            if self.notices[link].popleft():
                self.link_up(*link)
            else:
                self.link_down(*link)

    # Moves

    def run(self, moves: int) -> None:
        weights = [weight for weight, _ in self.moves]
        self.check_all()
        for count, (_, move) in enumerate(self.random.choices(self.moves, weights, k=moves)):
            move()
            if count % MOVES_PER_CHECK == 0:
                self.check_all()

    def check_all(self) -> None:
        super().check_all()
        if self.gossip:
            self.witness.check_norm()

    def any_mail(self) -> tuple[Link, int] | None:
        links = [link for link, mail in self.mail.items() if mail]
        if not links:
            return None
        link = self.random.choice(links)
        mail = self.mail[link]
        place = self.random.randrange(len(mail)) if "overtake" in self.faults else 0
        return link, next((i for i in range(place) if is_of_earlier_session(mail[i], mail[place])), place)

    def any_device(self) -> int:
        return self.random.choice(list(self.cores))

    def deliver_one(self) -> None:
        if (found := self.any_mail()) is not None:
            self.deliver(*found[0], found[1])

    def repeat_one(self) -> None:
        if (found := self.any_mail()) is not None:
            mail, place = self.mail[found[0]], found[1]
            mail.insert(place if isinstance(mail[place], Introduction) else len(mail), mail[place])

    def lose_one(self) -> None:
        if (found := self.any_mail()) is not None:
            self.say("lose", found[0], self.mail[found[0]].pop(found[1]))

    def step_one(self) -> None:
        devices = list(self.cores)
        i = self.random.choices(devices, [self.speeds[j] for j in devices])[0]
        self.step_at_random(i, self.fires, self.threshold)

    def notice_one(self) -> None:
        links = [link for link, notices in self.notices.items() if notices]
        if links:
            self.notice(self.random.choice(links))

    def retry_one(self) -> None:
        i = self.any_device()
        if self.cores[i].links:
            self.retry(i, self.random.choice(list(self.cores[i].links)))

    def change_link(self) -> None:
        i, j = sorted(self.random.sample(range(self.devices), 2))
        self.edges.add((i, j))
        if (i, j) in self.up:
            self.disconnect((i, j))
        else:
            self.connect((i, j))

    def forget_one(self) -> None:
        i = self.any_device()
        for link in [link for link in self.notices if link[0] == i]:
            self.notice(link)
        self.lose_mail(i)
        self.forget(i, self.numbers(1.0) if self.random.random() < 0.6 or len(self.cores) == 1 else None)

    def join_one(self) -> None:
        absent = sorted(set(range(self.devices)) - set(self.cores))
        if absent:
            self.create(self.random.choice(absent), self.numbers(1.0) if self.random.random() < 0.5 else None)
            for edge in sorted(self.edges):
                self.connect(edge)

    def finish_one(self) -> None:
        self.finish(self.any_device())

    def crash_one(self) -> None:
        i = self.any_device()
        self.crash(i)
        self.lose_mail(i)
        if self.random.random() < 0.5:
            self.keep(i)

    def lose_mail(self, i: int) -> None:
        """No introduction of an earlier session comes after one of the next; all else may."""
        for link, mail in self.mail.items():
            if i in link and self.random.random() < 0.5:
                mail.clear()
            if link[0] == i:
                mail[:] = [message for message in mail if not isinstance(message, Introduction)]

    def forge_one(self) -> None:
        """A frame that no device would send changes nothing."""
        found = self.any_mail()
        frame = None if found is None else self.mail[found[0]][found[1]]
        if found is None or not isinstance(frame, Frame):
            return
        (i, j), witness = found[0], self.witness
        there, back = witness.directions[frame.source, frame.target], (frame.target, frame.source)
        if witness.lives.get((j, i)) != back:
            return
        told = witness.directions[back].last
        forgeries = [frame._replace(number=there.last + 2)]
        if frame.number == there.claimed + 1:
            forgeries += [frame._replace(used=version) for version in (told + 1, told - 2)]
            forgeries += [frame._replace(weight=weight) for weight in (-0.1, 1.5, math.nan)]
            forgeries += [frame._replace(learning=learning) for learning in (-0.1, math.inf, math.nan)]
        forged = self.random.choice(forgeries)
        self.say(f"  {j}: forged:", forged)
        effects = self.cores[j].received(i, forged, self.arithmetic)
        self.react(j, effects, forged=True)
        if not all(isinstance(effect, Violation) for effect in effects):
            raise Broken("violation", f"device {j} accepts {forged}")

    # Rest

    def come_to_rest(self) -> None:
        """Faults end: all is delivered, and then every link carries one more frame in each direction."""
        self.say("faults end")
        self.faults = set()
        for link in list(self.notices):
            self.notice(link)
        self.deliver_all()
        self.check_rest()
        for i, core in sorted(self.cores.items()):
            self.step_at_random(i, 1.0, 0.0)
            without = [j for j in core.links if not self.mail[i, j] and self.x[j] is not None]
            if without and not core.silent and self.x[i] is not None:
                raise Broken("rest", f"device {i} has nothing under way, and sends nothing to {without}")
        self.deliver_all()
        self.check_rest()

    def check_rest(self) -> None:
        self.check_all()
        self.witness.check_rest(self.h.values())
        for i, core in self.cores.items():
            if self.x[i] is None and any(self.x[j] is not None for j in core.links):
                raise Broken("rest", f"device {i} waits for a model, and its neighbours have some")

    def awaits(self, i: int, j: int) -> bool:
        """Whether device i waits for j. Two devices without a model cannot help each other."""
        return self.cores[i].awaits(j) and not self.x[i] is self.x[j] is None

    def deliver_all(self) -> None:
        delivered = 0
        for _ in range(ROUNDS_TO_REST):
            while links := [link for link, mail in self.mail.items() if mail]:
                for link in links:
                    self.deliver(*link)
                    delivered += 1
                if delivered > MESSAGES_TO_REST:
                    raise Broken("rest", f"messages lead to further ones for ever, on {links}")
            waiting = [(i, j) for i, core in self.cores.items() for j in core.links if self.awaits(i, j)]
            if not waiting:
                return
            for i, j in waiting:
                self.retry(i, j)
        raise Broken("rest", f"still not acknowledged: {waiting}")


def is_of_earlier_session(earlier: Message, message: Message) -> bool:
    """Whether the order of two messages must be kept: both are introductions, of different sessions."""
    both_introduce = isinstance(earlier, Introduction) and isinstance(message, Introduction)
    return both_introduce and earlier.source[1] != message.source[1]


def both(edge: Link) -> tuple[Link, Link]:
    return edge, (edge[1], edge[0])


def run(schedule: int, *, trace: Callable[..., None] | None = None) -> Network:
    """Run one schedule from start to rest; returns the network, or raises `Broken`."""
    network = Network(schedule, trace=trace)
    network.run(network.random.choice((30, 60, 100)))
    network.come_to_rest()
    return network


def check(schedule: int) -> Network:
    """The same; a failure names the integer that replays it."""
    try:
        return run(schedule)
    except Exception as error:
        error.add_note(f"schedule {schedule}; to replay it: python tests/core/half_steps/hostile.py {schedule}")
        raise


def main(first: str, *last: str) -> int:
    if not last:
        run(int(first), trace=print)
        return 0
    failed = steps = 0
    for schedule in range(int(first), int(last[0])):
        try:
            steps += run(schedule).witness.steps
        except Exception as error:
            failed += 1
            print(f"schedule {schedule}: {type(error).__name__}: {error}")
    print(f"{failed} schedules broke a law; {steps} steps were made")
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
