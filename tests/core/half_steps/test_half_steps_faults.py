"""The fuzz can fail: each planted fault breaks a law within 1,000 schedules."""

from __future__ import annotations

import numpy as np
import pytest

from efhc.core.half_steps import Acknowledgement, Frame, HalfSteps, LinkEnd, Send, TakeBack, Unresolved
from half_steps import hostile
from half_steps.driver import Driver
from half_steps.witness import Broken

SCHEDULES = 1000


@pytest.fixture
def plant(monkeypatch):
    """Replaces a method: `plant(name, make)`, where make(the right method) is the wrong one."""

    def replace_method(name, make, of=HalfSteps):
        monkeypatch.setattr(of, name, make(getattr(of, name)))

    return replace_method


FAULTS = {}


def fault(*laws):
    """A planted fault, and the laws of which it may break one."""

    def register(function):
        FAULTS[function.__name__] = function, laws
        return function

    return register


# The eight of half-steps


@fault("step")
def duplicate_applied(plant):
    def make(right):
        def make_step(self, end, frame, arithmetic):
            if frame.number == end.inn and frame.used in (end.out, end.out - 1) and end.told_before is not None:
                self.commit_received(end, frame, end.heard, arithmetic)
            return right(self, end, frame, arithmetic)

        return make_step

    plant("_make_step", make)


@fault("step")
def wrong_version_used(plant):
    """The receiver computes with what it has told last, whatever the sender knew."""

    def make(right):
        def commit_received(self, end, frame, heard, arithmetic):
            right(self, end, frame._replace(used=end.out), heard, arithmetic)

        return commit_received

    plant("commit_received", make)


@fault("content")
def resend_encoded_anew(plant):
    """What is sent again is made of the model of today, under the old number."""

    def make(right):
        def retry(self, neighbour):
            effects = right(self, neighbour)
            end = self.links.get(neighbour)
            if end is None or end.pending is None or not isinstance(end.pending.payload, np.ndarray):
                return effects
            end.pending = end.pending._replace(payload=self.model)
            return right(self, neighbour)

        return retry

    plant("retry", make)


@fault("learn")
def own_divisor(plant):
    """The receiver divides by its own sum of alpha since its last frame."""

    def make(right):
        def commit_received(self, end, frame, heard, arithmetic):
            learning = self.theta / end.elapsed if end.elapsed else frame.learning
            right(self, end, frame._replace(learning=learning), heard, arithmetic)

        return commit_received

    plant("commit_received", make)


@fault("step")
def own_weight(plant):
    """The receiver takes c from the degrees that it knows."""

    def make(right):
        def commit_received(self, end, frame, heard, arithmetic):
            degree = max(self.degree, frame.degree)
            weight = min(self.rate / (1 + degree), 0.5 / degree)
            right(self, end, frame._replace(weight=weight), heard, arithmetic)

        return commit_received

    plant("commit_received", make)


@fault("claim", "violation")
def gap_accepted(plant):
    """A frame is taken although the one before it is missing."""

    def make(right):
        def received(self, neighbour, message, arithmetic):
            end = self.links.get(neighbour)
            if end is not None and isinstance(message, Frame) and message.source == end.partner:
                end.inn = max(end.inn, message.number - 1)
            return right(self, neighbour, message, arithmetic)

        return received

    plant("received", make)


@fault("step", "sum", "claim", "content")
def journal_late(plant):
    """A frame is in the journal when the next one is, and leaves at once."""

    def make_write(right):
        def write(self, i, *record):
            late = self.__dict__.setdefault("late", {})
            if i in late:
                right(self, i, *late[i])
            late[i] = record

        return write

    def make_keep(right):
        def keep(self, i):
            self.__dict__.setdefault("late", {}).pop(i, None)
            right(self, i)

        return keep

    plant("write", make_write, Driver)
    plant("keep", make_keep, Driver)


@fault("taught", "learn")
def lambda_kept(plant):
    """h keeps what a link has taught it that is over."""

    def make(right):
        def link_down(self, neighbour):
            return [effect for effect in right(self, neighbour) if not isinstance(effect, TakeBack)]

        return link_down

    plant("link_down", make)


# Those of the exchange that have a counterpart here; `duplicate_applied` is one of them, too


@fault("step")
def step_made_when_it_is_acknowledged(plant):
    """The sender waits for the answer before it makes its half."""
    waiting = {}

    def make_add(right):
        def add_step(self, end, frame, plus, minus, arithmetic):
            if frame.source == end.token:
                waiting[frame.source, frame.target, frame.number] = plus, minus, arithmetic
            else:
                right(self, end, frame, plus, minus, arithmetic)

        return add_step

    def make_note(right):
        def note_acknowledged(self, end, message):
            frame = end.pending
            right(self, end, message)
            if frame is not None and end.pending is None:
                add(self, end, frame, *waiting.pop((frame.source, frame.target, frame.number)))

        return note_acknowledged

    add = HalfSteps._add_step
    plant("_add_step", make_add)
    plant("_note_acknowledged", make_note)


