"""Half-steps: a device's ends of its links. Calls in, effects out: no clock, no socket, no random number.

Each end of a link i, j keeps what the other end knows of its own model (`told`, version `out`), the version before, and
what it knows of the other's (`heard`, version `inn`). After a local step, where the trigger fires,

    i sends       told <- told + C(y - told),  d = c (heard - told),              i adds d,   h += l d
    j receives    heard <- heard + payload,    d = c (heard - told of `used`),    j adds d,   h += l d

The sender decides alone. Its frame carries c, l, its number and `used`, the version of the receiver's model that it
computed with, so both ends compute the same d from the same numbers with opposite signs. Nothing is agreed upon and
nothing is undone: mixing changes sum_i x_i and sum_i h_i only by the steps of frames that are under way.

    c = min(rate / (1 + D), 1 / (2 D)),  D = max(d_i, d_j)
    l = theta / (the sender's sum of alpha since its last frame on this link)

With a rate up to 1/2 the first is the smaller one. The sender may make c smaller still (`core.step_limits`).

One frame per direction may be unacknowledged. It is sent again with the same content under the same number until the
other end acknowledges it. An end sends its next frame once the last is acknowledged *and* every frame that the other
end had sent before it acknowledged has been received. Frames that come later then use `told` or the version before it,
so one old version is enough (docs/asynchrony.md has the proofs).

A link that comes up begins with an introduction: each end sends its whole model, version 0, and no step is made on it.
Between two ends that have just met (Event 1), the next frame is sent whatever the trigger says. Introductions name this
life of the link by a token; frames of another life are ignored. When a link is given up, h loses what the link has
taught it, `taught`, and an unacknowledged frame is reported with the norm of its step: the other end may or may not
have made it.

Arrays are never written to after they were handed over: ends of links share them. The only arrays that change are the
sums `pull`, `learned` and `taught`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from efhc.base.arrays import Floats
from efhc.core.step_limits import NoLimit, StepLimit, factor_of

NO_LIMIT = NoLimit()
Token = tuple[int, int, int]
"""Names one life of a link at one end: the device, its session, a count. No token comes twice.

Sessions have no order, so drivers see to it that no introduction of an earlier session comes after one of a later."""
SHARED_START = 0
"""The count of the tokens of links on which both ends know each other's model from the start, without a message."""


# What devices say to one another


class Introduction(NamedTuple):
    """The whole model of the sender, version 0: the link has come up, or the sender has begun it anew."""

    source: Token
    """The sender's name of this life of the link."""
    k: int
    degree: int
    """The number of neighbours of the sender."""
    model: Any
    """None if the sender waits for a model itself."""


class Acknowledgement(NamedTuple):
    """What the sender has received, and the number of its neighbours."""

    source: Token
    target: Token
    """The receiver's name of this life of the link."""
    acknowledged: int
    """The newest version of the receiver's model that the sender has."""
    sent: int
    """The number of the last frame that the sender has sent."""
    degree: int


class Frame(NamedTuple):
    """One half-step. All but `acknowledged` and `degree` stay the same when it is sent again."""

    source: Token
    target: Token
    number: int
    """The version of the sender's model that the receiver has after it."""
    used: int
    """The version of the receiver's model that the sender computed the step with."""
    weight: float
    """c"""
    learning: float
    """l"""
    payload: Any
    """What changes `told`, as the codec made it."""
    bits: int
    """The bits that the payload counts."""
    k: int
    acknowledged: int
    degree: int

    @property
    def sent(self) -> int:
        """The number of the last frame that the sender has sent."""
        return self.number


Message = Introduction | Acknowledgement | Frame


# Effects


class Send(NamedTuple):
    """Send a message to a neighbour."""

    neighbour: int
    message: Message


class TakeBack(NamedTuple):
    """Subtract from h what a link has taught it: the link is over."""

    neighbour: int
    taught: Floats


class Unresolved(NamedTuple):
    """A frame was not acknowledged, and its link is over: the other end may not have made its step, of this norm."""

    neighbour: int
    norm: float


class Start(NamedTuple):
    """The device, which waited for a model, has one to start from: `HalfSteps.model` at iteration `HalfSteps.k`."""


class Violation(NamedTuple):
    """A neighbour sent what this law does not allow. Nothing was changed by it."""

    neighbour: int
    problem: str


Effect = Send | TakeBack | Unresolved | Start | Violation


