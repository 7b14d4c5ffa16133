"""Half-steps: a device's ends of its links. Calls in, effects out: no clock, no socket, no random number.

Each end of a link i, j keeps what the other end knows of its own model (`told`, version `out`), older versions, and
what it knows of the other's (`heard`, version `inn`). After a local step, where the trigger fires,

    i sends       told <- told + C(y - told),  d = c (heard - told),              i adds d,   h += l d
    j receives    heard <- heard + payload,    d = c (heard - told of `used`),    j adds d,   h += l d

The sender decides alone. Its frame carries c, l, its number and `used`, the version of the receiver's model that it
computed with, so both ends compute the same d from the same numbers with opposite signs. Nothing is agreed upon and
nothing is undone: mixing changes sum_i x_i and sum_i h_i only by the steps of frames that are under way.

    c = min(rate / (1 + D), 1 / (2 D)),  D = max(d_i, d_j)
    l = theta N(k) / A,  A: the sum of alpha since the last acknowledged frame; N(k): see `steps_that_count`

With a rate up to 1/2 the first is the smaller one. The sender may make c smaller still (`core.step_limits`).

If the law `settles`, what is known leaves out what the link itself has done. With `moved`, the sum of the steps of an
end's own frames, E = moved - (moved of the other end, as heard) is what the link has added to this model, and

    told <- told + C((y - E) - told),   d = c ((heard - told) - 2 E),   c = min(rate scale / (1 + D), MOST_LOAD / 2)

where y holds the steps of all frames before this one. heard - E and told + E are the two models as both ends can know
them, so that frames without news would settle at the average of the two: an old difference is not made up for again and
again. An end that has heard nothing since its last frame makes no step with the next one (c = l = 0). After a local
step in which a device moved further than `MOST_LOAD` of the way to its neighbours, its own steps become smaller:
scale <- min(1, scale MOST_LOAD / (the sum of c since the last local step)), at least `LEAST_SCALE`.

Up to `window` frames per direction may be unacknowledged. They are sent again with the same content under the same
number until the other end acknowledges them, and frames that overtake others wait for them. An end keeps the versions
of `told` that frames may still use: those from `used` of the last frame received on, or from the version that the other
end had acknowledged when it sent a frame that is here. It sends a new frame only while these are at most `window` older
ones (docs/asynchrony.md has the proofs).

A link that comes up begins with an introduction: each end sends its whole model, version 0, and no step is made on it.
Between two ends that have just met (Event 1), the next frame is sent whatever the trigger says. Introductions name this
life of the link by a token; frames of another life are ignored. When a link is given up, h loses what the link has
taught it, `taught`, and unacknowledged frames are reported with the norm of their steps: the other end may or may not
have made them.

A device may use its uplink as `core.uplink` says: it then also leaves out links, which stay up without its frames.

Arrays are never written to after they were handed over: ends of links share them. The only arrays that change are the
sums `pull`, `learned` and `taught`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from efhc.base.arrays import Floats
from efhc.core.cost import ACKNOWLEDGEMENT_BYTES, FRAME_HEADER_BYTES, whole_message_bits
from efhc.core.step_limits import NoLimit, StepLimit, factor_of
from efhc.core.uplink import About, Uplink, about, quiet_links

NO_LIMIT = NoLimit()
Token = tuple[int, int, int]
"""Names one life of a link at one end: the device, its session, a count. No token comes twice.

