"""Watches devices from outside and says which law of half-steps they break.

It knows models, gradients, h, and what went over the wire. It never reads the state of `efhc.core.half_steps`: which
version of a model an end has follows from introductions and payloads; which steps it has made, from the frames that
have arrived. Of devices that choose links it is told which neighbours they leave out, and what they say of themselves.

    sum           sum x_i = sum x_i(0) - sum alpha (g - h) + the steps of frames that only the sender has made
    step          each model moves by the steps of the frames that the device has sent and received, and by no other:
                  a received frame counts once, as soon as all frames with smaller numbers have arrived
    learn         each h is the sum of l d over those frames, on the links that are up
    rest          at rest no frame is under way, sum h_i = 0, and steps at one end only were reported as unresolved
    window        a frame is sent if fewer than `window` are not acknowledged, and the introduction is
    order         ... and if no frame that has yet to arrive uses a version `window` or more before the newest
    used          a frame uses the newest version that its sender has: one of the receiver's last `window` + 1
    content       a frame that is sent again has the same content
    claim         a version is acknowledged after it and all before it have arrived, and for good
    owes          a frame is acknowledged at once; by a device that paces itself, at its next local step at which its
                  uplink is idle, or when it falls silent
    weight        c = min(rate / (1 + D), 1 / (2 D)), where D is the larger degree, as the two ends told each other; if
                  the law settles, c = min(rate scale / (1 + D), MOST_LOAD / 2)
    news          if the law settles, a device that has heard nothing since its last frame makes no step: c = l = 0
    learning      l = theta min(N, most) / A: local steps and sum of alpha since the last acknowledged frame
    told          a payload brings `told` no further away from the model, and to the model itself if it is whole. If
                  the device paces itself or the law settles, the model has the steps of the frames before this one; if
                  the law settles, it lacks what the link has added
    introduction  an introduction holds the model of the moment; one token has one model
    token         no token comes twice
    degree        messages state the number of neighbours that the device does not leave out
    redundant         a device sends to a neighbour that it leaves out only to say something new about itself
    about         with each frame, the receiver knows what the sender has to say about itself
    unresolved    a link that is given up reports the frames that are not acknowledged, with the norm of their steps
    taught        a link that is given up takes back what it has taught h
    violation     nothing that the law allows is refused
    norm          without gradients, with whole models: sum |x_i - mean|^2 does not exceed its start, where frames that
                  are under way count as made, as long as no two steps used the same version
    silent        a device that has finished sends no new frame (`driver` looks at this one and at `afford`)
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from hostile_schedules import Broken

from efhc.base.arrays import Floats
from efhc.core.half_step_messages import (
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
from efhc.core.half_steps import LEAST_SCALE, MOST_LOAD, LinkLaw, steps_that_count
from efhc.core.uplink import About

ROUNDING = 1e-9
Pair = tuple[Token, Token | None]
"""The sender's token and the receiver's: one direction of a link. None: no message has named it yet."""


class Span(NamedTuple):
    """Local steps: the sum of their alpha, and their number."""

    alphas: float = 0.0
    count: int = 0


class Direction:
    """The frames of one direction of a link between two tokens, as the wire shows them."""

    __slots__ = (
        "about", "acknowledged", "claimed", "early", "forgiven", "frames", "known_about", "made", "remembered",
        "reported", "spans", "steps", "versions",
    )  # fmt: skip

    def __init__(self, first: Floats | None) -> None:
        self.versions = [first]
        """The sender's model as the receiver knows it, by number; the first is that of the introduction."""
        self.frames: list[Frame] = []
        self.steps: list[Floats] = []
        """d at the sender, one per frame."""
        self.spans: list[Span] = []
        """The local steps before each frame, since the one before it."""
        self.early: dict[int, Frame] = {}
        """The frames that have arrived before one with a smaller number."""
        self.made = 0
        """The number of the newest frame that has arrived with all before it: the receiver has made its step."""
        self.claimed = -1
        """The newest version that the receiver says it has."""
        self.acknowledged = -1
        """The newest version that the sender was told that the receiver has."""
        self.remembered = -1
        """The same, as far as it is in the sender's journal."""
        self.about: About | None = None
        self.known_about: About | None = None
        """What the sender has said about itself, and what of it has arrived."""
        self.reported = False
        """The sender has given the link up, and reported that frames were not acknowledged."""
        self.forgiven = False
        """The sender has lost its state: it can report nothing."""

    @property
    def last(self) -> int:
        """The number of the last frame."""
        return len(self.frames)

    @property
    def one_sided(self) -> list[Floats]:
        """The steps that only the sender has made."""
        return self.steps[self.made :]

    @property
    def first_pending(self) -> int:
        """The place of the first frame of which the sender does not know that the receiver has it."""
        return max(self.remembered, 0)