# Arithmetic


class Encoded(NamedTuple):
    """What a codec made of a difference."""

    told: Floats
    """What the receiver knows afterwards."""
    payload: Any
    bits: int


class Arithmetic(Protocol):
    """How payloads are made and applied, and steps are added up. Drivers may share arrays or send bytes."""

    def encode(self, model: Floats, told: Floats, threshold: float) -> Encoded | None:
        """Return what is sent of model - told; None if that is nothing."""
        ...

    def decode(self, payload: Any, heard: Floats) -> Floats:
        """Return what is known after a payload. Raises `ValueError` if it does not fit."""
        ...

    def add_step(
        self, sums: Sequence[Floats | None], weight: float, learning: float, plus: Floats, minus: Floats
    ) -> None:
        """Add the step d = weight (plus - minus) to `sums`, in place: pull += d, learned += l d, taught += l d.

        l: `learning`. All is computed in the precision of the models, in this order of operations.
        """
        ...


# State


@dataclass(slots=True)
class LinkEnd:
    """One end of a link."""

    token: Token
    partner: Token | None = None
    """The other end's token, once its introduction is here."""
    told: Any = None
    told_before: Any = None
    heard: Any = None
    out: int = 0
    """The version of `told`: the number of the last frame sent."""
    inn: int = 0
    """The version of `heard`: the number of the last frame received."""
    acknowledged: int = -1
    """The newest version of `told` that the other end is known to have; -1 until it has the introduction."""
    oldest_usable: int = 0
    """No frame that is still to come uses a version of `told` before this one."""
    later: tuple[int, int] = (0, 0)
    """(s, a): once frame s is received, no frame that is still to come uses a version before a."""
    pending: Frame | None = None
    """The frame that is not acknowledged."""
    pending_heard: Any = None
    """What was known of the other end when the pending frame was sent."""
    elapsed: float = 0.0
    """The sum of alpha since the last frame."""
    taught: Floats | None = None
    """lambda: what this link has taught h. None if it is not kept."""
    degree: int = 0
    """The other end's number of neighbours, as it last said."""
    degree_told: int = -1
    """The number of neighbours that the other end was last told of; -1: it was told nothing yet."""
    is_new: bool = False
    """Whether the two ends have just met, and this one had no chance yet to send a frame."""

    @property
    def may_send(self) -> bool:
        """Whether a new frame may be sent: see the top of this module."""
        return (
            self.partner is not None and self.heard is not None and self.oldest_usable == self.out == self.acknowledged
        )

    def note_usable(self) -> None:
        """Note which versions of `told` may still be used, by `later` and the frames received."""
        sent, usable = self.later
        if self.inn >= sent:
            self.oldest_usable = max(self.oldest_usable, usable)

    @property
    def is_fresh(self) -> bool:
        """Whether this end has introduced itself, if at all, and nothing else has happened."""
        return self.out == self.inn == 0 and self.token[2] != SHARED_START

    @property
    def pending_step(self) -> Floats:
        """d of the pending frame, in double precision."""
        assert self.pending is not None
        step: Floats = self.pending.weight * np.subtract(self.pending_heard, self.told, dtype=np.float64)
        return step


