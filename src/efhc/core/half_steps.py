"""Half-steps: the link law in which the sender of a message decides alone. Nothing here reads a clock, opens a socket
or draws a random number: a driver calls the methods of `HalfSteps` and carries out the effects that they return.

Each end of a link stores two models with version numbers: `known_there`, this device's model as the neighbour knows it,
and `known_here`, the neighbour's model as this device knows it (in formulas: there, here). After a local step for which
the trigger fires, the device sends a frame, and both devices make one step:

    i sends       there <- there + C(y - there),  d = c (here - there),            i adds d,   h += l d
    j receives    here <- here + payload,         d = c (here - there of `used`),  j adds d,   h += l d

The frame carries c, l, its number and `used`, the version of the receiver's model with which the sender computed d. So
both ends compute the same d from the same numbers, with opposite signs. No agreement or rollback is needed: up to
rounding, mixing changes sum_i x_i and sum_i h_i only by the steps of frames in flight.

    c = min(rate / (1 + D), 1 / (2 D)),  D = max(d_i, d_j)
    l = theta N(k) / A,  A: the sum of alpha since the last acknowledged frame; N(k): see `steps_that_count`

With a rate of at most 1/2 the first term is the smaller one. A step limit may make c smaller (`core.step_limits`).

Settling. If the law `settles`, both exclude the steps made over the link itself. With `moved`, the sum of the steps of
an end's own frames, E = moved - (moved of the other end) is what the link has added to this end's model, and

    there <- there + C((y - E) - there),   d = c ((here - there) - 2 E),   c = min(rate scale / (1 + D), MOST_LOAD / 2)

where y contains the steps of all frames sent before this one. The ends know each other's models as here - E and
there + E, so frames that carry no change would bring both to their average and no further. An end that has received
nothing since its last frame makes no step with the next one (c = l = 0). A device that moved further than `MOST_LOAD`
of the way to its neighbours in one local step makes its next steps smaller:
scale <- min(1, scale MOST_LOAD / (the sum of c since the last local step)), at least `LEAST_SCALE`.

Delivery. Up to `window` frames per direction may be unacknowledged. An end sends a frame again, with the same content
and number, until it is acknowledged; the receiver holds frames that overtake others until the missing ones arrive. An
end keeps every version of `known_there` that a frame may still use: those from `used` of the last frame received on, or
from the version that the other end had acknowledged when it sent a frame that has arrived. An end sends a new frame
only while at most `window` older versions are kept (docs/asynchrony.md has the proofs).

Links come and go. When a link comes up, each end sends its whole model, version 0, in an introduction, which makes no
step. If the two devices have just met (Event 1), the next frame is sent whatever the trigger says. Introductions carry
new tokens, and messages with other tokens are ignored. When a link goes down, its contribution to h (`link_correction`)
is subtracted from h, and unacknowledged frames are reported with the norm of their steps: the neighbour may or may not
have made them.

A device on a slow uplink chooses when it sends, how much, and over which links (`core.uplink`).

Arrays are never changed once they are handed over, because ends of links share them. The only exceptions are the sums
`pull`, `learned` and `link_correction`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from efhc.base.arrays import Floats
from efhc.core.cost import ACKNOWLEDGEMENT_BYTES, FRAME_HEADER_BYTES
from efhc.core.half_step_messages import (
    Acknowledgement,
    Committed,
    Effect,
    Frame,
    Introduction,
    Message,
    Send,
    Start,
    TakeBack,
    Token,
    Unresolved,
    Violation,
    bytes_of,
)
from efhc.core.step_limits import NoLimit, StepLimit, factor_of
from efhc.core.uplink import About, Uplink, describe, redundant_links, smoothed

NO_LIMIT = NoLimit()
MOST_LOAD = 0.75
"""How far a device should move towards its neighbours in one local step, if the law settles; 1 is all the way."""
LEAST_SCALE = 0.25
"""Lower bound of `scale`: below it, smaller steps of its own do not help a device whose neighbours move it too far."""
FULL_LEARNING_ITERATIONS = 50
"""Number of initial iterations in which a frame updates h for every local step it covers, up to `most_steps`. Later
updates are smaller, because with delayed frames h could diverge otherwise."""
MOST_WINDOW = 64
"""The largest window. An end keeps a version of its model for each unacknowledged frame."""
SHARED_START = 0
"""The count in the tokens of links whose ends know each other's model from the start, without a message."""


# Arithmetic