@fault("content")
def weight_from_the_degree_of_today(plant):
    """What is sent again has the weight that a new frame would have."""

    def make(right):
        def retry(self, neighbour):
            end = self.links.get(neighbour)
            if end is not None and end.pending is not None:
                degree = max(self.degree, end.degree)
                end.pending = end.pending._replace(weight=min(self.rate / (1.0 + degree), 0.5 / degree))
            return right(self, neighbour)

        return retry

    plant("retry", make)


def may_send_if(condition):
    """A condition to send on a link on which both ends know each other."""

    def may_send(self):
        return self.partner is not None and self.heard is not None and self.acknowledged >= 0 and condition(self)

    return lambda right: property(may_send)


@fault("one")
def sent_before_the_last_is_acknowledged(plant):
    plant("may_send", may_send_if(lambda end: True), LinkEnd)


@fault("order")
def sent_before_what_the_other_had_sent_is_received(plant):
    plant("may_send", may_send_if(lambda end: end.acknowledged == end.out), LinkEnd)


@fault("rest", "unresolved")
def unacknowledged_frame_forgotten(plant):
    def make(right):
        def send(self, neighbour, end, *rest):
            effect = right(self, neighbour, end, *rest)
            end.pending = None
            return effect

        return send

    plant("_send", make)


@fault("violation", "step", "claim")
def frame_of_an_earlier_life_applied(plant):
    def make(right):
        def received(self, neighbour, message, arithmetic):
            end = self.links.get(neighbour)
            if end is not None and end.partner is not None and isinstance(message, Frame):
                message = message._replace(source=end.partner, target=end.token)
            return right(self, neighbour, message, arithmetic)

        return received

    plant("received", make)


@fault("claim", "step")
def unknown_taken_for_received(plant):
    """A frame that shows a gap is acknowledged."""

    def make(right):
        def received(self, neighbour, message, arithmetic):
            end = self.links.get(neighbour)
            shows_gap = end is not None and isinstance(message, Frame) and message.number > end.inn + 1
            effects = right(self, neighbour, message, arithmetic)
            if shows_gap and (message.source, message.target) == (end.partner, end.token):
                effects.append(
                    Send(neighbour, Acknowledgement(end.token, end.partner, message.number, end.out, self.degree))
                )
            return effects

        return received

    plant("received", make)


@fault("rest")
def repeated_frame_not_acknowledged(plant):
    def make(right):
        def received(self, neighbour, message, arithmetic):
            end = self.links.get(neighbour)
            is_old = end is not None and isinstance(message, Frame) and message.number <= end.inn
            effects = right(self, neighbour, message, arithmetic)
            return [] if is_old and self.links.get(neighbour) is end else effects

        return received

    plant("received", make)


# And more: the first three were faults of the core once


@fault("rest")
def both_ends_begin_anew_for_ever(plant):
    plant("is_fresh", lambda right: property(lambda self: False), LinkEnd)


@fault("claim")
def degree_told_before_the_introduction_is_here(plant):
    def make(right):
        def tell_degree(self, neighbour, end):
            is_news = end.degree_told != self.degree and end.partner is not None
            return [self._acknowledgement(neighbour, end)] if is_news else []

        return tell_degree

    plant("_tell_degree", make)


@fault("unresolved")
def unresolved_step_with_what_is_known_today(plant):
    def make(right):
        return property(lambda self: self.pending.weight * (self.heard - self.told))

    plant("pending_step", make, LinkEnd)


@fault("unresolved")
def unresolved_not_reported(plant):
    def make(right):
        def link_down(self, neighbour):
            return [effect for effect in right(self, neighbour) if not isinstance(effect, Unresolved)]

        return link_down

    plant("link_down", make)


@fault("learning")
def divisor_kept(plant):
    """The sum of alpha goes on after a frame."""

    def make(right):
        def commit_sent(self, end, *rest):
            elapsed = end.elapsed
            right(self, end, *rest)
            end.elapsed = elapsed

        return commit_sent

    plant("commit_sent", make)


@fault("silent")
def finished_device_sends(plant):
    def make(right):
        def stepped(self, *arguments):
            silent, self.silent = self.silent, False
            effects = right(self, *arguments)
            self.silent = silent
            return effects

        return stepped

    plant("stepped", make)


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name, plant):
    plant_it, laws = FAULTS[name]
    plant_it(plant)
    schedule, broken = first_that_breaks_a_law()
    print(f"{name}: found by schedule {schedule}: {broken}")  # noqa: T201 - `pytest -rP` shows it
    assert broken.law in laws


def test_no_fault_is_found_where_none_is():
    for schedule in range(100):
        hostile.run(schedule)


def first_that_breaks_a_law():
    for schedule in range(SCHEDULES):
        try:
            hostile.run(schedule)
        except Broken as broken:
            return schedule, broken
    return pytest.fail(f"no law was broken in {SCHEDULES} schedules")