@dataclass(slots=True)
class HalfSteps:
    """A device and the ends of its links. Plain data: checkpoints hold it."""

    number: int
    session: int
    """Counts the times the device was started, so that no token comes twice."""
    rate: float
    theta: float
    """How fast h learns; 0 for no h."""
    keeps_taught: bool
    """Whether each link remembers what it has taught h."""
    model: Any
    """x_i. The driver replaces it after every local step and every `take_pull`. None while the device waits for one."""
    k: int = 0
    links: dict[int, LinkEnd] = field(default_factory=dict)
    """By neighbour, the links that are up."""
    pull: Floats | None = None
    """f: the sum of all steps since `take_pull`; None if there was none."""
    learned: Floats | None = None
    """The sum of l d since `take_pull`."""
    steps: int = 0
    """The number of steps made over links since the last local step: it gates momentum."""
    count: int = SHARED_START
    """Tokens given out in this session."""
    silent: bool = False
    """Whether the device sends no new frames: it has finished, or is leaving. It still receives and acknowledges."""

    @property
    def degree(self) -> int:
        """The number of neighbours."""
        return len(self.links)

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits for an acknowledgement; a device that waits for a model has nothing to lose."""
        return self.model is None or not any(map(self.awaits, self.links))

    @property
    def gate(self) -> float:
        """min(1, steps made over links since the last local step / number of neighbours): how much momentum counts."""
        return min(1.0, self.steps / self.degree) if self.links else 1.0

    # Links come and go

    def link_up(
        self, neighbour: int, *, is_new: bool = False, shared_start: Floats | None = None,
        sessions: tuple[int, int] = (0, 0),
    ) -> None:  # fmt: skip
        """A neighbour has come into reach; call `announce` afterwards. A link that is up begins a new life.

        `is_new`: the two have just met (Event 1), not at the start of the run. `shared_start` is the model that both
        ends started from, if both know that of one another without a message; `sessions` are then those of the two.
        """
        if shared_start is not None:
            own, theirs = sessions
            end = LinkEnd((self.number, own, SHARED_START), (neighbour, theirs, SHARED_START), acknowledged=0)
            end.told = end.heard = shared_start
        else:
            self.count += 1
            end = LinkEnd((self.number, self.session, self.count))
        end.is_new = is_new
        if self.keeps_taught and self.theta and self.model is not None:
            end.taught = np.zeros_like(self.model)
        self.links[neighbour] = end

    def link_down(self, neighbour: int) -> list[Effect]:
        """A neighbour is out of reach for good, or has lost its state; call `announce` afterwards."""
        end = self.links.pop(neighbour, None)
        if end is None:
            return []
        effects: list[Effect] = []
        if end.pending is not None:
            effects.append(Unresolved(neighbour, float(np.linalg.norm(end.pending_step))))
        if end.taught is not None:
            effects.append(TakeBack(neighbour, end.taught))
        return effects

    def announce(self) -> list[Effect]:
        """Introduce this device on links that are new, and tell the others how many neighbours it has by now."""
        effects: list[Effect] = []
        for neighbour, end in self.links.items():
            if end.degree_told < 0 and end.acknowledged < 0:
                effects.append(self._introduction(neighbour, end))
            elif end.acknowledged >= 0:  # else with the next acknowledgement
                effects += self._tell_degree(neighbour, end)
        return effects

    def _tell_degree(self, neighbour: int, end: LinkEnd) -> list[Effect]:
        """Say how many neighbours this device has, if the other end does not know and has introduced itself."""
        is_news = end.degree_told != self.degree and end.heard is not None
        return [self._acknowledgement(neighbour, end)] if is_news else []

    def _introduction(self, neighbour: int, end: LinkEnd) -> Send:
        if end.told is None:
            end.told = self.model
        end.degree_told = self.degree
        return Send(neighbour, Introduction(end.token, self.k, self.degree, end.told))

    def _acknowledgement(self, neighbour: int, end: LinkEnd) -> Send:
        assert end.partner is not None
        end.degree_told = self.degree
        return Send(neighbour, Acknowledgement(end.token, end.partner, end.inn, end.out, self.degree))

    # Local steps

    def stepped(
        self,
        model: Floats,
        alpha: float,
        decide: Callable[[Sequence[Floats]], Sequence[float | None]],
        arithmetic: Arithmetic,
        affords: Callable[[float], bool] | None = None,
        limit: StepLimit = NO_LIMIT,
    ) -> list[Effect]:
        """A local step of size alpha has made this model: send frames on the links that are free and may fire.

        `decide(told)` has, for each version that neighbours know, the threshold of the codec's coordinates, or None if
        nothing is sent. `affords(bits)` says whether the device can pay for these bits on the air; `limit`, how far a
        step may go.
        """
        self.model, self.steps = model, 0
        for end in self.links.values():
            end.elapsed += alpha
        free = [(neighbour, end) for neighbour, end in sorted(self.links.items()) if end.may_send and not self.silent]
        frames = self._encoded(free, decide, arithmetic)
        if frames and affords is not None and not affords(sum(made.bits for *_, made in frames) / self.degree):
            frames = []
        for _, end in free:
            end.is_new = False  # two devices have met once their first chance to send is over, taken or not
        effects: list[Effect] = [self._send(neighbour, end, made, arithmetic, limit) for neighbour, end, made in frames]
        self.k += 1
        return effects

    def _encoded(
        self, free: list[tuple[int, LinkEnd]], decide: Callable[..., Any], arithmetic: Arithmetic
    ) -> list[tuple[int, LinkEnd, Encoded]]:
        """Encode once what several neighbours know in common: they then share what is told them, too.

        The first frame to a neighbour that the device has just met is sent whatever the trigger says.
        """
        versions = {id(end.told): end.told for _, end in free}
        decided = dict(zip(versions, decide(list(versions.values())), strict=True))
        thresholds = {(name, False): threshold for name, threshold in decided.items() if threshold is not None}
        thresholds |= {(id(end.told), True): 0.0 for _, end in free if end.is_new}
        made = {
            (name, is_new): arithmetic.encode(self.model, versions[name], threshold)
            for (name, is_new), threshold in thresholds.items()
        }
        return [(j, end, found) for j, end in free if (found := made.get((id(end.told), end.is_new))) is not None]

    def _send(self, neighbour: int, end: LinkEnd, made: Encoded, arithmetic: Arithmetic, limit: StepLimit) -> Send:
        degree = max(self.degree, end.degree)
        weight = min(self.rate * (1.0 / (1.0 + degree)), 0.5 / degree) * factor_of(limit, made.told, end.heard)
        learning = self.theta / end.elapsed
        assert end.partner is not None
        frame = Frame(
            end.token, end.partner, end.out + 1, end.inn, weight, learning, made.payload, made.bits, self.k, end.inn,
            self.degree,
        )  # fmt: skip
        end.degree_told = self.degree
        self.commit_sent(end, frame, made.told, arithmetic)
        return Send(neighbour, frame)

    def commit_sent(self, end: LinkEnd, frame: Frame, told: Floats, arithmetic: Arithmetic) -> None:
        """Make the sender's half of a frame's step. A node that was killed makes it again from its journal."""
        end.told_before, end.told, end.out = end.told, told, frame.number
        end.pending, end.pending_heard, end.elapsed = frame, end.heard, 0.0
        self._add_step(end, frame, end.heard, end.told, arithmetic)

    def commit_received(self, end: LinkEnd, frame: Frame, heard: Floats, arithmetic: Arithmetic) -> None:
        """Make the receiver's half of a frame's step."""
        told = end.told if frame.used == end.out else end.told_before
        end.heard, end.inn = heard, frame.number
        end.note_usable()
        self._add_step(end, frame, end.heard, told, arithmetic)

    def _add_step(self, end: LinkEnd, frame: Frame, plus: Floats, minus: Floats, arithmetic: Arithmetic) -> None:
        if self.pull is None:
            self.pull = np.zeros_like(plus)
            self.learned = np.zeros_like(plus) if self.theta else None
        self.steps += 1
        arithmetic.add_step((self.pull, self.learned, end.taught), frame.weight, frame.learning, plus, minus)

    def take_pull(self) -> tuple[Floats, Floats | None] | None:
        """Return f and what h has learned since the last call, and begin anew; None if nothing was added.

        The driver adds them, x += f and h += learned, and sets `model`.
        """
        if self.pull is None:
            return None
        found, self.pull, self.learned = (self.pull, self.learned), None, None
        return found

    # Messages

    def received(self, neighbour: int, message: Message, arithmetic: Arithmetic) -> list[Effect]:
        """A message has come."""
        end = self.links.get(neighbour)
        if end is None:
            return []
        if isinstance(message, Introduction):
            return self._on_introduction(neighbour, end, message)
        is_frame = isinstance(message, Frame)
        if (message.source, message.target) != (end.partner, end.token):
            return []  # of another life of the link
        if is_frame and (message.sent > end.inn + 1 or end.heard is None):
            return []  # what came before it is missing
        problem = self._make_step(end, message, arithmetic) if isinstance(message, Frame) else None
        if problem is not None:
            return [Violation(neighbour, problem)]
        end.degree = message.degree
        self._note_acknowledged(end, message)
        return [self._acknowledgement(neighbour, end)] if is_frame else self._tell_degree(neighbour, end)

    def _make_step(self, end: LinkEnd, frame: Frame, arithmetic: Arithmetic) -> str | None:
        """Make the step of a frame, unless it was made before; or return what is wrong with it."""
        if frame.number <= end.inn:
            return None
        if frame.used != end.out and (frame.used != end.out - 1 or end.told_before is None):
            return f"a step with version {frame.used} of a model of version {end.out}"
        if not (0 <= frame.weight <= 1 and 0 <= frame.learning < np.inf):
            return f"a step with weight {frame.weight} and learning {frame.learning}"
        try:
            heard = arithmetic.decode(frame.payload, end.heard)
        except ValueError as error:
            return str(error)
        self.commit_received(end, frame, heard, arithmetic)
        return None

    def _note_acknowledged(self, end: LinkEnd, message: Acknowledgement | Frame) -> None:
        """Note which versions the other end has, and which it may still use."""
        end.acknowledged = max(end.acknowledged, min(message.acknowledged, end.out))
        if end.pending is not None and end.acknowledged >= end.pending.number:
            end.pending = end.pending_heard = None
        end.later = max(end.later, (message.sent, min(message.acknowledged, end.out)))
        end.note_usable()

    def _on_introduction(self, neighbour: int, end: LinkEnd, message: Introduction) -> list[Effect]:
        known, effects = end.partner, list[Effect]()
        if known == message.source and (end.heard is not None or message.model is None):
            end.degree = message.degree
            return [] if end.heard is None else [self._acknowledgement(neighbour, end)]
        if known is not None and known != message.source:
            if message.source[1] == known[1] and message.source[2] < known[2]:
                return []  # an older one, which was overtaken
            if end.is_fresh:  # two ends that both began anew would do so for ever
                end.acknowledged, end.oldest_usable, end.later, end.degree_told = -1, 0, (0, 0), -1
                effects += [] if end.told is None else [self._introduction(neighbour, end)]
            else:
                effects += self.link_down(neighbour)
                self.link_up(neighbour)
                end = self.links[neighbour]
        end.partner, end.heard, end.degree = message.source, message.model, message.degree
        if self.model is None:
            return effects + self._start_if_possible(message)
        if end.told is None:
            effects.append(self._introduction(neighbour, end))
        if end.heard is not None:
            effects.append(self._acknowledgement(neighbour, end))
        return effects

    def _start_if_possible(self, message: Introduction) -> list[Effect]:
        """A device that waits takes the first model that it is told, and goes on from that device's iteration."""
        if message.model is None:
            return []
        self.model, self.k = message.model, message.k
        if self.keeps_taught and self.theta:
            for end in self.links.values():
                end.taught = np.zeros_like(self.model)
        effects: list[Effect] = [Start()]
        for neighbour, end in self.links.items():
            effects.append(self._introduction(neighbour, end))
            if end.heard is not None:
                effects.append(self._acknowledgement(neighbour, end))
        return effects

    def retry(self, neighbour: int) -> list[Effect]:
        """Nothing was heard of a neighbour for longer than a round trip: send what it has not acknowledged again."""
        end = self.links.get(neighbour)
        if end is None:
            return []
        if end.pending is not None:
            return [Send(neighbour, end.pending._replace(acknowledged=end.inn, degree=self.degree))]
        return [self._introduction(neighbour, end)] if end.acknowledged < 0 else []

    def acknowledge(self, neighbour: int) -> list[Effect]:
        """Tell a neighbour again what was received, and the number of neighbours: what was said last may be lost."""
        end = self.links.get(neighbour)
        return [] if end is None or end.heard is None else [self._acknowledgement(neighbour, end)]

    def awaits(self, neighbour: int) -> bool:
        """Whether something sent to a neighbour is not acknowledged."""
        end = self.links.get(neighbour)
        return end is not None and end.acknowledged < end.out


class PlainArithmetic:
    """`Arithmetic` in NumPy. A payload is what is known after it: ends in one process share the array."""

    def __init__(self, send: Callable[[Floats, Floats, float], tuple[Floats, int]]) -> None:
        """`send(model, told, threshold)` returns what is known afterwards and the bits of the message: a codec's."""
        self._codec_send = send

    def encode(self, model: Floats, told: Floats, threshold: float) -> Encoded | None:
        after, bits = self._codec_send(model, told, threshold)
        return Encoded(after, after, bits) if bits else None

    def decode(self, payload: Any, heard: Floats) -> Floats:
        after: Floats = payload
        return after

    @np.errstate(over="ignore", invalid="ignore")
    def add_step(
        self, sums: Sequence[Floats | None], weight: float, learning: float, plus: Floats, minus: Floats
    ) -> None:
        kind = plus.dtype.type
        step = kind(weight) * (plus - minus)
        for total, scaled in zip(sums, (step, kind(learning) * step, kind(learning) * step), strict=True):
            if total is not None:
                np.add(total, scaled, out=total)