class Encoded(NamedTuple):
    """A difference, as a codec encoded it."""

    known: Floats
    """What the receiver knows afterwards."""
    payload: Any
    bits: int


class Arithmetic:
    """How payloads are made and applied, and how steps are added, in NumPy. Drivers may override each method.

    Here a payload is what is known after it: both ends are in one process and share the array.
    """

    def __init__(self, send: Callable[[Floats, Floats, float], tuple[Floats, int]]) -> None:
        """`send(model, known, threshold)` is that of a codec: it returns what is known afterwards, and the bits."""
        self._codec_send = send

    def encode(self, model: Floats, known: Floats, threshold: float, most: int | None = None) -> Encoded | None:
        """Encode model - known. Returns None if nothing is to be sent. Subclasses send at most `most` bits."""
        after, bits = self._codec_send(model, known, threshold)
        return Encoded(after, after, bits) if bits else None

    def decode(self, payload: Any, known: Floats) -> Floats:
        """Return what the receiver of a payload knows after it. Raises `ValueError` if the payload does not fit."""
        after: Floats = payload
        return after

    @np.errstate(over="ignore", invalid="ignore")
    def add_step(
        self,
        sums: Sequence[Floats | None],
        weight: float,
        learning: float,
        plus: Floats,
        minus: Floats,
        link: Floats | None = None,
    ) -> Floats | None:
        """Add a step to the sums (pull, learned, link_correction), in place: d to the first, l d to the others.

        d = weight (plus - minus), or weight ((plus - minus) - 2 link) where `link`, which is E, is given; l:
        `learning`. All is computed in the precision of the models, in this order of operations. Returns d if `link`
        is given, else None.
        """
        kind = plus.dtype.type
        step = kind(weight) * (plus - minus if link is None else (plus - minus) - kind(2) * link)
        for total, added in zip(sums, (step, kind(learning) * step, kind(learning) * step), strict=True):
            if total is not None:
                np.add(total, added, out=total)
        return None if link is None else step


# The state of one end of a link


class Version(NamedTuple):
    """What the other end of a link knows of this end after a frame."""

    known: Any
    moved: Any = None
    """The sum of the steps of this end's frames so far; None if the law does not settle."""


class Pending(NamedTuple):
    """An unacknowledged frame, with the sum of alpha and the number of local steps since the frame before it."""

    frame: Frame
    elapsed: float
    local_steps: int


