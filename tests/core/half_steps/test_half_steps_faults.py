"""The fuzz can fail: each planted fault breaks a law within 1,000 schedules; a few are looked for where they matter."""

from __future__ import annotations

import numpy as np
import pytest
from hostile_schedules import Faults, assert_found, replaces

from efhc.core import uplink
from efhc.core.half_step_messages import Frame, TakeBack
from efhc.core.half_steps import HalfSteps, LinkEnd, LinkLaw
from half_steps import hostile
from half_steps.driver import Driver, Journal


@pytest.fixture
def plant(monkeypatch):
    """Replaces a method: `plant(name, make)`, where make(the right method) is the wrong one."""

    def replace_method(name, make, of=HalfSteps):
        monkeypatch.setattr(of, name, make(getattr(of, name)))

    return replace_method


fault = Faults()


# The eight of half-steps


@fault("step")
@replaces("_on_frame")
def duplicate_applied(right, self, neighbour, end, frame, arithmetic):
    if frame.number == end.last_received and end.version(frame.used) is not None:
        self.commit_received(end, frame, end.known_here, arithmetic)
    return right(self, neighbour, end, frame, arithmetic)


@fault("step")
@replaces("commit_received")
def wrong_version_used(right, self, end, frame, heard, arithmetic):
    """The receiver computes with what it has told last, whatever the sender knew."""
    right(self, end, frame._replace(used=end.last_sent), heard, arithmetic)


@fault("content")
@replaces("_again")
def resend_encoded_anew(right, self, end, frame):
    """What is sent again is made of the model of today, under the old number."""
    frame = right(self, end, frame)
    return frame._replace(payload=self.model) if isinstance(frame.payload, np.ndarray) else frame


@fault("learn")
@replaces("commit_received")
def own_divisor(right, self, end, frame, heard, arithmetic):
    """The receiver divides by its own sum of alpha since its last frame."""
    learning = self.law.theta / end.elapsed if end.elapsed else frame.learning
    right(self, end, frame._replace(learning=learning), heard, arithmetic)


@fault("step")
@replaces("commit_received")
def own_weight(right, self, end, frame, heard, arithmetic):
    """The receiver takes c from the degrees that it knows."""
    degree = max(self.degree, frame.degree)
    weight = min(self.law.rate / (1 + degree), 0.5 / degree)
    right(self, end, frame._replace(weight=weight), heard, arithmetic)


@fault("claim", "violation")
@replaces("received")
def gap_accepted(right, self, neighbour, message, arithmetic):
    """A frame is taken although the one before it is missing."""
    end = self.links.get(neighbour)
    if end is not None and isinstance(message, Frame) and message.source == end.partner:
        end.last_received = max(end.last_received, message.number - 1)
    return right(self, neighbour, message, arithmetic)


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


@fault("link_correction", "learn")
@replaces("link_down")
def lambda_kept(right, self, neighbour):
    """h keeps what a link has taught it that is over."""
    return [effect for effect in right(self, neighbour) if not isinstance(effect, TakeBack)]


# Those of the exchange that have a counterpart here; `duplicate_applied` is one of them, too


def may_send_if(condition):
    """A condition to send on a link on which both ends know each other."""

    def may_send(self, window):
        knows_both = self.partner is not None and self.known_here is not None and self.acknowledged >= 0
        return knows_both and condition(self, window)

    return lambda right: may_send


@fault("window")
def window_ignored(plant):
    plant("may_send", may_send_if(lambda end, window: True), LinkEnd)


@fault("order")
def sent_before_what_the_other_had_sent_is_received(plant):
    plant("may_send", may_send_if(lambda end, window: end.last_sent - end.acknowledged < window), LinkEnd)


@fault("rest", "unresolved")
@replaces("_send")
def unacknowledged_frame_forgotten(right, self, neighbour, end, *rest):
    effect = right(self, neighbour, end, *rest)
    end.pending = []
    return effect


