"""What a driver does for devices with half-steps, with a witness beside it: models, h, mail and journals.

A device's model and h belong to the driver. After a call of the core the driver carries out its effects, and sooner or
later adds what links have added: x += f, h += learned. What a message claims is in the journal before the message
leaves. Frames that wait for others are in no journal. Nothing here draws a random number.
"""

from __future__ import annotations

import pickle
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from hostile_schedules import Broken, Link

from efhc.base.arrays import Floats
from efhc.core.half_step_messages import Committed, Effect, Frame, Introduction, Message, Send, Start, TakeBack
from efhc.core.half_steps import Arithmetic, Encoded, HalfSteps, LinkLaw
from efhc.core.uplink import Uplink
from efhc.strategies.parts.codecs import CodecPolicy, FullCodec
from half_steps.witness import Witness

NUMBER_BITS = 64


class Models(Arithmetic):
    """A payload is what is known after it; a message of few bits changes few coordinates, those that differ most."""

    def encode(self, model: Floats, told: Floats, threshold: float, most: int | None = None) -> Encoded | None:
        count = len(model) if most is None else most // NUMBER_BITS
        places = np.argsort(-np.abs(model - told), kind="stable")[:count]
        sent = told.copy()
        sent[places] = model[places]
        return self.encode_all(model if count >= len(model) else sent, told, threshold) if count else None

    def encode_all(self, model: Floats, told: Floats, threshold: float) -> Encoded | None:
        return super().encode(model, told, threshold)


class Differences(Models):
    """A payload is a codec's message, which is applied to what the receiver knows."""

    def __init__(self, codec: CodecPolicy) -> None:
        super().__init__(codec.send)
        self.codec = codec

    def encode_all(self, model: Floats, told: Floats, threshold: float) -> Encoded | None:
        message = self.codec.message(model, told, threshold)
        return None if message is None else Encoded(message.applied_to(told), message, message.bits)

    def decode(self, payload: Any, heard: Floats) -> Floats:
        after: Floats = payload.applied_to(heard)
        return after


class Journal:
    """A copy of a device's state, and the frames since: sent, with what was told, or received, with what was heard."""

    def __init__(self, core: HalfSteps, x: Floats | None, h: Floats) -> None:
        self.copy = pickle.dumps((core, x, h))
        self.records: list[tuple[str, int, Frame, Floats]] = []

    def write(self, kind: str, neighbour: int, frame: Frame, version: Floats) -> None:
        self.records.append((kind, neighbour, frame, version))

    def rebuilt(self, arithmetic: Arithmetic) -> tuple[HalfSteps, Floats | None, Floats]:
        """Return the device, its model and its h."""
        core, x, h = pickle.loads(self.copy)
        for kind, neighbour, frame, version in self.records:
            commit = core.commit_sent if kind == "sent" else core.commit_received
            commit(core.links[neighbour], frame, version, arithmetic)
        return core, x, h


