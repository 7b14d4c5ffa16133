"""Devices with half-steps on a hostile network. One integer is one schedule; every law is watched throughout.

python tests/core/half_steps/hostile.py 1234          replays schedule 1234 and prints all that happens
python tests/core/half_steps/hostile.py 0 10000       runs schedules 0 to 9999 and names those that break a law

Messages are delayed, and if the schedule says so lost, repeated, overtaken and forged; links go down and come up again,
which their two ends may notice at different times; devices crash and go back to their journal, lose their state, join
without a model, and finish. The link law settles or not, with up to 4 frames under way; devices may pace themselves by
an uplink that is busy, idle or narrow, whose rate changes, and may choose their links by that.
"""

from __future__ import annotations

import math
import sys
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))

from hostile_schedules import Broken, Link, both, checked, replay

from efhc.base.arrays import Floats
from efhc.core.half_step_messages import Effect, Frame, Introduction, Message, Violation
from efhc.core.half_steps import LinkLaw, Version
from efhc.core.uplink import About, Pacing, Uplink
from efhc.strategies.parts.codecs import CodecPolicy, FullCodec, LevelsCodec
from half_steps.driver import NUMBER_BITS, Driver
from half_steps.witness import ROUNDING

FAULTS = ("overtake", "repeat", "lose", "hurry", "cut", "ragged", "forget", "join", "finish", "crash", "forge")
MESSAGES_TO_REST = 1_000
"""Messages that may lead to one another before something is wrong."""
ROUNDS_TO_REST = 10
MOVES_PER_CHECK = 10
CODECS: tuple[CodecPolicy, ...] = (FullCodec(), LevelsCodec(bits=2), LevelsCodec(bits=1))


@dataclass(frozen=True)
class RandomUplink(Uplink):
    """An uplink that may carry only so many numbers in one message."""

    most_numbers: int | None = None

    def room(self, neighbour: int, planned: int) -> int | None:
        room = super().room(neighbour, 0)
        return room if room is None or self.most_numbers is None else self.most_numbers * NUMBER_BITS