@dataclass(slots=True)
class LinkEnd:
    """One end of a link. "Other end" is the neighbour's."""

    token: Token
    partner: Token | None = None
    """The token of the other end, once its introduction has arrived."""
    versions: list[Version] = field(default_factory=list)
    """What the other end knows of this one, or will know: the numbers are `oldest_usable` to `last_sent`."""
    known_here: Any = None
    """What this end knows of the other's model; None until the introduction has arrived."""
    moved_by_other: Any = None
    """The sum of the steps of the frames received from the other end; None if the law does not settle."""
    last_sent: int = 0
    """The number of the last frame sent, and so of the last of `versions`."""
    last_received: int = 0
    """The number of the last frame received in order, and so the version of `known_here`."""
    acknowledged: int = -1
    """The newest version that the other end is known to have; -1 until it has the introduction."""
    introduced_to: Token | None = None
    """The other end's token, from a message that arrived before its introduction."""
    oldest_usable: int = 0
    """No frame that is still to come uses a version before this one."""
    usable_after: tuple[int, int] = (0, 0)
    """(s, a): once frame s has been received, no frame that is still to come uses a version before a."""
    pending: list[Pending] = field(default_factory=list)
    """The unacknowledged frames, oldest first."""
    pending_known_here: Any = None
    """`known_here` when the pending frame was sent; None if the law settles."""
    out_of_order: dict[int, Frame] = field(default_factory=dict)
    """Frames that have overtaken others, by number."""
    elapsed: float = 0.0
    """The sum of alpha since the last frame."""
    local_steps: int = 0
    """The number of local steps since the last frame."""
    sent_at_k: int = -1
    """The iteration in which the last frame was sent."""
    has_news: bool = True
    """Whether a frame was received since the last one was sent."""
    must_acknowledge: bool = False
    """Whether an acknowledgement must still be sent. A paced device sends it with its next frame."""
    link_correction: Floats | None = None
    """lambda: the contribution of this link to h. None if it is not stored."""
    other_degree: int = 0
    """The other end's number of neighbours, as it last reported."""
    degree_sent: int = -1
    """The number of neighbours that the other end was last sent; -1 before the first."""
    about: About | None = None
    """The other end's description of itself."""
    about_sent: About | None = None
    """This device's description of itself that the other end was last sent."""
    is_new: bool = False
    """Whether the two devices have just met, and this end had no chance yet to send a frame."""

    @property
    def known_there(self) -> Any:
        """The last of the versions; None if there is none."""
        return self.versions[-1].known if self.versions else None

    def version(self, number: int) -> Version | None:
        """Return the version with this number; None if it is not kept any more."""
        place = number - self.oldest_usable
        return self.versions[place] if 0 <= place < len(self.versions) else None

    @property
    def link_steps(self) -> Any:
        """E: what this link has added to this end's model; None if the law does not settle."""
        return None if self.moved_by_other is None else self.versions[-1].moved - self.moved_by_other

    def known_model(self) -> Floats:
        """Return this device's model as the other end knows it once all frames have arrived."""
        known: Floats = self.known_there if self.moved_by_other is None else self.known_there + self.link_steps
        return known

    def may_send(self, window: int) -> bool:
        """Return whether a new frame may be sent: see "Delivery" at the top of this module."""
        knows_both = self.partner is not None and self.known_here is not None and self.acknowledged >= 0
        return knows_both and self.last_sent - self.oldest_usable < window

    def note_usable(self, used: int = 0) -> None:
        """Drop versions that no frame can use any more, and with them frames that the other end must have.

        `used` is the version that the last received frame used.
        """
        sent, usable = self.usable_after
        oldest = max(self.oldest_usable, used, usable if self.last_received >= sent else 0)
        del self.versions[: oldest - self.oldest_usable]
        self.oldest_usable = oldest
        self.acknowledged = max(self.acknowledged, oldest)
        self.pending = [one for one in self.pending if one.frame.number > self.acknowledged]
        if not self.pending:
            self.pending_known_here = None

    @property
    def is_fresh(self) -> bool:
        """Whether this end has sent and received nothing but introductions."""
        return self.last_sent == self.last_received == 0 and self.token[2] != SHARED_START

    def steps_after(self, received: int) -> Floats:
        """Return the sum of the steps of the unacknowledged frames after number `received`, in double precision."""
        frames = [one.frame for one in self.pending if one.frame.number > received]
        if not frames:
            return np.zeros_like(self.known_there, np.float64)
        if self.pending_known_here is not None:
            step: Floats = frames[0].weight * np.subtract(self.pending_known_here, self.known_there, dtype=np.float64)
            return step
        first = self.version(frames[0].number - 1)
        assert first is not None
        moved: Floats = np.subtract(self.versions[-1].moved, first.moved, dtype=np.float64)
        return moved


# The law of a device


def steps_that_count(since: Any, total: Any, most: int, k: int) -> Any:
    """Return N(k): the number of local steps that a frame sent in iteration k contributes to the update of h.

    There were `since` local steps since the last frame and `total` since the last acknowledged one. In early iterations
    N = min(total, most). In the end all frames in flight together count half a step, or one step if `most` is 1.
    """
    share = since / total if most == 1 else 0.5 * since / total
    return share + min(1.0, FULL_LEARNING_ITERATIONS / max(1, k)) * (np.minimum(total, most) - share)


class LinkLaw(NamedTuple):
    """The numbers of the link law, which are the same for all devices of a run."""

    rate: float
    theta: float = 0.0
    """How fast h learns; 0 for no h."""
    keeps_link_correction: bool = False
    """Whether each end of a link stores what the link has added to h."""
    settles: bool = False
    window: int = 1
    """The largest number of unacknowledged frames per direction; more than one only if the law settles."""
    most_steps: int = 1
    """The largest number of local steps that count in what one frame adds to h: see `steps_that_count`."""


class Sending(NamedTuple):
    """How frames are made after a local step: see `HalfSteps.stepped`."""

    decide: Callable[[Sequence[Floats]], Sequence[float | None]]
    arithmetic: Arithmetic
    pays: Callable[[float], bool] | None
    limit: StepLimit
    uplink: Uplink | None