RECONNECTS = ("overtake", "cut", "ragged", "forget", "join")
"""Faults of networks whose links come up again and again."""
LATE = ("overtake", "lose", "hurry")
"""Faults of networks in which much is sent again."""


@fault("violation", "step", "claim", faults=RECONNECTS)
@replaces("received")
def frame_with_old_tokens_applied(right, self, neighbour, message, arithmetic):
    end = self.links.get(neighbour)
    if end is not None and end.partner is not None and isinstance(message, Frame):
        message = message._replace(source=end.partner, target=end.token)
    return right(self, neighbour, message, arithmetic)


@fault("rest")
@replaces("received")
def repeated_frame_not_acknowledged(right, self, neighbour, message, arithmetic):
    end = self.links.get(neighbour)
    is_old = end is not None and isinstance(message, Frame) and message.number <= end.last_received
    effects = right(self, neighbour, message, arithmetic)
    return [] if is_old and self.links.get(neighbour) is end else effects


# And more: the first three were faults of the core once


@fault("rest")
def both_ends_begin_anew_for_ever(plant):
    plant("is_fresh", lambda right: property(lambda self: False), LinkEnd)


@fault("claim", faults=RECONNECTS)
@replaces("_degree_update")
def degree_told_before_the_introduction_is_here(right, self, neighbour, end):
    is_news = end.degree_sent != self.degree and end.partner is not None
    return [self._acknowledgement(neighbour, end)] if is_news else []


@fault("unresolved")
@replaces("steps_after", LinkEnd)
def unresolved_step_with_what_is_known_today(right, self, received):
    frames = [one.frame for one in self.pending if one.frame.number > received]
    return sum(frame.weight * (self.known_here - self.known_there) for frame in frames)


@fault("learning")
@replaces("commit_sent")
def divisor_kept(right, self, end, *rest):
    """The sum of alpha goes on after a frame."""
    elapsed = end.elapsed
    right(self, end, *rest)
    end.elapsed = elapsed


@fault("silent")
@replaces("stepped")
def finished_device_sends(right, self, *arguments, **more):
    silent, self.silent = self.silent, False
    effects = right(self, *arguments, **more)
    self.silent = silent
    return effects


# Steps that settle


@fault("step", "ends")
@replaces("_add_step")
def link_steps_with_the_wrong_sign_at_the_receiver(right, self, end, frame, plus, minus, link, arithmetic):
    turned = link if link is None or frame.source == end.token else -link
    return right(self, end, frame, plus, minus, turned, arithmetic)


@fault("step", "ends")
@replaces("commit_received")
def moved_of_the_newest_version(right, self, end, frame, heard, arithmetic):
    """The receiver takes `told` of the version that was used, and `moved` of the newest."""
    place = frame.used - end.oldest_usable
    end.versions[place] = end.versions[place]._replace(moved=end.versions[-1].moved)
    right(self, end, frame, heard, arithmetic)


@fault("step", "claim", "violation", "content")
@replaces("_on_frame")
def overtaking_frame_applied_at_once(right, self, neighbour, end, frame, arithmetic):
    if end.known_here is not None and frame.number > end.last_received + 1 and end.version(frame.used) is not None:
        end.last_received = frame.number - 1
    return right(self, neighbour, end, frame, arithmetic)


@fault("rest", "unresolved", "learning")
@replaces("_note_acknowledged")
def all_frames_forgotten_when_the_oldest_is_acknowledged(right, self, end, message):
    """A frame that was lost, and overtaken, is never sent again."""
    before = len(end.pending)
    right(self, end, message)
    if len(end.pending) < before:
        end.pending = []


@fault("violation", "order")
@replaces("note_usable", LinkEnd)
def version_dropped_too_early(right, self, used=0):
    """What the other end has acknowledged is not kept, although frames are on their way that used less."""
    right(self, max(used, self.acknowledged))


@fault("violation", faults=LATE, law=LinkLaw(1.0, settles=True, window=4))
@replaces("_again")
def frame_that_is_sent_again_acknowledges_what_came_since(right, self, end, frame):
    """Frames after it have used less: this was a fault of the core once."""
    return right(self, end, frame)._replace(acknowledged=end.last_received)