class Network(Driver):
    """A driver whose random number generator decides what happens next."""

    def __init__(
        self,
        schedule: int,
        *,
        faults: Sequence[str] | None = None,
        law: LinkLaw | None = None,
        trace: Callable[..., None] | None = None,
    ) -> None:
        self.random = random = Random(schedule)
        self.gossip = random.random() < 0.35
        """No gradients, whole models, and links that stay: the norm is watched."""
        likely = random.choice((0.0, 0.2, 0.4, 0.7))
        drawn = [fault for fault in FAULTS if random.random() < likely]
        stay = {"cut", "ragged", "forget", "join"} if self.gossip else set()
        self.faults = set(drawn if faults is None else faults) - stay
        codec = CODECS[0] if self.gossip else random.choice(CODECS)
        self.threshold = 0.0 if self.gossip else random.choice((0.0, 0.0, 0.2))
        self.paced = not self.gossip and random.random() < 0.4
        """Whether devices pace themselves."""
        self.chooses_links = self.paced and random.random() < 0.7
        self.limited = self.paced and random.random() < 0.5
        """Whether messages have to be short."""
        super().__init__(
            parameters=random.randint(1, 4),
            law=self.draw_law() if law is None else law,
            codec=codec,
            differences=random.random() < 0.5,
            whole=isinstance(codec, FullCodec) and self.threshold == 0.0 and not self.limited,
            journalled="crash" in self.faults,
            trace=trace,
        )
        self.devices = random.randint(2, 6)
        self.speeds = [random.choice((0.2, 1.0, 1.0, 5.0)) for _ in range(self.devices)]
        self.rates = [random.choice((1.0, 2.0, 2.0, 50.0, 1e6)) for _ in range(self.devices)]
        """Bandwidths, in parameters per second."""
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
            (4.0, self.retry_one, bool({"hurry", "lose"} & self.faults)),
            (0.7, self.change_link, "cut" in self.faults),
            (0.3, self.forget_one, "forget" in self.faults),
            (0.6, self.join_one, "join" in self.faults),
            (0.2, self.finish_one, "finish" in self.faults),
            (0.7, self.crash_one, "crash" in self.faults),
            (0.7, self.forge_one, "forge" in self.faults),
        ]
        self.moves = [(weight, move) for weight, move, allowed in moves if allowed]

    def draw_law(self) -> LinkLaw:
        random = self.random
        settles = not self.gossip and random.random() < 0.6
        return LinkLaw(
            rate=random.choice((0.5, 0.5, 0.1, 1.0)),
            theta=0.0 if self.gossip else random.choice((0.0, 0.3, 1.0)),
            keeps_link_correction=True,
            settles=settles,
            window=random.choice((1, 2, 4, 4)) if settles else 1,
            most_steps=random.choice((1, 8)),
        )

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

    def step_at_random(self, i: int, fires: float, threshold: float, *, at_rest: bool = False) -> None:
        random = self.random
        if random.random() < 0.1:
            self.keep(i)
        gradient = np.zeros(self.parameters) if self.gossip else self.numbers(0.5)
        is_idle = at_rest or random.random() < 0.3
        uplink = self.uplink(i, is_idle=is_idle, at_rest=at_rest) if self.paced else None
        self.step(
            i,
            random.choice((0.05, 0.1, 0.5)),
            gradient,
            lambda told: [threshold if random.random() < fires else None for _ in told],
            affordable=fires == 1.0 or random.random() < 0.9,
            uplink=uplink,
        )
        if is_idle and uplink is not None:
            self.witness.owes_nothing(i)
        self.check_choice(i, uplink)

    def uplink(self, i: int, *, is_idle: bool, at_rest: bool) -> Uplink:
        """What device i knows of its uplink: that it has room, or none, or little; its rate may have changed."""
        random = self.random
        if not at_rest and random.random() < 0.2:
            self.rates[i] *= random.choice((0.3, 0.8, 1.2, 4.0))
        return RandomUplink(
            Pacing(),
            self.rates[i],
            8,
            lambda neighbour: 0.0 if is_idle or random.random() < 0.6 else 1.0,
            lambda neighbour: at_rest or random.random() < 0.8,
            random.choice((0.0, 1.0, 100.0)),
            self.chooses_links,
            most_numbers=None if at_rest or not self.limited else random.choice((0, 1, 2)),
        )

    def check_choice(self, i: int, uplink: Uplink | None) -> None:
        """A device says what is nearly true, and leaves out the worst link of each triangle, as it knows it."""
        core, about = self.cores[i], self.cores[i].about
        if about is None:
            if core.redundant or (self.chooses_links and uplink is not None and self.x[i] is not None):
                raise Broken("about", f"device {i} says nothing, and leaves out {core.redundant}")
            return
        if uplink is not None and self.x[i] is not None:
            nearly = about.rate / 1.5 <= uplink.rate <= about.rate * 1.5
            if not nearly or about.neighbours != tuple(sorted(core.links)):
                raise Broken("about", f"device {i} has {uplink.rate}, {sorted(core.links)}, and says {about}")
        tokens = {j: self.witness.tokens.get((i, j)) for j in core.links}
        back = {j: self.witness.directions.get(pair[::-1]) for j, pair in tokens.items() if pair is not None}
        known = {j: one.known_about for j, one in back.items() if one is not None and one.known_about is not None}
        expected = {
            j
            for j in known
            for k in known
            if k != j and k in about.neighbours and k in known[j].neighbours
            if (about.is_slow or known[j].is_slow) and is_worst(i, j, k, {i: about} | known)
        }
        if core.redundant != expected:
            raise Broken("choice", f"device {i} leaves out {core.redundant}, not {expected}: {about}, {known}")

    # Links

    def connect(self, edge: Link) -> None:
        if edge not in self.up and all(i in self.cores for i in edge):
            self.up.add(edge)
            self.tell_ends(edge, up=True)

    def disconnect(self, edge: Link) -> None:
        self.up.discard(edge)
        for link in both(edge):
            if self.random.random() < 0.6:
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
        self.check_versions()
        if self.gossip and not self.law.settles:
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
        links = [(i, j) for i, core in self.cores.items() for j in core.links]
        waiting = [(i, j) for i, j in links if self.cores[i].awaits(j)]
        if links:
            self.retry(*self.random.choice(waiting or links), all_frames=self.random.random() < 0.3)

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
        if witness.tokens.get((j, i)) != back:
            return
        told, window = witness.directions[back].last, self.law.window
        forgeries = [frame._replace(number=there.last + 1 + window)]
        if frame.number == there.made + 1:
            forgeries += [frame._replace(used=version) for version in (told + 1, told - window - 1)]
            forgeries += [frame._replace(about=About(rate, False, ())) for rate in (0.0, -1.0, math.nan, math.inf)]
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
        """Faults end: all is delivered, every link carries one more frame in each direction, and devices finish."""
        self.say("faults end")
        self.faults = set()
        for link in list(self.notices):
            self.notice(link)
        self.deliver_all()
        self.check_rest()
        tells = {i for i, core in self.cores.items() if self.chooses_links and not core.silent}
        for i, core in sorted(self.cores.items()):
            self.step_at_random(i, 1.0, 0.0, at_rest=True)
            sent = {j for j in core.links if any(isinstance(message, Frame) for message in self.mail[i, j])}
            without = [j for j in core.links if j not in sent | core.redundant and self.x[j] is not None]
            if without and not core.silent and self.x[i] is not None:
                raise Broken("rest", f"device {i} has nothing under way, and sends nothing to {without}")
        self.deliver_mail()
        for i in self.cores:
            self.finish(i)
        self.deliver_all()
        self.check_rest()
        for (i, j), pair in self.witness.tokens.items():
            known = self.witness.directions[pair].known_about if pair in self.witness.directions else None
            if i in tells and j in self.x and self.x[j] is not None and known != self.cores[i].about:
                raise Broken("about", f"{j} knows {known}, and {i} is {self.cores[i].about}")

    def check_rest(self) -> None:
        self.check_all()
        self.witness.check_rest(self.h.values())
        self.check_ends()
        for i, core in self.cores.items():
            if self.x[i] is None and any(self.x[j] is not None for j in core.links):
                raise Broken("rest", f"device {i} waits for a model, and its neighbours have some")

    def check_ends(self) -> None:
        """Both ends of a link know the same, and that is what the witness makes of the frames."""
        for (i, j), pair in self.witness.tokens.items():
            end, other = self.cores[i].links[j], self.cores[j].links.get(i)
            if self.x[i] is None or self.x[j] is None or other is None:
                continue
            known = Version(other.known_here, other.moved_by_other)
            if not all(a is b is None or np.array_equal(a, b) for a, b in zip(end.versions[-1], known, strict=True)):
                raise Broken("ends", f"{i} has told {end.versions[-1]}, and {j} knows {known}")
            there, back = self.witness.directions[pair], self.witness.directions[pair[::-1]]
            if self.law.settles:
                moved, moved_by_other = (
                    np.cumsum([self.witness.zero, *direction.steps], axis=0) for direction in (there, back)
                )
                kept = np.array([version.moved for version in end.versions])
                for found, expected in (
                    (kept, moved[end.oldest_usable :]),
                    (end.moved_by_other, moved_by_other[end.last_received]),
                ):
                    if found.shape != expected.shape or not np.allclose(found, expected, rtol=ROUNDING, atol=ROUNDING):
                        raise Broken("ends", f"device {i} has {found} of {j}, and the frames make {expected}")

    def check_versions(self) -> None:
        for i, core in self.cores.items():
            for j, end in core.links.items():
                count = len(end.versions)
                if (
                    count > self.law.window + 1
                    or len(end.pending) > self.law.window
                    or len(end.out_of_order) > self.law.window
                ):
                    raise Broken(
                        "versions", f"device {i} keeps {count} versions for {j}, {end.pending}, {end.out_of_order}"
                    )

    def awaits(self, i: int, j: int) -> bool:
        """Whether device i waits for j. Two devices without a model cannot help each other."""
        return self.cores[i].awaits(j) and not self.x[i] is self.x[j] is None

    def deliver_mail(self) -> None:
        """Deliver all that is sent, and what it leads to."""
        delivered = 0
        while links := [link for link, mail in self.mail.items() if mail]:
            for link in links:
                self.deliver(*link)
                delivered += 1
            if delivered > MESSAGES_TO_REST:
                raise Broken("rest", f"messages lead to further ones for ever, on {links}")

    def deliver_all(self) -> None:
        """... and send again what is not acknowledged."""
        for _ in range(ROUNDS_TO_REST):
            self.deliver_mail()
            waiting = [(i, j) for i, core in self.cores.items() for j in core.links if self.awaits(i, j)]
            if not waiting:
                return
            for i, j in waiting:
                self.retry(i, j)
        raise Broken("rest", f"still not acknowledged: {waiting}")


def is_worst(i: int, j: int, k: int, abouts: Mapping[int, About]) -> bool:
    """Whether i, j is the worst link of a triangle: by the slower end, then the faster one, then the larger numbers."""

    def badness(link: Link) -> list[float]:
        return [-rate for rate in sorted(abouts[end].rate for end in link)] + sorted(link)

    return max([(i, j), (i, k), (j, k)], key=badness) == (i, j)


def is_of_earlier_session(earlier: Message, message: Message) -> bool:
    """Whether the order of two messages must be kept: both are introductions, of different sessions."""
    both_introduce = isinstance(earlier, Introduction) and isinstance(message, Introduction)
    return both_introduce and earlier.source[1] != message.source[1]


def run(schedule: int, **settings: Any) -> Network:
    """Run one schedule from start to rest; returns the network, or raises `Broken`. `Network` takes the settings."""
    network = Network(schedule, **settings)
    network.run(network.random.choice((30, 60, 100)))
    network.come_to_rest()
    return network


def check(schedule: int) -> Network:
    network: Network = checked(run, schedule, "tests/core/half_steps/hostile.py")
    return network


if __name__ == "__main__":
    sys.exit(replay(run, lambda network: network.witness.steps, *sys.argv[1:]))