@dataclass(slots=True)
class HalfSteps:
    """A device and its ends of links. It is plain data, so that checkpoints can hold it."""

    number: int
    session: int
    """Counts the starts of the device, so that no token is used twice."""
    law: LinkLaw
    model: Any
    """x_i. The driver replaces it after every local step and every `take_pull`. None while the device waits for one."""
    k: int = 0
    links: dict[int, LinkEnd] = field(default_factory=dict)
    """The links that are up, by neighbour."""
    pull: Floats | None = None
    """f: the sum of all steps since `take_pull`; None if there was none."""
    learned: Floats | None = None
    """The sum of l d since `take_pull`."""
    steps: int = 0
    """The number of steps made over links since the last local step, which gates momentum."""
    load: float = 0.0
    """The sum of c of these steps."""
    scale: float = 1.0
    """The factor of c that keeps the load small: see "Settling" at the top of this module."""
    count: int = SHARED_START
    """The number of tokens given out in this session."""
    silent: bool = False
    """Whether the device sends no new frames, because it has finished or is leaving. It still receives."""
    is_paced: bool = False
    """Whether acknowledgements wait for the next frame, because the uplink is slow."""
    about: About | None = None
    """The device's description of itself for its neighbours, if it chooses links."""
    frame_bytes: float = 0.0
    """The length of the device's frames, smoothed."""
    redundant: set[int] = field(default_factory=set)
    """The neighbours that the device need not send to, because others have better links to them."""

    @property
    def degree(self) -> int:
        """The number of neighbours that the device sends to."""
        return len(self.links) - len(self.redundant)

    @property
    def waits_for_model(self) -> bool:
        """Whether the device waits for a neighbour's model to start from."""
        return self.model is None

    @property
    def is_idle(self) -> bool:
        """Whether every message sent is acknowledged; True while the device waits for its initial model."""
        return self.model is None or not any(map(self.awaits, self.links))

    @property
    def gate(self) -> float:
        """min(1, steps over links since the last local step / number of neighbours): how much momentum counts."""
        return min(1.0, self.steps / self.degree) if self.degree else 1.0

    # Links come and go

    def link_up(
        self, neighbour: int, *, is_new: bool = False, shared_start: Floats | None = None,
        sessions: tuple[int, int] = (0, 0),
    ) -> None:  # fmt: skip
        """A neighbour has come into reach; call `announce` afterwards. A link that is up already begins anew.

        `is_new`: the two devices have just met (Event 1), after the start of the run. `shared_start`: the model from
        which both devices started, if each knows without a message that the other did; `sessions` are then theirs.
        """
        if shared_start is not None:
            own, theirs = sessions
            end = LinkEnd((self.number, own, SHARED_START), (neighbour, theirs, SHARED_START), acknowledged=0)
            self._begin_known_there(end, shared_start)
            self._begin_known_here(end, shared_start)
        else:
            self.count += 1
            end = LinkEnd((self.number, self.session, self.count))
        end.is_new = is_new
        if self.law.keeps_link_correction and self.law.theta and self.model is not None:
            end.link_correction = np.zeros_like(self.model)
        self.links[neighbour] = end
        self.choose_links()

    def _begin_known_there(self, end: LinkEnd, model: Floats) -> None:
        """Make this model version 0 of what the other end knows."""
        end.versions = [Version(model, np.zeros_like(model) if self.law.settles else None)]

    def _begin_known_here(self, end: LinkEnd, model: Floats | None) -> None:
        """Take the model of the other end's introduction."""
        end.known_here = model
        end.moved_by_other = np.zeros_like(model) if self.law.settles and model is not None else None

    def link_down(self, neighbour: int) -> list[Effect]:
        """A neighbour is out of reach for good, or has lost its state; call `announce` afterwards."""
        end = self.links.pop(neighbour, None)
        if end is None:
            return []
        self.choose_links()
        effects: list[Effect] = []
        if end.pending:
            effects.append(Unresolved(neighbour, float(np.linalg.norm(end.steps_after(end.acknowledged)))))
        if end.link_correction is not None:
            effects.append(TakeBack(neighbour, end.link_correction))
        return effects

    def announce(self) -> list[Effect]:
        """Introduce this device on new links, and send the others its number of neighbours if that has changed."""
        effects: list[Effect] = []
        for neighbour, end in self.links.items():
            if end.degree_sent < 0 and end.acknowledged < 0:
                effects.append(self._introduction(neighbour, end))
            elif end.acknowledged >= 0:  # otherwise the next acknowledgement contains the degree
                effects += self._degree_update(neighbour, end)
        return effects

    def _degree_update(self, neighbour: int, end: LinkEnd) -> list[Effect]:
        """Send the number of neighbours, if the other end has introduced itself and does not know it."""
        is_news = end.degree_sent != self.degree and end.known_here is not None
        return [self._acknowledgement(neighbour, end)] if is_news else []

    def _introduction(self, neighbour: int, end: LinkEnd) -> Send:
        if end.known_there is None:
            self._begin_known_there(end, self.model)
        end.degree_sent = self.degree
        return Send(neighbour, Introduction(end.token, self.k, self.degree, end.known_there))

    def _acknowledgement(self, neighbour: int, end: LinkEnd) -> Send:
        assert end.partner is not None
        end.degree_sent, end.must_acknowledge = self.degree, False
        message = Acknowledgement(end.token, end.partner, end.last_received, end.last_sent, self.degree)
        return Send(neighbour, message)

    # Local steps, and the frames after them

    def stepped(
        self,
        model: Floats,
        alpha: float,
        decide: Callable[[Sequence[Floats]], Sequence[float | None]],
        arithmetic: Arithmetic,
        pays: Callable[[float], bool] | None = None,
        limit: StepLimit = NO_LIMIT,
        uplink: Uplink | None = None,
    ) -> list[Effect]:
        """A local step of size alpha has made this model: send frames on the links where the trigger fires.

        `decide(known)` returns for each model in `known`, which neighbours know, the codec's threshold of coordinates;
        None to send nothing. `pays(bits)` pays for these bits on the air and returns whether the budget allowed it.
        `limit` bounds the step of a frame. With an `uplink`, the device is paced.
        """
        self.scale = min(1.0, max(LEAST_SCALE, self.scale * MOST_LOAD / self.load)) if self.load > 0 else 1.0
        self.model, self.steps, self.load, self.is_paced = model, 0, 0.0, uplink is not None
        for end in self.links.values():
            end.elapsed, end.local_steps = end.elapsed + alpha, end.local_steps + 1
        effects = self._send_frames(Sending(decide, arithmetic, pays, limit, uplink))
        self.k += 1
        return effects

    def _send_frames(self, sending: Sending) -> list[Effect]:
        """Send frames in batches: a batch is encoded before any of its frames is sent, and is paid as a whole.

        All frames are one batch, unless the law settles or the device is paced: then each frame is a batch of its own
        and contains the steps of the frames before it. A paced device sends acknowledgements last.
        """
        free, uplink, effects, planned = self._links_to_send_on(sending.uplink), sending.uplink, list[Effect](), 0
        known = {neighbour: end.known_model() for neighbour, end in free}
        models = {id(model): model for model in known.values()}  # several neighbours may know the same array
        decided = dict(zip(models, sending.decide(list(models.values())), strict=True))
        is_single = self.law.settles or uplink is not None
        for batch in [[one] for one in free] if is_single else [free]:
            thresholds = [decided[id(known[neighbour])] for neighbour, _ in batch]
            encoded = self._encoded(batch, thresholds, sending, planned)
            bits = sum(made.bits for *_, made in encoded)
            if encoded and (sending.pays is None or sending.pays(bits / len(self.links))):
                frames = [self._send(neighbour, end, made, sending) for neighbour, end, made in encoded]
                planned += sum(bytes_of(frame.message) for frame in frames)
                effects += frames
        return effects if uplink is None else effects + self._send_acknowledgements(uplink, planned)

    def _links_to_send_on(self, uplink: Uplink | None) -> list[tuple[int, LinkEnd]]:
        """Return the links on which a frame may be sent now, in the order of sending.

        They are ordered by neighbour. A paced device begins with the neighbours that have waited longest.
        """
        if uplink is not None and uplink.chooses_links:
            self.about = describe(self.about, uplink, tuple(sorted(self.links)), self.frame_bytes)
            self.choose_links()
        ends = [] if self.silent else sorted(self.links.items())
        free = [(neighbour, end) for neighbour, end in ends if end.may_send(self.law.window)]
        if uplink is None:
            return free
        return sorted((one for one in free if self._may_send_to(*one, uplink)), key=_longest_waiting_first)

    def _may_send_to(self, neighbour: int, end: LinkEnd, uplink: Uplink) -> bool:
        """Return whether a paced device may send to a neighbour now. A redundant link carries only descriptions."""
        if uplink.room(neighbour, 0) is None or (neighbour in self.redundant and end.about_sent == self.about):
            return False
        return end.is_new or uplink.is_due(neighbour)

    def choose_links(self) -> None:
        """Find the redundant links, from the neighbours' descriptions of themselves."""
        known = {neighbour: end.about for neighbour, end in self.links.items() if end.about is not None}
        self.redundant = set() if self.about is None else redundant_links(self.number, self.about, known)

    def _encoded(
        self, batch: Iterable[tuple[int, LinkEnd]], thresholds: Iterable[float | None], sending: Sending, planned: int
    ) -> list[tuple[int, LinkEnd, Encoded]]:
        """Encode the frames of a batch, after `planned` bytes; one that several neighbours know alike is encoded once.

        The first frame to a neighbour that the device has just met is sent whatever the trigger says.
        """
        found: list[tuple[int, LinkEnd, Encoded]] = []
        shared: dict[tuple[int, float], Encoded | None] = {}
        for (neighbour, end), decided in zip(batch, thresholds, strict=True):
            room, is_redundant = None, neighbour in self.redundant
            if sending.uplink is not None:
                room = sending.uplink.room(neighbour, planned)
                if room is None:
                    continue
                room = min(room, 8 * FRAME_HEADER_BYTES) if is_redundant else room
            threshold = 0.0 if end.is_new or is_redundant else decided
            end.is_new = False  # the first chance to send is over, taken or not
            if threshold is None:
                continue
            key = id(end.known_there), threshold
            if key not in shared:
                shared[key] = self._encode(end, threshold, sending, room)
            if (made := shared[key]) is not None:
                found.append((neighbour, end, made))
        return found

    def _encode(self, end: LinkEnd, threshold: float, sending: Sending, room: int | None) -> Encoded | None:
        model = self.model if self.pull is None else self.model + self.pull
        target = model if end.moved_by_other is None else model - end.link_steps
        return sending.arithmetic.encode(target, end.known_there, threshold, room)

    def _send_acknowledgements(self, uplink: Uplink, planned: int) -> list[Effect]:
        """Acknowledge the frames of neighbours that got no frame, as long as the uplink is idle."""
        effects: list[Effect] = []
        for neighbour, end in sorted(self.links.items(), key=_longest_waiting_first):
            if end.must_acknowledge and uplink.room(neighbour, planned) is not None:
                planned += ACKNOWLEDGEMENT_BYTES
                effects.append(self._acknowledgement(neighbour, end))
        return effects

    def _send(self, neighbour: int, end: LinkEnd, made: Encoded, sending: Sending) -> Send:
        weight, learning = self._weight(end, made, sending.limit), self._learning(end)
        if self.law.settles and not end.has_news:
            weight = learning = 0.0
        assert end.partner is not None
        frame = Frame(
            end.token, end.partner, end.last_sent + 1, end.last_received, weight, learning, made.payload, made.bits,
            self.k, end.last_received, self.degree, None if self.about == end.about_sent else self.about,
        )  # fmt: skip
        self.frame_bytes = smoothed(self.frame_bytes or None, bytes_of(frame))
        end.degree_sent, end.sent_at_k = self.degree, self.k
        self.commit_sent(end, frame, made.known, sending.arithmetic)
        return Send(neighbour, frame)

    def _weight(self, end: LinkEnd, made: Encoded, limit: StepLimit) -> float:
        """Return c."""
        degree = max(1, self.degree, end.other_degree)
        weight = self.law.rate * (1.0 / (1.0 + degree))
        weight = min(weight * self.scale, MOST_LOAD / 2) if self.law.settles else min(weight, 0.5 / degree)
        link = end.link_steps
        own, other = (made.known, end.known_here) if link is None else (made.known + link, end.known_here - link)
        return weight * factor_of(limit, own, other)

    def _learning(self, end: LinkEnd) -> float:
        """Return l = theta N(k) / A."""
        elapsed = end.elapsed + sum(one.elapsed for one in end.pending)
        local_steps = end.local_steps + sum(one.local_steps for one in end.pending)
        counted = steps_that_count(end.local_steps, local_steps, self.law.most_steps, self.k)
        return float(self.law.theta * counted / elapsed)

    # The two halves of a step

    def commit_sent(self, end: LinkEnd, frame: Frame, known: Floats, arithmetic: Arithmetic) -> None:
        """Make the sender's half of a frame's step. A node that was killed makes it again from its journal.

        A frame is sent only while at most `window` older versions are kept, so versions before that are dropped.
        Replaying the journal repeats this, so the journal does not record it.
        """
        end.note_usable(frame.number - self.law.window)
        moved, link = end.versions[-1].moved, end.link_steps
        end.pending.append(Pending(frame, end.elapsed, end.local_steps))
        end.elapsed, end.local_steps, end.has_news, end.must_acknowledge = 0.0, 0, False, False
        end.pending_known_here = end.known_here if moved is None else None
        step = self._add_step(end, frame, end.known_here, known, link, arithmetic)
        end.versions.append(Version(known, moved if step is None else moved + step))
        end.last_sent, end.about_sent = frame.number, frame.about or end.about_sent

    def commit_received(self, end: LinkEnd, frame: Frame, known_here: Floats, arithmetic: Arithmetic) -> None:
        """Make the receiver's half of a frame's step."""
        used = end.version(frame.used)
        assert used is not None
        link = None if used.moved is None else used.moved - end.moved_by_other
        end.known_here, end.last_received, end.has_news, end.must_acknowledge = known_here, frame.number, True, True
        step = self._add_step(end, frame, known_here, used.known, link, arithmetic)
        if step is not None:
            end.moved_by_other = end.moved_by_other - step
        end.note_usable(frame.used)
        if frame.about is not None:
            end.about = frame.about
            self.choose_links()

    def _add_step(
        self, end: LinkEnd, frame: Frame, plus: Floats, minus: Floats, link: Floats | None, arithmetic: Arithmetic
    ) -> Floats | None:
        """Add the step of a frame to `pull` and h. Returns the step if the law settles and the weight is not 0."""
        if link is not None and frame.weight == 0:
            return None
        if self.pull is None:
            self.pull = np.zeros_like(plus)
            self.learned = np.zeros_like(plus) if self.law.theta else None
        self.steps, self.load = self.steps + 1, self.load + (0.0 if link is None else frame.weight)
        return arithmetic.add_step(
            (self.pull, self.learned, end.link_correction), frame.weight, frame.learning, plus, minus, link
        )

    def take_pull(self) -> tuple[Floats, Floats | None] | None:
        """Return f and what h has learned since the last call, and start both anew; None if no step was made.

        The driver adds them, x += f and h += learned, and sets `model`.
        """
        if self.pull is None:
            return None
        found, self.pull, self.learned = (self.pull, self.learned), None, None
        return found

    # Messages

    def received(self, neighbour: int, message: Message, arithmetic: Arithmetic) -> list[Effect]:
        """A message has arrived."""
        end = self.links.get(neighbour)
        if end is None:
            return []
        if isinstance(message, Introduction):
            return self._on_introduction(neighbour, end, message)
        if (message.source, message.target) != (end.partner, end.token):  # from before a link came up again
            if message.target == end.token:
                end.introduced_to = message.source  # the message has overtaken the introduction of its sender
            return []
        if isinstance(message, Frame):
            return self._on_frame(neighbour, end, message, arithmetic)
        end.other_degree = message.degree
        self._note_acknowledged(end, message)
        if self.is_paced and not self.silent:  # it goes with the next frame, or when the uplink is idle
            is_news = end.degree_sent != self.degree and end.known_here is not None
            end.must_acknowledge = end.must_acknowledge or is_news
            return []
        return self._degree_update(neighbour, end)

    def _on_frame(self, neighbour: int, end: LinkEnd, frame: Frame, arithmetic: Arithmetic) -> list[Effect]:
        if end.known_here is None or frame.number > end.last_received + 1:
            if end.last_received < frame.number <= end.last_received + self.law.window:
                end.out_of_order[frame.number] = frame
            return []
        is_repeated, last, effects = frame.number <= end.last_received, frame, list[Effect]()
        if not is_repeated:
            if (problem := self._make_step(end, frame, arithmetic)) is not None:
                return [Violation(neighbour, problem)]
            effects.append(Committed(neighbour, frame))
        while (following := end.out_of_order.pop(end.last_received + 1, None)) is not None:
            if self._make_step(end, following, arithmetic) is not None:
                break  # it is not acknowledged, so it is sent again, and refused then
            last = following
            effects.append(Committed(neighbour, following))
        end.other_degree = last.degree
        for message in (frame, last):
            self._note_acknowledged(end, message)
        if is_repeated or self.silent or not self.is_paced:
            effects.append(self._acknowledgement(neighbour, end))
        return effects

    def _make_step(self, end: LinkEnd, frame: Frame, arithmetic: Arithmetic) -> str | None:
        """Make the step of the next frame. Returns what is wrong with the frame, or None."""
        if end.version(frame.used) is None:
            return f"a step with version {frame.used} of a model of version {end.last_sent}"
        if not (0 <= frame.weight <= 0.5 and 0 <= frame.learning < np.inf):
            return f"a step with weight {frame.weight} and learning {frame.learning}"
        if frame.about is not None and not 0 < frame.about.rate < np.inf:
            return f"a bandwidth of {frame.about.rate}"
        try:
            known_here = arithmetic.decode(frame.payload, end.known_here)
        except ValueError as error:
            return str(error)
        self.commit_received(end, frame, known_here, arithmetic)
        return None

    def _note_acknowledged(self, end: LinkEnd, message: Acknowledgement | Frame) -> None:
        """Note which versions the other end has, and which its frames may still use."""
        acknowledged = min(message.acknowledged, end.last_sent)
        end.acknowledged = max(end.acknowledged, acknowledged)
        end.usable_after = max(end.usable_after, (message.sent, acknowledged))
        end.note_usable()

    def _on_introduction(self, neighbour: int, end: LinkEnd, message: Introduction) -> list[Effect]:
        before, effects = end.partner, list[Effect]()
        if before == message.source and (end.known_here is not None or message.model is None):  # it is repeated
            end.other_degree = message.degree
            return [] if end.known_here is None else [self._acknowledgement(neighbour, end)]
        if before is not None and before != message.source:
            if message.source[1] == before[1] and message.source[2] < before[2]:
                return []  # a later introduction has overtaken this one
            if end.is_fresh:  # keep the token: if both ends took new ones, they would do so for ever
                end.acknowledged, end.oldest_usable, end.usable_after, end.degree_sent = -1, 0, (0, 0), -1
                end.must_acknowledge = False  # what was due was for the token that the other end had before
                end.out_of_order.clear()
                effects += [] if end.known_there is None else [self._introduction(neighbour, end)]
            else:
                effects += self.link_down(neighbour)
                self.link_up(neighbour)
                end = self.links[neighbour]
        end.partner, end.other_degree = message.source, message.degree
        if end.introduced_to == end.partner:
            end.acknowledged = max(end.acknowledged, 0)
        self._begin_known_here(end, message.model)
        if self.model is None:
            return effects + self._start_if_possible(message)
        if end.known_there is None:
            effects.append(self._introduction(neighbour, end))
        if end.known_here is not None:
            effects.append(self._acknowledgement(neighbour, end))
        return effects

    def _start_if_possible(self, message: Introduction) -> list[Effect]:
        """Start a device that waits for a model from the first model that arrives, at its sender's iteration."""
        if message.model is None:
            return []
        self.model, self.k = message.model, message.k
        effects: list[Effect] = [Start()]
        for neighbour, end in self.links.items():
            if self.law.keeps_link_correction and self.law.theta:
                end.link_correction = np.zeros_like(self.model)
            effects.append(self._introduction(neighbour, end))
            if end.known_here is not None:
                effects.append(self._acknowledgement(neighbour, end))
        return effects

    def retry(self, neighbour: int, *, all_frames: bool = False) -> list[Effect]:
        """A neighbour has been silent for longer than a round trip: send again what it has not acknowledged.

        That is the oldest frame only, because later ones may have arrived; with `all_frames`, all of them.
        """
        end = self.links.get(neighbour)
        if end is None:
            return []
        if end.pending:
            again = end.pending if all_frames else end.pending[:1]
            return [Send(neighbour, self._again(end, one.frame)) for one in again]
        return [self._introduction(neighbour, end)] if end.acknowledged < 0 else []

    def _again(self, end: LinkEnd, frame: Frame) -> Frame:
        """Return a frame to send again.

        Only the last frame may acknowledge what has arrived since: frames after an earlier one used older versions.
        """
        acknowledged = end.last_received if frame.number == end.last_sent else frame.acknowledged
        return frame._replace(acknowledged=acknowledged, degree=self.degree)

    def fall_silent(self) -> list[Effect]:
        """Stop sending new frames, and send the acknowledgements that would have gone with the next frame."""
        self.silent = True
        return [self._acknowledgement(neighbour, end) for neighbour, end in self.links.items() if end.must_acknowledge]

    def acknowledge(self, neighbour: int) -> list[Effect]:
        """Send the last acknowledgement and the number of neighbours again, in case the previous message was lost."""
        end = self.links.get(neighbour)
        return [] if end is None or end.known_here is None else [self._acknowledgement(neighbour, end)]

    def awaits(self, neighbour: int) -> bool:
        """Return whether something sent to a neighbour is not acknowledged."""
        end = self.links.get(neighbour)
        return end is not None and end.acknowledged < end.last_sent


def _longest_waiting_first(link: tuple[int, LinkEnd]) -> tuple[int, int]:
    return link[1].sent_at_k, link[0]