Sessions have no order, so drivers see to it that no introduction of an earlier session comes after one of a later."""
MOST_LOAD = 0.75
"""How far a device should move towards its neighbours in one local step, if the law settles; 1 would be all the way."""
LEAST_SCALE = 0.25
"""A device that many others move cannot help it: its own steps become no smaller than this."""
EARLY = 50
"""Iterations in which a late frame teaches h as much as it may. Afterwards it teaches less and less: with a delay, h
would run apart if it went on learning so fast."""
MOST_WINDOW = 64
"""Versions of a model are kept for each message under way."""
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
    about: About | None = None
    """What the sender has to tell about itself, if that is news."""

    @property
    def sent(self) -> int:
        """The number of the last frame that the sender has sent."""
        return self.number


Message = Introduction | Acknowledgement | Frame


def bytes_of(message: Message) -> int:
    """Return the bytes that a message counts, its header included."""
    if isinstance(message, Acknowledgement):
        return ACKNOWLEDGEMENT_BYTES
    if isinstance(message, Introduction):
        return FRAME_HEADER_BYTES + (0 if message.model is None else whole_message_bits(message.model[None]) // 8)
    return FRAME_HEADER_BYTES + -(-message.bits // 8) + (0 if message.about is None else message.about.bytes)


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

    def encode(self, model: Floats, told: Floats, threshold: float, most: int | None = None) -> Encoded | None:
        """Return what is sent of model - told, in at most so many bits; None if that is nothing."""
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

    def add_settling_step(
        self, sums: Sequence[Floats | None], weight: float, learning: float, plus: Floats, minus: Floats, link: Floats
    ) -> Floats:
        """Add the step d = weight ((plus - minus) - 2 link) likewise, and return it; `link` is E."""
        ...


# State


class Version(NamedTuple):
    """What the other end of a link knows of this one, after a frame."""

    told: Any
    moved: Any = None
    """The sum of the steps of this end's frames so far; None if the law does not settle."""


class Pending(NamedTuple):
    """A frame that is not acknowledged, with the sum of alpha and the local steps that it was sent after."""

    frame: Frame
    elapsed: float
    local_steps: int


@dataclass(slots=True)
class LinkEnd:
    """One end of a link."""

    token: Token
    partner: Token | None = None
    """The other end's token, once its introduction is here."""
    versions: list[Version] = field(default_factory=list)
    """What the other end knows of this one, or will know: the last has the number `out`, the first `oldest_usable`."""
    heard: Any = None
    heard_moved: Any = None
    """The sum of the steps of the other end's frames that are here; None if the law does not settle."""
    out: int = 0
    """The number of the last version: that of the last frame sent."""
    inn: int = 0
    """The version of `heard`: the number of the last frame received."""
    acknowledged: int = -1
    """The newest version that the other end is known to have; -1 until it has the introduction."""
    known_to: Token | None = None
    """A token of the other end that has this end's introduction, and whose own one is not here yet."""
    oldest_usable: int = 0
    """No frame that is still to come uses a version before this one."""
    later: tuple[int, int] = (0, 0)
    """(s, a): once frame s is received, no frame that is still to come uses a version before a."""
    pending: list[Pending] = field(default_factory=list)
    """The frames that are not acknowledged, oldest first."""
    pending_heard: Any = None
    """What was known of the other end when the pending frame was sent, if the law does not settle."""
    early: dict[int, Frame] = field(default_factory=dict)
    """Frames that have overtaken others, by number."""
    elapsed: float = 0.0
    """The sum of alpha since the last frame."""
    local_steps: int = 0
    """The number of local steps since the last frame."""
    served: int = -1
    """The iteration in which the last frame was sent."""
    has_news: bool = True
    """Whether something was heard since the last frame."""
    owes: bool = False
    """Whether frames were received that are not acknowledged yet."""
    taught: Floats | None = None
    """lambda: what this link has taught h. None if it is not kept."""
    degree: int = 0
    """The other end's number of neighbours, as it last said."""
    degree_told: int = -1
    """The number of neighbours that the other end was last told of; -1: it was told nothing yet."""
    about: About | None = None
    """What the other end has told about itself."""
    about_told: About | None = None
    """What the other end was told about this one."""
    is_new: bool = False
    """Whether the two ends have just met, and this one had no chance yet to send a frame."""

    @property
    def told(self) -> Any:
        """The last of the versions; None if there is none."""
        return self.versions[-1].told if self.versions else None

    def version(self, number: int) -> Version | None:
        """Return the version of this number, if it is still kept."""
        place = number - self.oldest_usable
        return self.versions[place] if 0 <= place < len(self.versions) else None

    @property
    def link_steps(self) -> Any:
        """E: what this link has added to this end's model; None if the law does not settle."""
        return None if self.heard_moved is None else self.versions[-1].moved - self.heard_moved

    def known(self) -> Floats:
        """What the other end can know of this model once all frames are there."""
        known: Floats = self.told if self.heard_moved is None else self.told + self.link_steps
        return known

    def may_send(self, window: int) -> bool:
        """Whether a new frame may be sent: see the top of this module."""
        knows_both = self.partner is not None and self.heard is not None and self.acknowledged >= 0
        return knows_both and self.out - self.oldest_usable < window

    def note_usable(self, used: int = 0) -> None:
        """Note which versions may still be used, by `later`, the frames received and what the last of them used.

        The other end has the oldest of them.
        """
        sent, usable = self.later
        oldest = max(self.oldest_usable, used, usable if self.inn >= sent else 0)
        del self.versions[: oldest - self.oldest_usable]
        self.oldest_usable = oldest
        self.acknowledged = max(self.acknowledged, oldest)
        self.pending = [one for one in self.pending if one.frame.number > self.acknowledged]
        if not self.pending:
            self.pending_heard = None

    @property
    def is_fresh(self) -> bool:
        """Whether this end has introduced itself, if at all, and nothing else has happened."""
        return self.out == self.inn == 0 and self.token[2] != SHARED_START

    def steps_after(self, received: int) -> Floats:
        """Return the sum of the steps of the unacknowledged frames after this one, in double precision."""
        frames = [one.frame for one in self.pending if one.frame.number > received]
        if not frames:
            return np.zeros_like(self.told, np.float64)
        if self.pending_heard is not None:
            step: Floats = frames[0].weight * np.subtract(self.pending_heard, self.told, dtype=np.float64)
            return step
        first = self.version(frames[0].number - 1)
        assert first is not None
        moved: Floats = np.subtract(self.versions[-1].moved, first.moved, dtype=np.float64)
        return moved


