"""Watches devices from outside and says which law of half-steps they break.

It knows models, gradients, h, and what went over the wire. It never reads the state of `efhc.core.half_steps`: which
version of a model an end has follows from introductions and payloads, which steps it has made from its
acknowledgements.

    sum           sum x_i = sum x_i(0) - sum alpha (g - h) + the steps of frames that only the sender has made
    step          each model moves by the steps of the frames that the device has sent and acknowledged, and by no other
    learn         each h is the sum of l d over those frames, on the links that are up
    rest          at rest no frame is under way, sum h_i = 0, and a step at one end only was reported as unresolved
    one           a frame is sent once the last one is acknowledged
    order         ... and once every frame that the other end had sent before it acknowledged has been received
    used          a frame uses the newest version that its sender has: the receiver's newest or the one before
    content       a frame that is sent again has the same content
    claim         a version is acknowledged after it was delivered, one by one, and for good
    weight        c = min(rate / (1 + D), 1 / (2 D)), where D is the larger degree, as the two ends told each other
    learning      l = theta / (sum of alpha since the last frame)
    told          a payload brings `told` no further away from the model, and to the model itself if it is whole
    introduction  an introduction holds the model of the moment; one token has one model
    token         no token comes twice
    degree        messages state the number of neighbours
    unresolved    a link that is given up reports the frame that is not acknowledged, with the norm of its step
    taught        a link that is given up takes back what it has taught h
    violation     nothing that the law allows is refused
    norm          without gradients, with whole models: sum |x_i - mean|^2 does not exceed its start, where frames that
                  are under way count as made, as long as no two steps used the same version
    silent        a device that has finished sends no new frame (`driver` looks at this one and at `afford`)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from efhc.base.arrays import Floats
from efhc.core.half_steps import (
    Acknowledgement,
    Effect,
    Frame,
    Introduction,
    Message,
    Send,
    TakeBack,
    Token,
    Unresolved,
    Violation,
)

ROUNDING = 1e-9
Pair = tuple[Token, Token | None]
"""The sender's token and the receiver's: one direction of one life of a link. None: no message has named it yet."""


class Broken(AssertionError):
    """A law was broken."""

    def __init__(self, law: str, what: str) -> None:
        super().__init__(f"{law}: {what}")
        self.law = law


class Direction:
    """The frames of one direction of one life of a link, as the wire shows them."""

    __slots__ = (
        "acknowledged", "claimed", "delivered", "forgiven", "frames", "needed", "remembered", "reported", "steps",
        "versions",
    )  # fmt: skip

    def __init__(self, first: Floats | None) -> None:
        self.versions = [first]
        """The sender's model as the receiver knows it, by number; the first is that of the introduction."""
        self.frames: list[Frame] = []
        self.steps: list[Floats] = []
        """d at the sender, one per frame."""
        self.delivered = 0
        """The number of the newest frame that has arrived."""
        self.claimed = -1
        """The newest version that the receiver says it has."""
        self.acknowledged = -1
        """The newest version that the sender was told that the receiver has."""
        self.remembered = -1
        """The same, as far as it is in the sender's journal."""
        self.needed = 0
        """The frames that the receiver had sent when it claimed the newest version."""
        self.reported = False
        """The sender has given the link up, and reported that the last frame was not acknowledged."""
        self.forgiven = False
        """The sender has lost its state: it can report nothing."""

    @property
    def last(self) -> int:
        """The number of the last frame."""
        return len(self.frames)

    @property
    def one_sided(self) -> list[Floats]:
        """The steps that only the sender has made."""
        return self.steps[max(self.claimed, 0) :]