@fault("window", "rest")
def sent_before_the_introduction_is_acknowledged(plant):
    """If the introduction is lost, only frames are sent again: this was a fault of the core once."""

    def may_send(self, window):
        return self.partner is not None and self.known_here is not None and self.last_sent - self.oldest_usable < window

    plant("may_send", lambda right: may_send, LinkEnd)


@fault("versions", "unresolved")
@replaces("commit_sent")
def journal_keeps_all_versions(right, self, end, frame, *rest):
    """This was a fault of the core once: the other end has all but the last ones when a frame is sent."""
    law, self.law = self.law, self.law._replace(window=10**6)
    right(self, end, frame, *rest)
    self.law = law


@fault("news")
@replaces("commit_sent")
def step_without_news(right, self, end, *rest):
    right(self, end, *rest)
    end.has_news = True


@fault("step")
@replaces("commit_sent")
def scale_ignored_by_the_sender(right, self, end, frame, *rest):
    """The frame states the scaled weight, and the sender itself moves by the whole one."""
    right(self, end, frame._replace(weight=frame.weight / self.scale), *rest)
    last = end.pending[-1]
    end.pending[-1] = last._replace(frame=frame)


@fault("weight")
@replaces("commit_received")
def scale_counts_own_frames_only(right, self, *rest):
    load = self.load
    right(self, *rest)
    self.load = load


@fault("learning")
@replaces("_send")
def local_steps_without_a_limit(right, self, *rest):
    law, self.law = self.law, self.law._replace(most_steps=10**6)
    effect = right(self, *rest)
    self.law = law
    return effect


# Pacing


@fault("owes")
@replaces("fall_silent")
def owed_acknowledgement_forgotten_when_the_device_falls_silent(right, self):
    """This was a fault of the core once."""
    right(self)
    return []


@fault("about")
@replaces("_send")
def about_not_sent_again_after_it_changed(right, self, neighbour, end, *rest):
    about, self.about = self.about, end.about_sent or self.about
    effect = right(self, neighbour, end, *rest)
    self.about = about
    return effect


@fault("about")
@replaces("_may_send_to")
def about_not_told_to_those_left_out(right, self, neighbour, *rest):
    """This was a fault of the core once."""
    return neighbour not in self.redundant and right(self, neighbour, *rest)


@fault("choice", "about", faults=("crash",))
def about_lost_with_a_crash(plant):
    """The journal has it, and a frame of the journal does not say so: this was a fault of the core once."""

    def make(right):
        def commit_received(self, end, frame, *rest):
            about = end.about
            right(self, end, frame, *rest)
            end.about = about if IS_REPLAYED[0] else end.about

        return commit_received

    def make_rebuilt(right):
        def rebuilt(self, arithmetic):
            IS_REPLAYED[0] = True
            try:
                return right(self, arithmetic)
            finally:
                IS_REPLAYED[0] = False

        return rebuilt

    plant("commit_received", make)
    plant("rebuilt", make_rebuilt, Journal)


IS_REPLAYED = [False]


@fault("choice")
@replaces("_rank", uplink)
def ties_left_out_on_all_sides(right, i, rate_i, j, rate_j):
    """Of equal links none is better: with ">=" all three of a triangle would go."""
    return *right(i, rate_i, j, rate_j)[:2], 0, 0


@fault("redundant")
@replaces("_may_send_to")
def frames_to_those_left_out(right, self, neighbour, end, uplink):
    return end.is_new or uplink.is_due(neighbour)


@fault("known")
@replaces("_encode")
def frames_that_tell_nothing_of_those_before(right, self, *rest):
    pull, self.pull = self.pull, None
    made = right(self, *rest)
    self.pull = pull
    return made


@pytest.mark.parametrize("name", fault)
def test_a_planted_fault_is_found(name, plant):
    assert_found(fault[name], plant, hostile)


def test_no_fault_is_found_where_none_is():
    for schedule in range(100):
        hostile.run(schedule)