class Kept(NamedTuple):
    """What a crash of a device goes back to, besides the frames since."""

    own: Floats
    since: dict[tuple[int, int], Span]
    out: dict[Pair, tuple[int, int]]
    """By direction from the device: the newest version that is known to be there, and the last frame."""
    early: dict[Pair, dict[int, Frame]]
    scale: float
    load: float


class Witness:
    """The books of one network. `apply(payload, known)` returns what is known after a payload."""

    def __init__(self, parameters: int, law: LinkLaw, apply: Callable[[Any, Floats], Floats], *, whole: bool) -> None:
        self.law, self.apply, self.whole = law, apply, whole
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
        self.tokens: dict[tuple[int, int], Pair] = {}
        """By device and neighbour: the tokens in the last message."""
        self.since: dict[tuple[int, int], Span] = {}
        self.has_news: dict[tuple[int, int], bool] = {}
        self.link_correction: dict[tuple[int, int], Floats] = {}
        """By device and neighbour, since the link came up: the local steps since the last frame; whether a frame has
        come since then; the sum of l d."""
        self.scale: defaultdict[int, float] = defaultdict(lambda: 1.0)
        self.load: defaultdict[int, float] = defaultdict(float)
        """By device: the factor of c, and the sum of c since the last local step."""
        self.load_since: defaultdict[int, float] = defaultdict(float)
        """By device: the sum of c since the journal's copy."""
        self.redundant: defaultdict[int, frozenset[int]] = defaultdict(frozenset)
        self.abouts: dict[int, About | None] = {}
        """By device: the neighbours that it leaves out, and what it has to say about itself."""
        self.one_by_one: set[int] = set()
        """The devices that send one frame after the other."""
        self.kept: dict[int, Kept] = {}
        """By device."""
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
        books = self.models, self.own, self.learned, self.kept, self.scale, self.load, self.redundant, self.abouts
        for book in books:
            book.pop(device, None)  # type: ignore[attr-defined]
        for pair, direction in self.directions.items():
            direction.forgiven |= pair[0][0] == device
        for neighbour in list(self.neighbours[device]):
            self._forget_link(device, neighbour)
        self.neighbours[device].clear()

    def local_step(self, device: int, alpha: float, gradient: Floats, h: Floats, *, paced: bool) -> None:
        """x <- x - alpha (g - h)"""
        (self.one_by_one.add if paced or self.law.settles else self.one_by_one.discard)(device)
        self.own[device] = self.own[device] - alpha * (gradient - h)
        load = self.load.pop(device, 0.0)
        self.scale[device] = min(1.0, max(LEAST_SCALE, self.scale[device] * MOST_LOAD / load)) if load > 0 else 1.0
        for neighbour in self.neighbours[device]:
            alphas, count = self.since[device, neighbour]
            self.since[device, neighbour] = Span(alphas + alpha, count + 1)

    def chooses(self, device: int, redundant: Iterable[int], about: About | None) -> None:
        """A device leaves out these neighbours, and has this to say about itself; call this before `reacted`."""
        self.redundant[device], self.abouts[device] = frozenset(redundant), about

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
        out = {pair: self.directions[pair] for link in links if (pair := self.tokens.get(link)) in self.directions}
        back = {pair[::-1]: self._direction(pair[::-1]) for pair in out}
        self.kept[device] = Kept(
            self.own.get(device, self.zero),
            {link: self.since[link] for link in links},
            {pair: (direction.remembered, direction.last) for pair, direction in out.items()},
            {pair: dict(direction.early) for pair, direction in back.items()},
            self.scale[device],
            self.load[device],
        )
        self.load_since[device] = 0.0

    def crashed(self, device: int, model: Floats | None) -> None:
        """A device goes back to its journal: gradients since the copy are lost, and frames that waited for others.

        So are acknowledgements, but the other end has what it used in frames that are here, and what was sent `window`
        frames before the last one. Steps are not lost.
        """
        kept = self.kept[device]
        if model is not None:
            self.models[device], self.own[device] = model, kept.own
        self.scale[device], self.load[device] = kept.scale, kept.load + self.load_since[device]
        for link, span in kept.since.items():
            pair = self.tokens.get(link)
            if pair is None or pair not in self.directions:
                self.since[link] = span
                continue
            there, back = self.directions[pair], self._direction(pair[::-1])
            known, sent = kept.out.get(pair, (-1, 0))
            spans = [span, *(Span() for _ in there.frames[sent:])]
            there.spans[sent:], self.since[link] = spans[:-1], spans[-1]
            used = back.frames[back.made - 1].used if back.made else -1
            there.remembered = max(known, used, there.last - self.law.window)
            early = kept.early.get(pair[::-1], {})
            back.early = {number: frame for number, frame in early.items() if number > back.made}

    # Links

    def link_up(self, device: int, neighbour: int, *, shared_start: bool = False) -> None:
        self.neighbours[device].add(neighbour)
        self.since[device, neighbour], self.has_news[device, neighbour] = Span(), True
        if shared_start:
            mine, theirs = (device, 0, 0), (neighbour, 0, 0)
            self.tokens[device, neighbour] = mine, theirs
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
        """A link is down at one end: what did it report?"""
        mine = [effect for effect in effects if isinstance(effect, TakeBack | Unresolved) and effect[0] == neighbour]
        norms = [effect.norm for effect in mine if isinstance(effect, Unresolved)]
        pair = self.tokens.get((device, neighbour))
        direction = None if pair is None else self.directions.get(pair)
        pending = [] if direction is None else direction.steps[direction.first_pending :]
        expected = [float(np.linalg.norm(sum(pending, self.zero)))] if pending else []
        if len(norms) != len(expected) or not np.allclose(norms, expected, rtol=ROUNDING, atol=ROUNDING):
            raise Broken("unresolved", f"device {device} gives up {neighbour} and reports {norms}, not {expected}")
        if direction is not None:
            direction.reported = bool(norms)
        taught = self.link_correction.get((device, neighbour), self.zero)
        reported = sum((effect.link_correction for effect in mine if isinstance(effect, TakeBack)), self.zero)
        if not _close(reported, taught):
            raise Broken(
                "link_correction", f"device {device} takes back {reported}; {neighbour} had taught it {taught}"
            )
        if device in self.learned:
            self.learned[device] = self.learned[device] - taught
        self._forget_link(device, neighbour)

    def _forget_link(self, device: int, neighbour: int) -> None:
        self.tokens.pop((device, neighbour), None)
        self.link_correction.pop((device, neighbour), None)
        self.since[device, neighbour], self.has_news[device, neighbour] = Span(), True

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
            self._begins_anew(device, neighbour, message.source)
            return
        back, is_here = self._direction((message.target, message.source)), True
        has_current_tokens = self.tokens.get((device, neighbour)) == (message.target, message.source)
        if isinstance(message, Frame) and has_current_tokens:
            there = self._direction((message.source, message.target))
            if message.number > there.made:
                there.early[message.number] = message
            while (frame := there.early.pop(there.made + 1, None)) is not None:
                self._receives(device, neighbour, there, back)
                self._told(back, frame.acknowledged, remembers=True)
            is_here = message.number <= there.made  # else it waits, and what it says as well
        if is_here:
            self._told(back, message.acknowledged, remembers=has_current_tokens)

    def _begins_anew(self, device: int, neighbour: int, token: Token) -> None:
        """A neighbour sends its token: an end at which nothing has happened goes on with that one."""
        mine, theirs = self.tokens.get((device, neighbour), (None, None))
        if mine is None or theirs is None or token == theirs or (token[1] == theirs[1] and token[2] < theirs[2]):
            return
        if mine[2] and not self._direction((mine, theirs)).last and not self._direction((theirs, mine)).made:
            self.tokens[device, neighbour] = mine, None

    def _told(self, direction: Direction, acknowledged: int, *, remembers: bool) -> None:
        direction.acknowledged = max(direction.acknowledged, acknowledged)
        if remembers:
            direction.remembered = max(direction.remembered, acknowledged)

    def _receives(self, i: int, j: int, back: Direction, there: Direction) -> None:
        """Device i makes the step of the next frame of j."""
        frame, step = back.frames[back.made], back.steps[back.made]
        if not there.last - self.law.window <= frame.used <= there.last:
            raise Broken("used", f"device {i} has told version {there.last} and makes the step of {frame}")
        back.made += 1
        back.known_about = frame.about or back.known_about
        self.has_news[i, j] = True
        self._moves(i, j, -step, frame)

    def reacted(self, device: int, effects: Sequence[Effect], *, forged: bool = False) -> None:
        """A device wants all this."""
        if not self.redundant[device] <= self.neighbours[device]:
            raise Broken("redundant", f"device {device} has no link to some of {set(self.redundant[device])}")
        for neighbour in {effect.neighbour for effect in effects if isinstance(effect, TakeBack | Unresolved)}:
            self._give_up(device, neighbour, effects)
        for effect in effects:
            if isinstance(effect, Send):
                self._sent(device, effect.neighbour, effect.message)
            elif isinstance(effect, Violation) and not forged:
                raise Broken("violation", f"device {device} refuses what {effect.neighbour} sent: {effect.problem}")

    def owes_nothing(self, device: int, neighbours: Iterable[int] | None = None) -> None:
        """A device has no reason to wait with acknowledgements, by default to all its neighbours."""
        for neighbour in self.neighbours[device] if neighbours is None else neighbours:
            pair = self.tokens.get((device, neighbour))
            direction = None if pair is None else self.directions.get(pair[::-1])
            if direction is not None and max(direction.claimed, 0) < direction.made:
                raise Broken("owes", f"{neighbour} does not know that device {device} has frame {direction.made}")

    def _sent(self, i: int, j: int, message: Message) -> None:
        degree = len(self.neighbours[i]) - len(self.redundant[i])
        if message.degree != degree:
            raise Broken("degree", f"device {i} sends to {degree} neighbours and says {message}")
        introduction = isinstance(message, Introduction)
        pair = message.source, None if isinstance(message, Introduction) else message.target
        before = self.tokens.get((i, j))
        if before is not None and (before[0] != pair[0] or (not introduction and before[1] not in (None, pair[1]))):
            since = self.since[i, j]
            self._give_up(i, j, ())
            if before[0] == pair[0]:
                self.since[i, j] = since  # it counts from the introduction on, which stays
            before = None
        if before is None or before[1] is None:
            self.tokens[i, j] = pair
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
        elif message.sent != there.last:
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
        if number > back.made or (message.target, i) not in self.introduced:
            raise Broken("claim", f"device {i} has {back.made} frames of {j} and says {message}")
        if number < back.claimed and not message.sent < there.last:  # a frame that others have followed may say less
            raise Broken("claim", f"device {i} has acknowledged {back.claimed} of {j} and says {message}")
        back.claimed = max(back.claimed, number)

    def _frame(self, i: int, j: int, frame: Frame, there: Direction, back: Direction) -> None:
        law = self.law
        if frame.number <= there.last:
            first, (before, told) = there.frames[frame.number - 1], there.versions[frame.number - 1 : frame.number + 1]
            same = first._replace(payload=frame.payload, acknowledged=frame.acknowledged, degree=frame.degree)
            assert before is not None
            if frame != same or not np.array_equal(self.apply(frame.payload, before), told):
                raise Broken("content", f"device {i} had told {told} in {first} and sends {frame}")
            return
        if frame.number != there.last + 1 or there.acknowledged < 0 or there.last - there.acknowledged >= law.window:
            raise Broken("window", f"{j} has {there.acknowledged} of {there.last}, as {i} knows, which sends {frame}")
        late = [one for one in back.frames[back.made :] if one.used < frame.number - law.window]
        if late:
            raise Broken("order", f"device {i} has not received {late} and sends {frame}")
        if frame.used != back.made:
            raise Broken("used", f"device {i} knows version {back.made} of {j} and sends {frame}")
        self._check_redundant(i, j, frame, there)
        self._check_numbers(i, j, frame, there)
        before = there.versions[-1]
        target = self.own[i] + self.mixed[i] if i in self.one_by_one else self.models[i]
        link = sum(there.steps, self.zero) - sum(back.steps[: back.made], self.zero)
        assert before is not None
        told = self.apply(frame.payload, before).copy()
        if law.settles:
            target = target - link
        slack = ROUNDING * (1 + np.abs(target)) if i in self.one_by_one else 0.0
        is_whole = _close(told, target) if i in self.one_by_one else np.array_equal(told, target)
        if np.any(np.abs(target - told) > np.abs(target - before) + slack) or (self.whole and not is_whole):
            raise Broken("known", f"device {i} has {target} to tell, had told {before} and tells {told}")
        self.reused |= any(frame.weight and old.weight and old.used == frame.used for old in there.frames[-1:])
        there.spans.append(self.since[i, j])
        self.since[i, j], self.has_news[i, j] = Span(), False
        there.versions.append(told)
        there.frames.append(frame)
        step = frame.weight * (back.versions[frame.used] - told)  # type: ignore[operator]
        there.steps.append(step - 2 * frame.weight * link if law.settles else step)
        self._moves(i, j, there.steps[-1], frame)

    def _check_redundant(self, i: int, j: int, frame: Frame, there: Direction) -> None:
        if j in self.redundant[i] and frame.about is None:
            raise Broken("redundant", f"device {i} leaves out {j} and sends {frame}")
        there.about = frame.about or there.about
        if there.about != self.abouts.get(i):
            raise Broken("about", f"device {i} is {self.abouts.get(i)}; {j} was told {there.about} and gets {frame}")

    def _check_numbers(self, i: int, j: int, frame: Frame, there: Direction) -> None:
        law = self.law
        if law.settles and not self.has_news[i, j]:
            if frame.weight or frame.learning:
                raise Broken("news", f"device {i} has heard nothing of {j} since its last frame and sends {frame}")
            return
        most = [max(1, frame.degree, degree) for degree in self.degrees[frame.target, i]]
        if law.settles:
            weights = [min(law.rate * self.scale[i] / (1 + degree), MOST_LOAD / 2) for degree in most]
        else:
            weights = [min(law.rate / (1 + degree), 1 / (2 * degree)) for degree in most]
        if not any(_near(frame.weight, weight) for weight in weights):
            raise Broken("weight", f"{self.degrees[frame.target, i]} neighbours were told to device {i}: {frame}")
        spans = [self.since[i, j], *there.spans[there.first_pending :]]
        alphas, count = sum(span.alphas for span in spans), sum(span.count for span in spans)
        if not _near(
            frame.learning * alphas,
            law.theta * steps_that_count(self.since[i, j].count, count, law.most_steps, frame.k),
        ):
            raise Broken("learning", f"{alphas} is the sum of {count} alphas at device {i}: {frame}")

    def _moves(self, i: int, j: int, step: Floats, frame: Frame) -> None:
        self.steps += 1
        self.mixed[i] = self.mixed[i] + step
        if self.law.settles:
            self.load[i] += frame.weight
            self.load_since[i] += frame.weight
        if self.law.theta:
            self.learned[i] = self.learned[i] + frame.learning * step
            self.link_correction[i, j] = self.link_correction.get((i, j), self.zero) + frame.learning * step

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
            living = self.tokens.get((pair[0][0], pair[1][0])) == pair
            if living and not direction.last == max(direction.claimed, 0) == max(direction.acknowledged, 0):
                raise Broken("rest", f"{pair} has {direction.claimed} and {direction.acknowledged} of {direction.last}")
            if direction.one_sided and not direction.forgiven and not direction.reported:
                raise Broken("rest", f"{pair}: the step of {direction.frames[-1]} is at one end, and nobody said so")
            if len(direction.one_sided) > self.law.window:
                raise Broken("rest", f"{pair}: {len(direction.one_sided)} steps are at one end only")
        for i, j in self.tokens:
            if self.tokens[i, j][::-1] != self.tokens.get((j, i)) and i in self.models and j in self.models:
                raise Broken("rest", f"{i} and {j} do not know each other: {self.tokens[i, j]}")
        total = sum(h, self.zero)
        if not _close(total, self.zero):
            raise Broken("rest", f"the h of all devices add up to {total}")


def _close(found: Floats, expected: Floats) -> bool:
    return bool(np.abs(found - expected).max() <= ROUNDING * (1 + np.abs(expected).max()))


def _near(found: float, expected: float) -> bool:
    return abs(found - expected) <= 1e-12 * abs(expected)