class Witness:
    """The books of one network. `apply(payload, known)` returns what is known after a payload."""

    def __init__(
        self, parameters: int, rate: float, theta: float, apply: Callable[[Any, Floats], Floats], *, whole: bool
    ) -> None:
        self.rate, self.theta, self.apply, self.whole = rate, theta, apply, whole
        self.zero = np.zeros(parameters)
        self.models: dict[int, Floats] = {}
        """By device: the model in force."""
        self.own: dict[int, Floats] = {}
        """By device: x_i(0) - sum alpha (g - h)."""
        self.mixed: dict[int, Floats] = {}
        """By device: the sum of the steps that it has made."""
        self.learned: dict[int, Floats] = {}
        """By device: what h should be."""
        self.lost: Floats = self.zero
        """The steps that devices had made that have lost their state."""
        self.neighbours: defaultdict[int, set[int]] = defaultdict(set)
        self.directions: dict[Pair, Direction] = {}
        self.introductions: dict[Token, Floats | None] = {}
        self.owners: dict[Token, tuple[int, int, int]] = {}
        """By token: device, how often it had lost its state, neighbour."""
        self.losses: defaultdict[int, int] = defaultdict(int)
        self.introduced: set[tuple[Token, int]] = set()
        """Whose introduction, with a model, has arrived where."""
        self.degrees: defaultdict[tuple[Token, int], set[int]] = defaultdict(set)
        """The numbers of neighbours that were told by a token to a device."""
        self.lives: dict[tuple[int, int], Pair] = {}
        """By device and neighbour: the tokens in the last message."""
        self.elapsed: dict[tuple[int, int], float] = {}
        self.taught: dict[tuple[int, int], Floats] = {}
        """By device and neighbour, since the link came up: the sum of alpha since the last frame; the sum of l d."""
        self.kept: dict[int, tuple[Floats, dict[tuple[int, int], float], dict[Pair, int]]] = {}
        """By device: what a crash goes back to."""
        self.sent_since: defaultdict[int, set[int]] = defaultdict(set)
        """By device: the neighbours to which it has sent a new frame since the journal's copy."""
        self.start_norm: float | None = None
        self.reused = False
        """Whether two frames of one direction used the same version."""
        self.steps = 0
        """The steps that were made, two per frame."""

    # Devices

    def start(self, device: int, model: Floats) -> None:
        """A device has its first model."""
        self.own[device] = self.models[device] = model.copy()
        self.mixed[device] = self.learned[device] = self.zero

    def forgot(self, device: int) -> None:
        """A device has lost its state, and starts again."""
        self.losses[device] += 1
        self.lost = self.lost + self.mixed.pop(device, self.zero)
        for book in (self.models, self.own, self.learned, self.kept, self.sent_since):
            book.pop(device, None)  # type: ignore[attr-defined]
        for pair, direction in self.directions.items():
            direction.forgiven |= pair[0][0] == device
        for neighbour in list(self.neighbours[device]):
            self._forget_link(device, neighbour)
        self.neighbours[device].clear()

    def local_step(self, device: int, alpha: float, gradient: Floats, h: Floats) -> None:
        """x <- x - alpha (g - h)"""
        self.own[device] = self.own[device] - alpha * (gradient - h)
        for neighbour in self.neighbours[device]:
            self.elapsed[device, neighbour] += alpha

    def holds(self, device: int, model: Floats, h: Floats) -> None:
        """A device has this model and this h now, all steps included."""
        self.models[device] = model
        expected = self.own[device] + self.mixed[device]
        if not _close(model, expected):
            raise Broken("step", f"device {device} has {model}; its gradients and frames make {expected}")
        if not _close(h, self.learned[device]):
            raise Broken("learn", f"h of device {device} is {h}; its frames make {self.learned[device]}")

    def keeps(self, device: int) -> None:
        """A journal begins anew with a copy of the state."""
        links = [(device, neighbour) for neighbour in self.neighbours[device]]
        pairs = [self.lives[link] for link in links if link in self.lives]
        known = {pair: self.directions[pair].remembered for pair in pairs if pair in self.directions}
        self.kept[device] = self.own.get(device, self.zero), {link: self.elapsed[link] for link in links}, known
        self.sent_since[device].clear()

    def crashed(self, device: int, model: Floats | None) -> None:
        """A device goes back to its journal: gradients since the copy are lost, and acknowledgements; steps are not."""
        own, elapsed, known = self.kept[device]
        if model is not None:
            self.models[device], self.own[device] = model, own
        for (i, j), alphas in elapsed.items():
            self.elapsed[i, j] = 0.0 if j in self.sent_since[device] else alphas
            pair = self.lives.get((i, j))
            if pair is not None and pair in self.directions:
                self.directions[pair].remembered = known.get(pair, -1)

    # Links

    def link_up(self, device: int, neighbour: int, *, shared_start: bool = False) -> None:
        self.neighbours[device].add(neighbour)
        self.elapsed[device, neighbour] = 0.0
        if shared_start:
            mine, theirs = (device, 0, 0), (neighbour, 0, 0)
            self.lives[device, neighbour] = mine, theirs
            self.introductions[mine] = self.models[device]
            self.introduced.add((theirs, device))
            self.degrees[theirs, device].add(0)
            direction = self._direction((mine, theirs))
            direction.claimed = direction.acknowledged = direction.remembered = 0

    def link_down(self, device: int, neighbour: int) -> None:
        """Call this after `reacted` to what the device reports about the link."""
        self._give_up(device, neighbour, ())
        self.neighbours[device].discard(neighbour)

    def _give_up(self, device: int, neighbour: int, effects: Iterable[Effect]) -> None:
        """A life of a link is over at one end: what did it report?"""
        mine = [effect for effect in effects if isinstance(effect, TakeBack | Unresolved) and effect[0] == neighbour]
        norms = [effect.norm for effect in mine if isinstance(effect, Unresolved)]
        life = self.lives.get((device, neighbour))
        direction = None if life is None else self.directions.get(life)
        if direction is not None and direction.last > max(direction.remembered, 0):
            direction.reported = bool(norms)
            must = direction.acknowledged < direction.last
            expected = [float(np.linalg.norm(direction.steps[-1]))] if must or norms else []
        else:
            expected = []
        if len(norms) != len(expected) or not np.allclose(norms, expected, rtol=ROUNDING, atol=ROUNDING):
            raise Broken("unresolved", f"device {device} gives up {neighbour} and reports {norms}, not {expected}")
        taught = self.taught.get((device, neighbour), self.zero)
        reported = sum((effect.taught for effect in mine if isinstance(effect, TakeBack)), self.zero)
        if not _close(reported, taught):
            raise Broken("taught", f"device {device} takes back {reported}; {neighbour} had taught it {taught}")
        if device in self.learned:
            self.learned[device] = self.learned[device] - taught
        self._forget_link(device, neighbour)

    def _forget_link(self, device: int, neighbour: int) -> None:
        self.lives.pop((device, neighbour), None)
        self.taught.pop((device, neighbour), None)
        self.elapsed[device, neighbour] = 0.0

    def _direction(self, pair: Pair) -> Direction:
        found = self.directions.get(pair)
        if found is None:
            found = self.directions[pair] = Direction(self.introductions.get(pair[0]))
        return found

    # The wire

    def delivered(self, device: int, neighbour: int, message: Message) -> None:
        """A message of a neighbour arrives at a device; call this before the device is told."""
        if neighbour not in self.neighbours[device]:
            return
        self.degrees[message.source, device].add(message.degree)
        if isinstance(message, Introduction):
            if message.model is not None:
                self.introduced.add((message.source, device))
            return
        if isinstance(message, Frame):
            there = self._direction((message.source, message.target))
            there.delivered = max(there.delivered, message.number)
        back = self._direction((message.target, message.source))
        back.acknowledged = max(back.acknowledged, message.acknowledged)
        back.remembered = max(back.remembered, message.acknowledged)

    def reacted(self, device: int, effects: Sequence[Effect], *, forged: bool = False) -> None:
        """A device wants all this."""
        for neighbour in {effect.neighbour for effect in effects if isinstance(effect, TakeBack | Unresolved)}:
            self._give_up(device, neighbour, effects)
        for effect in effects:
            if isinstance(effect, Send):
                self._sent(device, effect.neighbour, effect.message)
            elif isinstance(effect, Violation) and not forged:
                raise Broken("violation", f"device {device} refuses what {effect.neighbour} sent: {effect.problem}")

    def _sent(self, i: int, j: int, message: Message) -> None:
        if message.degree != len(self.neighbours[i]):
            raise Broken("degree", f"device {i} has {len(self.neighbours[i])} neighbours and says {message}")
        introduction = isinstance(message, Introduction)
        life = message.source, None if isinstance(message, Introduction) else message.target
        before = self.lives.get((i, j))
        if before is not None and (before[0] != life[0] or (not introduction and before[1] not in (None, life[1]))):
            elapsed = self.elapsed[i, j]
            self._give_up(i, j, ())
            if before[0] == life[0]:
                self.elapsed[i, j] = elapsed  # it counts from the introduction on, which stays
            before = None
        if before is None or before[1] is None:
            self.lives[i, j] = life
        if isinstance(message, Introduction):
            self._introduced(i, j, message)
            return
        there, back = (
            self._direction((message.source, message.target)),
            self._direction((message.target, message.source)),
        )
        self._claimed(i, j, message, there, back)
        if isinstance(message, Frame):
            self._frame(i, j, message, there, back)
        if message.sent != there.last:
            raise Broken("claim", f"device {i} has sent {there.last} frames to {j} and says {message}")

    def _introduced(self, i: int, j: int, message: Introduction) -> None:
        token, model = message.source, message.model
        if self.owners.setdefault(token, (i, self.losses[i], j)) != (i, self.losses[i], j):
            raise Broken("token", f"{token} comes twice")
        known = self.introductions.get(token)
        expected = self.models.get(i) if known is None else known
        if (model is None) != (expected is None) or (model is not None and not np.array_equal(model, expected)):
            raise Broken("introduction", f"device {i} has {expected} and says {message}")
        self.introductions[token] = None if model is None else model.copy()

    def _claimed(self, i: int, j: int, message: Acknowledgement | Frame, there: Direction, back: Direction) -> None:
        number = message.acknowledged
        if number == back.claimed:
            return
        if number != back.claimed + 1 or number > back.delivered or (message.target, i) not in self.introduced:
            raise Broken("claim", f"device {i} had version {back.claimed} of {j}, {back.delivered} came: {message}")
        back.claimed, back.needed = number, there.last
        if number > 0:
            frame = back.frames[number - 1]
            if frame.used not in (there.last, there.last - 1):
                raise Broken("used", f"device {i} has told version {there.last} and makes the step of {frame}")
            self._moves(i, j, -back.steps[number - 1], frame)

    def _frame(self, i: int, j: int, frame: Frame, there: Direction, back: Direction) -> None:
        if frame.number <= there.last:
            first, (before, told) = there.frames[-1], there.versions[-2:]
            same = first._replace(payload=frame.payload, acknowledged=frame.acknowledged, degree=frame.degree)
            assert before is not None
            if frame != same or not np.array_equal(self.apply(frame.payload, before), told):
                raise Broken("content", f"device {i} had told {told} in {first} and sends {frame}")
            return
        if frame.number != there.last + 1 or there.acknowledged != there.last:
            raise Broken("one", f"device {i} knows that {j} has {there.acknowledged} of {there.last} and sends {frame}")
        if back.claimed < there.needed:
            raise Broken("order", f"device {i} has received {back.claimed} frames of {there.needed} and sends {frame}")
        if frame.used != back.claimed:
            raise Broken("used", f"device {i} knows version {back.claimed} of {j} and sends {frame}")
        if not any(
            _near(frame.weight, min(self.rate / (1 + most), 1 / (2 * most)))
            for most in (max(len(self.neighbours[i]), degree) for degree in self.degrees[frame.target, i])
        ):
            raise Broken("weight", f"{self.degrees[frame.target, i]} neighbours were told to device {i}: {frame}")
        if not _near(frame.learning * self.elapsed[i, j], self.theta):
            raise Broken("learning", f"{self.elapsed[i, j]} is the sum of alpha at device {i}: {frame}")
        before, model = there.versions[-1], self.models[i]
        assert before is not None
        told = self.apply(frame.payload, before).copy()
        if np.any(np.abs(model - told) > np.abs(model - before)) or (self.whole and not np.array_equal(told, model)):
            raise Broken("told", f"device {i} has {model}, had told {before} and tells {told}")
        self.reused |= any(frame.weight and old.weight and old.used == frame.used for old in there.frames[-1:])
        self.elapsed[i, j] = 0.0
        self.sent_since[i].add(j)
        there.versions.append(told)
        there.frames.append(frame)
        there.steps.append(frame.weight * (back.versions[frame.used] - told))  # type: ignore[operator]
        self._moves(i, j, there.steps[-1], frame)

    def _moves(self, i: int, j: int, step: Floats, frame: Frame) -> None:
        self.steps += 1
        self.mixed[i] = self.mixed[i] + step
        if self.theta:
            self.learned[i] = self.learned[i] + frame.learning * step
            self.taught[i, j] = self.taught.get((i, j), self.zero) + frame.learning * step

    # All devices together

    def check_sum(self) -> None:
        """Call this when every device has said what it `holds`."""
        under_way = [step for direction in self.directions.values() for step in direction.one_sided]
        found = sum(self.models.values(), self.zero)
        expected = sum(self.own.values(), self.zero) + sum(under_way, self.zero) - self.lost
        if not _close(found, expected):
            raise Broken("sum", f"the models add up to {found}, not to {expected}; under way: {under_way}")

    def check_norm(self) -> None:
        """The first call sets the bound."""
        if self.reused:
            return
        models = dict(self.models)
        for (_, target), direction in self.directions.items():
            for step in direction.one_sided:
                models[target[0]] = models[target[0]] - step
        rows = np.array(list(models.values()))
        norm = float(np.square(rows - rows.mean(axis=0)).sum())
        self.start_norm = norm if self.start_norm is None else self.start_norm
        if norm > self.start_norm * (1 + ROUNDING) + ROUNDING:
            raise Broken("norm", f"{norm:.9g}, and {self.start_norm:.9g} at the start")

    def check_rest(self, h: Iterable[Floats]) -> None:
        """Call this when nothing is under way any more."""
        self.check_sum()
        for pair, direction in self.directions.items():
            living = self.lives.get((pair[0][0], pair[1][0])) == pair
            if living and not direction.last == max(direction.claimed, 0) == max(direction.acknowledged, 0):
                raise Broken("rest", f"{pair} has {direction.claimed} and {direction.acknowledged} of {direction.last}")
            if direction.one_sided and not direction.forgiven and not direction.reported:
                raise Broken("rest", f"{pair}: the step of {direction.frames[-1]} is at one end, and nobody said so")
            if len(direction.one_sided) > 1:
                raise Broken("rest", f"{pair}: {len(direction.one_sided)} steps are at one end only")
        for i, j in self.lives:
            if self.lives[i, j][::-1] != self.lives.get((j, i)) and i in self.models and j in self.models:
                raise Broken("rest", f"{i} and {j} do not know each other: {self.lives[i, j]}")
        total = sum(h, self.zero)
        if not _close(total, self.zero):
            raise Broken("rest", f"the h of all devices add up to {total}")


def _close(found: Floats, expected: Floats) -> bool:
    return bool(np.abs(found - expected).max() <= ROUNDING * (1 + np.abs(expected).max()))


def _near(found: float, expected: float) -> bool:
    return abs(found - expected) <= 1e-12 * abs(expected)