def steps_that_count(since: Any, total: Any, most: int, k: int) -> Any:
    """Return how many local steps count in what a frame of iteration k teaches h.

    Of `total` steps since the last acknowledged frame and `since` the last one, these are min(total, most) at first. In
    the end, all frames under way together count as half a step; with `most` 1, as one.
    """
    share = since / total if most == 1 else 0.5 * since / total
    return share + min(1.0, EARLY / max(1, k)) * (np.minimum(total, most) - share)


class LinkLaw(NamedTuple):
    """The numbers of the link law that all devices of a run have in common."""

    rate: float
    theta: float = 0.0
    """How fast h learns; 0 for no h."""
    keeps_taught: bool = False
    """Whether each link remembers what it has taught h."""
    settles: bool = False
    window: int = 1
    """How many frames per direction may be unacknowledged; more than one only if the law settles."""
    most_steps: int = 1
    """How many local steps count at most in what one frame teaches h, at first: see `steps_that_count`."""


@dataclass(slots=True)
class HalfSteps:
    """A device and the ends of its links. Plain data: checkpoints hold it."""

    number: int
    session: int
    """Counts the times the device was started, so that no token comes twice."""
    law: LinkLaw
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
    load: float = 0.0
    """The sum of c of these steps."""
    scale: float = 1.0
    """The factor of c that keeps the load small; see the top of this module."""
    count: int = SHARED_START
    """Tokens given out in this session."""
    silent: bool = False
    """Whether the device sends no new frames: it has finished, or is leaving. It still receives and acknowledges."""
    is_paced: bool = False
    """Whether acknowledgements wait for the next local step: the uplink is slow."""
    about: About | None = None
    """What the device tells its neighbours about itself, if it chooses links."""
    frame_bytes: float = 0.0
    """How long its frames are, smoothed."""
    quiet: set[int] = field(default_factory=set)
    """The neighbours that the device need not send to: others have better links to them."""

    @property
    def degree(self) -> int:
        """The number of neighbours that the device sends to."""
        return len(self.links) - len(self.quiet)

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits for an acknowledgement; a device that waits for a model has nothing to lose."""
        return self.model is None or not any(map(self.awaits, self.links))

    @property
    def gate(self) -> float:
        """min(1, steps made over links since the last local step / number of neighbours): how much momentum counts."""
        return min(1.0, self.steps / self.degree) if self.degree else 1.0

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
            self._begin_told(end, shared_start)
            self._begin_heard(end, shared_start)
        else:
            self.count += 1
            end = LinkEnd((self.number, self.session, self.count))
        end.is_new = is_new
        if self.law.keeps_taught and self.law.theta and self.model is not None:
            end.taught = np.zeros_like(self.model)
        self.links[neighbour] = end
        self.choose_links()

    def _begin_told(self, end: LinkEnd, model: Floats) -> None:
        """The other end knows, or will know, this model: version 0."""
        end.versions = [Version(model, np.zeros_like(model) if self.law.settles else None)]

    def _begin_heard(self, end: LinkEnd, model: Floats | None) -> None:
        """The other end has introduced itself."""
        end.heard = model
        end.heard_moved = np.zeros_like(model) if self.law.settles and model is not None else None

    def link_down(self, neighbour: int) -> list[Effect]:
        """A neighbour is out of reach for good, or has lost its state; call `announce` afterwards."""
        end = self.links.pop(neighbour, None)
        if end is None:
            return []
        self.choose_links()
        effects: list[Effect] = []
        if end.pending:
            effects.append(Unresolved(neighbour, float(np.linalg.norm(end.steps_after(end.acknowledged)))))
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
            self._begin_told(end, self.model)
        end.degree_told = self.degree
        return Send(neighbour, Introduction(end.token, self.k, self.degree, end.told))

    def _acknowledgement(self, neighbour: int, end: LinkEnd) -> Send:
        assert end.partner is not None
        end.degree_told, end.owes = self.degree, False
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
        uplink: Uplink | None = None,
    ) -> list[Effect]:
        """A local step of size alpha has made this model: send frames on the links that are free and may fire.

        `decide(known)` has, for each model that neighbours know, the threshold of the codec's coordinates, or None if
        nothing is sent. `affords(bits)` says whether the device can pay for these bits on the air; `limit`, how far a
        step may go. With an `uplink`, the device paces itself.
        """
        self.scale = min(1.0, max(LEAST_SCALE, self.scale * MOST_LOAD / self.load)) if self.load > 0 else 1.0
        self.model, self.steps, self.load, self.is_paced = model, 0, 0.0, uplink is not None
        for end in self.links.values():
            end.elapsed, end.local_steps = end.elapsed + alpha, end.local_steps + 1
        free = [
            (neighbour, end)
            for neighbour, end in sorted(self.links.items())
            if end.may_send(self.law.window) and not self.silent
        ]
        sending = _Sending(decide, arithmetic, affords, limit)
        is_each = self.law.settles or uplink is not None
        effects = self._send_each(free, sending, uplink) if is_each else self._send_all(free, sending)
        self.k += 1
        return effects

    def _send_all(self, free: list[tuple[int, LinkEnd]], sending: _Sending) -> list[Effect]:
        """Send to all neighbours for which the trigger fires, if the device can pay for all of it."""
        frames = self._encoded(free, sending)
        if frames and not sending.pays(sum(made.bits for *_, made in frames) / self.degree):
            frames = []
        for _, end in free:
            end.is_new = False  # two devices have met once their first chance to send is over, taken or not
        return [self._send(neighbour, end, made, sending) for neighbour, end, made in frames]

    def _encoded(self, free: list[tuple[int, LinkEnd]], sending: _Sending) -> list[tuple[int, LinkEnd, Encoded]]:
        """Encode once what several neighbours know in common: they then share what is told them, too.

        The first frame to a neighbour that the device has just met is sent whatever the trigger says.
        """
        versions = {id(end.told): end.told for _, end in free}
        decided = dict(zip(versions, sending.decide(list(versions.values())), strict=True))
        thresholds = {(name, False): threshold for name, threshold in decided.items() if threshold is not None}
        thresholds |= {(id(end.told), True): 0.0 for _, end in free if end.is_new}
        made = {
            (name, is_new): sending.arithmetic.encode(self.model, versions[name], threshold)
            for (name, is_new), threshold in thresholds.items()
        }
        return [(j, end, found) for j, end in free if (found := made.get((id(end.told), end.is_new))) is not None]

    def _send_each(self, free: list[tuple[int, LinkEnd]], sending: _Sending, uplink: Uplink | None) -> list[Effect]:
        """Send one frame after the other: each tells of the steps of those before it.

        With an uplink, while it is idle, first to those that have waited longest; then acknowledge, if it still is.
        """
        if uplink is not None:
            if uplink.chooses_links:
                self.about = about(self.about, uplink, tuple(sorted(self.links)), self.frame_bytes)
                self.choose_links()
            free = [one for one in free if self._may_serve(*one, uplink)]
            free.sort(key=lambda one: (one[1].served, one[0]))
        thresholds = sending.decide([end.known() for _, end in free])
        effects: list[Effect] = []
        planned = 0
        for (neighbour, end), decided in zip(free, thresholds, strict=True):
            most = None if uplink is None else uplink.room(neighbour, planned)
            if uplink is not None and most is None:
                continue
            if neighbour in self.quiet and most is not None:
                most = min(most, 8 * FRAME_HEADER_BYTES)
            threshold = 0.0 if end.is_new or neighbour in self.quiet else decided
            end.is_new = False
            made = None if threshold is None else self._encode(end, threshold, sending, most)
            if made is None or not sending.pays(made.bits / len(self.links)):
                continue
            sent = self._send(neighbour, end, made, sending)
            size = bytes_of(sent.message)
            planned, self.frame_bytes = planned + size, _smoothed(self.frame_bytes, size)
            effects.append(sent)
        for neighbour, end in sorted(self.links.items(), key=lambda one: (one[1].served, one[0])):
            if uplink is not None and end.owes and uplink.room(neighbour, planned) is not None:
                planned += ACKNOWLEDGEMENT_BYTES
                effects.append(self._acknowledgement(neighbour, end))
        return effects

    def _may_serve(self, neighbour: int, end: LinkEnd, uplink: Uplink) -> bool:
        """Whether a frame may be sent to a neighbour now. Who is left out is still told what changes."""
        if uplink.room(neighbour, 0) is None or (neighbour in self.quiet and end.about_told == self.about):
            return False
        return end.is_new or uplink.is_due(neighbour)

    def _encode(self, end: LinkEnd, threshold: float, sending: _Sending, most: int | None) -> Encoded | None:
        model = self.model if self.pull is None else self.model + self.pull
        target = model if end.heard_moved is None else model - end.link_steps
        return sending.arithmetic.encode(target, end.told, threshold, most)

    def choose_links(self) -> None:
        """Leave out the links that others make up for, by what neighbours have told."""
        known = {neighbour: end.about for neighbour, end in self.links.items() if end.about is not None}
        self.quiet = set() if self.about is None else quiet_links(self.number, self.about, known)

    def _send(self, neighbour: int, end: LinkEnd, made: Encoded, sending: _Sending) -> Send:
        law, degree = self.law, max(1, self.degree, end.degree)
        weight = law.rate * (1.0 / (1.0 + degree))
        weight = min(weight * self.scale, MOST_LOAD / 2) if law.settles else min(weight, 0.5 / degree)
        link = end.link_steps
        seen = (made.told, end.heard) if link is None else (made.told + link, end.heard - link)
        weight *= factor_of(sending.limit, *seen)
        elapsed = end.elapsed + sum(one.elapsed for one in end.pending)
        local_steps = end.local_steps + sum(one.local_steps for one in end.pending)
        learning = law.theta * steps_that_count(end.local_steps, local_steps, law.most_steps, self.k) / elapsed
        if law.settles and not end.has_news:
            weight = learning = 0.0
        assert end.partner is not None
        news = None if self.about == end.about_told else self.about
        frame = Frame(
            end.token, end.partner, end.out + 1, end.inn, weight, learning, made.payload, made.bits, self.k, end.inn,
            self.degree, news,
        )  # fmt: skip
        end.degree_told, end.served = self.degree, self.k
        self.commit_sent(end, frame, made.told, sending.arithmetic)
        return Send(neighbour, frame)

    def commit_sent(self, end: LinkEnd, frame: Frame, told: Floats, arithmetic: Arithmetic) -> None:
        """Make the sender's half of a frame's step. A node that was killed makes it again from its journal.

        The frame could be sent, so the other end had all but the last `window` versions: the journal does not say so.
        """
        end.note_usable(frame.number - self.law.window)
        moved, link = end.versions[-1].moved, end.link_steps
        end.pending.append(Pending(frame, end.elapsed, end.local_steps))
        end.elapsed, end.local_steps, end.has_news, end.owes = 0.0, 0, False, False
        end.pending_heard = end.heard if moved is None else None
        step = self._add_step(end, frame, end.heard, told, link, arithmetic)
        end.versions.append(Version(told, moved if step is None else moved + step))
        end.out, end.about_told = frame.number, frame.about or end.about_told

    def commit_received(self, end: LinkEnd, frame: Frame, heard: Floats, arithmetic: Arithmetic) -> None:
        """Make the receiver's half of a frame's step."""
        used = end.version(frame.used)
        assert used is not None
        link = None if used.moved is None else used.moved - end.heard_moved
        end.heard, end.inn, end.has_news, end.owes = heard, frame.number, True, True
        step = self._add_step(end, frame, heard, used.told, link, arithmetic)
        if step is not None:
            end.heard_moved = end.heard_moved - step
        end.note_usable(frame.used)
        if frame.about is not None:
            end.about = frame.about
            self.choose_links()

    def _add_step(
        self, end: LinkEnd, frame: Frame, plus: Floats, minus: Floats, link: Floats | None, arithmetic: Arithmetic
    ) -> Floats | None:
        """Add the step of a frame to what is pulled; returns it if the law settles and there is one."""
        if link is not None and frame.weight == 0:
            return None
        if self.pull is None:
            self.pull = np.zeros_like(plus)
            self.learned = np.zeros_like(plus) if self.law.theta else None
        self.steps, self.load = self.steps + 1, self.load + (0.0 if link is None else frame.weight)
        sums = self.pull, self.learned, end.taught
        if link is None:
            arithmetic.add_step(sums, frame.weight, frame.learning, plus, minus)
            return None
        return arithmetic.add_settling_step(sums, frame.weight, frame.learning, plus, minus, link)

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
        if (message.source, message.target) != (end.partner, end.token):
            if message.target == end.token:
                end.known_to = message.source  # this has overtaken the introduction of its sender
            return []  # of another life of the link
        if isinstance(message, Frame):
            return self._on_frame(neighbour, end, message, arithmetic)
        end.degree = message.degree
        self._note_acknowledged(end, message)
        if self.is_paced and not self.silent:  # with the next frame, or when the uplink is idle
            end.owes = end.owes or (end.degree_told != self.degree and end.heard is not None)
            return []
        return self._tell_degree(neighbour, end)

    def _on_frame(self, neighbour: int, end: LinkEnd, frame: Frame, arithmetic: Arithmetic) -> list[Effect]:
        if end.heard is None or frame.number > end.inn + 1:
            if end.inn < frame.number <= end.inn + self.law.window:
                end.early[frame.number] = frame  # what came before it is missing
            return []
        is_repeated, made = frame.number <= end.inn, frame
        problem = None if is_repeated else self._make_step(end, frame, arithmetic)
        if problem is not None:
            return [Violation(neighbour, problem)]
        while (waiting := end.early.pop(end.inn + 1, None)) is not None:
            if self._make_step(end, waiting, arithmetic) is not None:
                break  # it is not acknowledged, so it comes again, and is refused then
            made = waiting
        end.degree = made.degree
        for message in (frame, made):
            self._note_acknowledged(end, message)
        wait = self.is_paced and not is_repeated and not self.silent
        return [] if wait else [self._acknowledgement(neighbour, end)]

    def _make_step(self, end: LinkEnd, frame: Frame, arithmetic: Arithmetic) -> str | None:
        """Make the step of a frame that is the next one, or return what is wrong with it."""
        if end.version(frame.used) is None:
            return f"a step with version {frame.used} of a model of version {end.out}"
        if not (0 <= frame.weight <= 0.5 and 0 <= frame.learning < np.inf):
            return f"a step with weight {frame.weight} and learning {frame.learning}"
        if frame.about is not None and not 0 < frame.about.rate < np.inf:
            return f"a bandwidth of {frame.about.rate}"
        try:
            heard = arithmetic.decode(frame.payload, end.heard)
        except ValueError as error:
            return str(error)
        self.commit_received(end, frame, heard, arithmetic)
        return None

    def _note_acknowledged(self, end: LinkEnd, message: Acknowledgement | Frame) -> None:
        """Note which versions the other end has, and which it may still use."""
        acknowledged = min(message.acknowledged, end.out)
        end.acknowledged = max(end.acknowledged, acknowledged)
        end.later = max(end.later, (message.sent, acknowledged))
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
                end.early.clear()
                effects += [] if end.told is None else [self._introduction(neighbour, end)]
            else:
                effects += self.link_down(neighbour)
                self.link_up(neighbour)
                end = self.links[neighbour]
        end.partner, end.degree = message.source, message.degree
        if end.known_to == end.partner:
            end.acknowledged = max(end.acknowledged, 0)
        self._begin_heard(end, message.model)
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
        if self.law.keeps_taught and self.law.theta:
            for end in self.links.values():
                end.taught = np.zeros_like(self.model)
        effects: list[Effect] = [Start()]
        for neighbour, end in self.links.items():
            effects.append(self._introduction(neighbour, end))
            if end.heard is not None:
                effects.append(self._acknowledgement(neighbour, end))
        return effects

    def retry(self, neighbour: int, *, all_frames: bool = False) -> list[Effect]:
        """Nothing was heard of a neighbour for longer than a round trip: send what it has not acknowledged again.

        That is the oldest frame, since later ones may be there already; or `all_frames`, if they are known to be lost.
        """
        end = self.links.get(neighbour)
        if end is None:
            return []
        if end.pending:
            again = end.pending if all_frames else end.pending[:1]
            return [Send(neighbour, self._again(end, one.frame)) for one in again]
        return [self._introduction(neighbour, end)] if end.acknowledged < 0 else []

    def _again(self, end: LinkEnd, frame: Frame) -> Frame:
        """The last frame may acknowledge what has come since. One before it may not: those after it used less."""
        acknowledged = end.inn if frame.number == end.out else frame.acknowledged
        return frame._replace(acknowledged=acknowledged, degree=self.degree)

    def fall_silent(self) -> list[Effect]:
        """Send no new frames from now on, and acknowledge what waited for the next one."""
        self.silent = True
        return [self._acknowledgement(neighbour, end) for neighbour, end in self.links.items() if end.owes]

    def acknowledge(self, neighbour: int) -> list[Effect]:
        """Tell a neighbour again what was received, and the number of neighbours: what was said last may be lost."""
        end = self.links.get(neighbour)
        return [] if end is None or end.heard is None else [self._acknowledgement(neighbour, end)]

    def awaits(self, neighbour: int) -> bool:
        """Whether something sent to a neighbour is not acknowledged."""
        end = self.links.get(neighbour)
        return end is not None and end.acknowledged < end.out


class _Sending(NamedTuple):
    """How frames are made after a local step: see `HalfSteps.stepped`."""

    decide: Callable[[Sequence[Floats]], Sequence[float | None]]
    arithmetic: Arithmetic
    affords: Callable[[float], bool] | None
    limit: StepLimit

    def pays(self, bits: float) -> bool:
        """Whether the device can pay for these bits; it has paid then."""
        return self.affords is None or self.affords(bits)


def _smoothed(before: float, size: int) -> float:
    return before + 0.25 * (size - before) if before else float(size)


class PlainArithmetic:
    """`Arithmetic` in NumPy. A payload is what is known after it: ends in one process share the array."""

    def __init__(self, send: Callable[[Floats, Floats, float], tuple[Floats, int]]) -> None:
        """`send(model, told, threshold)` returns what is known afterwards and the bits of the message: a codec's."""
        self._codec_send = send

    def encode(self, model: Floats, told: Floats, threshold: float, most: int | None = None) -> Encoded | None:
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

    @np.errstate(over="ignore", invalid="ignore")
    def add_settling_step(
        self, sums: Sequence[Floats | None], weight: float, learning: float, plus: Floats, minus: Floats, link: Floats
    ) -> Floats:
        kind = plus.dtype.type
        step: Floats = kind(weight) * ((plus - minus) - kind(2) * link)
        for total, scaled in zip(sums, (step, kind(learning) * step, kind(learning) * step), strict=True):
            if total is not None:
                np.add(total, scaled, out=total)
        return step