class Driver:
    """Devices, and the messages between them, which wait in `mail` until someone calls `receive`.

    Default: whole models are sent, and a payload is the model itself.
    """

    def __init__(
        self,
        parameters: int,
        law: LinkLaw,
        *,
        codec: CodecPolicy | None = None,
        differences: bool = False,
        whole: bool = True,
        journalled: bool = True,
        trace: Callable[..., None] | None = None,
    ) -> None:
        self.parameters, self.law = parameters, law
        codec = codec or FullCodec()
        self.arithmetic = Differences(codec) if differences else Models(codec.send)
        self.witness = Witness(parameters, law, self.arithmetic.decode, whole=whole)
        self.trace = trace
        self.cores: dict[int, HalfSteps] = {}
        self.sessions: defaultdict[int, int] = defaultdict(int)
        """By device: how often it was started again."""
        self.x: dict[int, Floats | None] = {}
        self.h: dict[int, Floats] = {}
        self.journalled = journalled
        self.journals: dict[int, Journal] = {}
        self.mail: defaultdict[Link, list[Message]] = defaultdict(list)

    def say(self, *words: object) -> None:
        if self.trace:
            self.trace(*words)

    # Devices

    def create(self, i: int, model: Floats | None) -> None:
        """A new device; without a model it waits for one."""
        self.cores[i] = HalfSteps(i, self.sessions[i], self.law, model)
        self.x[i], self.h[i] = model, np.zeros(self.parameters)
        if model is not None:
            self.witness.start(i, model)
        self.keep(i)

    def forget(self, i: int, model: Floats | None) -> None:
        """Device i loses its state and starts again. Its neighbours do not notice until it introduces itself."""
        self.say(f"{i} forgets")
        neighbours = sorted(self.cores[i].links)
        self.sessions[i] += 1
        self.witness.forgot(i)
        self.create(i, model)
        for j in neighbours:
            self.cores[i].link_up(j)
            self.witness.link_up(i, j)
        self.react(i, self.cores[i].announce(), keep=True)

    def crash(self, i: int) -> None:
        """Device i goes back to its journal."""
        self.say(f"{i} crashes")
        self.cores[i], self.x[i], self.h[i] = self.journals[i].rebuilt(self.arithmetic)
        self.sessions[i] += 1
        self.cores[i].session = self.sessions[i]
        self.witness.crashed(i, self.x[i])

    def finish(self, i: int) -> None:
        """Device i sends no new frames any more."""
        self.react(i, self.cores[i].fall_silent(), keep=True)
        self.witness.owes_nothing(i)

    def keep(self, i: int) -> None:
        """Begin a device's journal anew."""
        if self.journalled:
            self.journals[i] = Journal(self.cores[i], self.x[i], self.h[i])
            self.witness.keeps(i)

    def write(self, i: int, kind: str, neighbour: int, frame: Frame, version: Floats) -> None:
        if self.journalled:
            self.journals[i].write(kind, neighbour, frame, version)

    # Events

    def react(self, i: int, effects: Sequence[Effect], *, keep: bool = False, forged: bool = False) -> None:
        """Carry out what device i wants; with `keep`, its journal begins anew before a message leaves."""
        core = self.cores[i]
        self.witness.chooses(i, core.redundant, core.about)
        for effect in effects:
            if isinstance(effect, TakeBack):
                self.h[i] = self.h[i] - effect.link_correction
            elif isinstance(effect, Start):
                self.x[i] = core.model
                self.witness.start(i, core.model)
        self.witness.reacted(i, effects, forged=forged)
        if keep:
            self.keep(i)
        for effect in effects:
            self.say(f"      {i}:", effect)
            if isinstance(effect, Send):
                self.mail[i, effect.neighbour].append(effect.message)

    def absorb(self, i: int) -> None:
        """x += f, h += learned"""
        core, x = self.cores[i], self.x[i]
        pulled = core.take_pull()
        if pulled is not None:
            assert x is not None
            self.x[i] = core.model = x = x + pulled[0]
            if pulled[1] is not None:
                self.h[i] = self.h[i] + pulled[1]
        if x is not None:
            self.witness.holds(i, x, self.h[i])

    def step(
        self,
        i: int,
        alpha: float,
        gradient: Floats,
        decide: Callable[[Sequence[Floats]], Sequence[float | None]] = lambda told: [0.0] * len(told),
        *,
        affordable: bool = True,
        uplink: Uplink | None = None,
    ) -> None:
        """x <- x - alpha (g - h), and what is sent of it. Default: all links that are free fire."""
        self.absorb(i)
        core, x, h = self.cores[i], self.x[i], self.h[i]
        if x is None:
            return
        self.witness.local_step(i, alpha, gradient, h, paced=uplink is not None)
        self.x[i] = self.witness.models[i] = y = x - alpha * (gradient - h)
        self.say(f"  {i}: local step to", y)
        effects = core.stepped(y, alpha, decide, self.arithmetic, lambda bits: affordable, uplink=uplink)
        for effect in effects:
            if isinstance(effect, Send) and isinstance(effect.message, Frame):
                if core.silent or not affordable:
                    raise Broken("silent" if core.silent else "afford", f"device {i}: {effect}")
                self.write(i, "sent", effect.neighbour, effect.message, core.links[effect.neighbour].known_there)
        self.react(i, effects)

    def receive(self, i: int, j: int, message: Message) -> None:
        """Device i receives a message of j."""
        core = self.cores.get(i)
        if core is None:
            return
        self.say(f"  {i}: from {j}:", message)
        self.witness.delivered(i, j, message)
        end = core.links.get(j)
        heard = None if end is None else end.known_here
        effects = core.received(j, message, self.arithmetic)
        for effect in effects:
            if isinstance(effect, Committed):
                assert heard is not None
                heard = self.arithmetic.decode(effect.frame.payload, heard)
                self.write(i, "received", j, effect.frame, heard)
        self.react(i, effects, keep=isinstance(message, Introduction))
        is_here = end is not None and isinstance(message, Frame) and message.number <= end.last_received
        if is_here and (core.silent or not core.is_paced):
            self.witness.owes_nothing(i, [j])

    def deliver(self, i: int, j: int, place: int = 0) -> Message:
        """A message of device i arrives at j; returns the message."""
        message = self.mail[i, j].pop(place)
        self.receive(j, i, message)
        return message

    def link_up(self, i: int, j: int) -> None:
        """Device i notices that the link to j is up."""
        self.say(f"  {i}: link to {j} is up")
        self.cores[i].link_up(j)
        self.witness.link_up(i, j)
        self.react(i, self.cores[i].announce(), keep=True)

    def link_down(self, i: int, j: int) -> list[Effect]:
        """Device i notices that the link to j is down; returns what it reports."""
        self.say(f"  {i}: link to {j} is down")
        effects = self.cores[i].link_down(j)
        self.react(i, effects)
        self.witness.link_down(i, j)
        self.react(i, self.cores[i].announce(), keep=True)
        return effects

    def start_alike(self, links: Sequence[Link]) -> None:
        """These links are up from the start, and both ends of each know their common model."""
        for i, j in (end for link in links for end in (link, link[::-1])):
            self.cores[i].link_up(j, shared_start=self.cores[i].model)
            self.witness.link_up(i, j, shared_start=True)
        for i in sorted({i for link in links for i in link}):
            self.react(i, self.cores[i].announce(), keep=True)

    def retry(self, i: int, j: int, *, all_frames: bool = False) -> None:
        self.react(i, self.cores[i].retry(j, all_frames=all_frames))

    def check_all(self) -> None:
        for i in self.cores:
            self.absorb(i)
        self.witness.check_sum()
