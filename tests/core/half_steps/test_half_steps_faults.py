"""The fuzz can fail: each planted fault breaks a law within 1,000 schedules; a few are looked for where they matter."""

from __future__ import annotations

import numpy as np
import pytest

from efhc.core import half_steps, uplink
from efhc.core.half_steps import Acknowledgement, Frame, HalfSteps, LinkEnd, LinkLaw, Send, TakeBack, Unresolved
from half_steps import hostile
from half_steps.driver import Driver, Journal
from half_steps.witness import Broken

SCHEDULES = 1000


@pytest.fixture
def plant(monkeypatch):
    """Replaces a method: `plant(name, make)`, where make(the right method) is the wrong one."""

    def replace_method(name, make, of=HalfSteps):
        monkeypatch.setattr(of, name, make(getattr(of, name)))

    return replace_method


FAULTS = {}


def fault(*laws, **settings):
    """A planted fault, the laws of which it may break one, and what the network is like, by default anything."""

    def register(function):
        FAULTS[function.__name__] = function, laws, settings
        return function

    return register


# The eight of half-steps


@fault("step")
def duplicate_applied(plant):
    def make(right):
        def on_frame(self, neighbour, end, frame, arithmetic):
            if frame.number == end.inn and end.version(frame.used) is not None:
                self.commit_received(end, frame, end.heard, arithmetic)
            return right(self, neighbour, end, frame, arithmetic)

        return on_frame

    plant("_on_frame", make)


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
        def again(self, end, frame):
            frame = right(self, end, frame)
            return frame._replace(payload=self.model) if isinstance(frame.payload, np.ndarray) else frame

        return again

    plant("_again", make)


@fault("learn")
def own_divisor(plant):
    """The receiver divides by its own sum of alpha since its last frame."""

    def make(right):
        def commit_received(self, end, frame, heard, arithmetic):
            learning = self.law.theta / end.elapsed if end.elapsed else frame.learning
            right(self, end, frame._replace(learning=learning), heard, arithmetic)

        return commit_received

    plant("commit_received", make)


@fault("step")
def own_weight(plant):
    """The receiver takes c from the degrees that it knows."""

    def make(right):
        def commit_received(self, end, frame, heard, arithmetic):
            degree = max(self.degree, frame.degree)
            weight = min(self.law.rate / (1 + degree), 0.5 / degree)
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
        def add_step(self, end, frame, plus, minus, link, arithmetic):
            if frame.source == end.token and link is None:
                waiting[frame.source, frame.target, frame.number] = plus, minus, link, arithmetic
                return None
            return right(self, end, frame, plus, minus, link, arithmetic)

        return add_step

    def make_note(right):
        def note_acknowledged(self, end, message):
            frames = [one.frame for one in end.pending]
            right(self, end, message)
            for frame in frames[: len(frames) - len(end.pending)]:
                if (frame.source, frame.target, frame.number) in waiting:
                    add(self, end, frame, *waiting.pop((frame.source, frame.target, frame.number)))

        return note_acknowledged

    add = HalfSteps._add_step
    plant("_add_step", make_add)
    plant("_note_acknowledged", make_note)


@fault("content")
def weight_from_the_degree_of_today(plant):
    """What is sent again has the weight that a new frame would have."""

    def make(right):
        def again(self, end, frame):
            degree = max(1, self.degree, end.degree)
            weight = min(self.law.rate / (1.0 + degree), 0.5 / degree)
            return right(self, end, frame)._replace(weight=weight if frame.weight else 0.0)

        return again

    plant("_again", make)


def may_send_if(condition):
    """A condition to send on a link on which both ends know each other."""

    def may_send(self, window):
        knows_both = self.partner is not None and self.heard is not None and self.acknowledged >= 0
        return knows_both and condition(self, window)

    return lambda right: may_send


@fault("window")
def window_ignored(plant):
    plant("may_send", may_send_if(lambda end, window: True), LinkEnd)


@fault("order")
def sent_before_what_the_other_had_sent_is_received(plant):
    plant("may_send", may_send_if(lambda end, window: end.out - end.acknowledged < window), LinkEnd)


@fault("rest", "unresolved")
def unacknowledged_frame_forgotten(plant):
    def make(right):
        def send(self, neighbour, end, *rest):
            effect = right(self, neighbour, end, *rest)
            end.pending = []
            return effect

        return send

    plant("_send", make)


LIVES = ("overtake", "cut", "ragged", "forget", "join")
"""Faults of networks whose links have many lives."""
LATE = ("overtake", "lose", "hurry")
"""Faults of networks in which much is sent again."""


@fault("violation", "step", "claim", faults=LIVES)
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


@fault("claim", faults=LIVES)
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
        def steps_after(self, received):
            frames = [one.frame for one in self.pending if one.frame.number > received]
            return sum(frame.weight * (self.heard - self.told) for frame in frames)

        return steps_after

    plant("steps_after", make, LinkEnd)


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
        def stepped(self, *arguments, **more):
            silent, self.silent = self.silent, False
            effects = right(self, *arguments, **more)
            self.silent = silent
            return effects

        return stepped

    plant("stepped", make)


# Steps that settle


@fault("step", "ends")
def link_steps_with_the_wrong_sign_at_the_receiver(plant):
    def make(right):
        def add_step(self, end, frame, plus, minus, link, arithmetic):
            turned = link if link is None or frame.source == end.token else -link
            return right(self, end, frame, plus, minus, turned, arithmetic)

        return add_step

    plant("_add_step", make)


@fault("told", "step")
def link_steps_with_the_wrong_sign_at_both_ends(plant):
    """E = (moved of the other end) - moved, everywhere."""

    def make(right):
        return property(lambda self: None if self.heard_moved is None else self.heard_moved - self.versions[-1].moved)

    def make_add(right):
        def add_step(self, end, frame, plus, minus, link, arithmetic):
            turned = link if link is None or frame.source == end.token else -link
            return right(self, end, frame, plus, minus, turned, arithmetic)

        return add_step

    plant("link_steps", make, LinkEnd)
    plant("_add_step", make_add)


@fault("step", "ends")
def link_steps_counted_once(plant):
    """d = c ((heard - told) - E)"""

    def make(right):
        def add_step(self, end, frame, plus, minus, link, arithmetic):
            return right(self, end, frame, plus, minus, None if link is None else 0.5 * link, arithmetic)

        return add_step

    plant("_add_step", make)


@fault("step", "ends")
def moved_of_the_newest_version(plant):
    """The receiver takes `told` of the version that was used, and `moved` of the newest."""

    def make(right):
        def commit_received(self, end, frame, heard, arithmetic):
            place = frame.used - end.oldest_usable
            end.versions[place] = end.versions[place]._replace(moved=end.versions[-1].moved)
            right(self, end, frame, heard, arithmetic)

        return commit_received

    plant("commit_received", make)


@fault("step", "claim", "violation", "content")
def overtaking_frame_applied_at_once(plant):
    def make(right):
        def on_frame(self, neighbour, end, frame, arithmetic):
            if end.heard is not None and frame.number > end.inn + 1 and end.version(frame.used) is not None:
                end.inn = frame.number - 1
            return right(self, neighbour, end, frame, arithmetic)

        return on_frame

    plant("_on_frame", make)


@fault("step", "owes", "claim", "ends")
def overtaking_frames_swapped(plant):
    """The newest of the frames that wait is applied first, and takes the number of the next."""

    def make(right):
        def on_frame(self, neighbour, end, frame, arithmetic):
            if frame.number == end.inn + 1 and end.early:
                newest = max(end.early)
                frame, end.early[newest] = end.early[newest]._replace(number=frame.number), frame
                end.early[newest] = end.early[newest]._replace(number=newest)
            return right(self, neighbour, end, frame, arithmetic)

        return on_frame

    plant("_on_frame", make)


@fault("rest", "unresolved", "learning")
def all_frames_forgotten_when_the_oldest_is_acknowledged(plant):
    """A frame that was lost, and overtaken, is never sent again."""

    def make(right):
        def note_acknowledged(self, end, message):
            before = len(end.pending)
            right(self, end, message)
            if len(end.pending) < before:
                end.pending = []

        return note_acknowledged

    plant("_note_acknowledged", make)


@fault("violation", "order")
def version_dropped_too_early(plant):
    """What the other end has acknowledged is not kept, although frames are on their way that used less."""

    def make(right):
        def note_usable(self, used=0):
            right(self, max(used, self.acknowledged))

        return note_usable

    plant("note_usable", make, LinkEnd)


@fault("violation", faults=LATE, law=LinkLaw(1.0, settles=True, window=4))
def frame_that_is_sent_again_acknowledges_what_came_since(plant):
    """Frames after it have used less: this was a fault of the core once."""

    def make(right):
        def again(self, end, frame):
            return right(self, end, frame)._replace(acknowledged=end.inn)

        return again

    plant("_again", make)


@fault("window", "rest")
def sent_before_the_introduction_is_acknowledged(plant):
    """If the introduction is lost, only frames are sent again: this was a fault of the core once."""

    def may_send(self, window):
        return self.partner is not None and self.heard is not None and self.out - self.oldest_usable < window

    plant("may_send", lambda right: may_send, LinkEnd)


@fault("versions", "unresolved")
def journal_keeps_all_versions(plant):
    """This was a fault of the core once: the other end has all but the last ones when a frame is sent."""

    def make(right):
        def commit_sent(self, end, frame, *rest):
            law, self.law = self.law, self.law._replace(window=10**6)
            right(self, end, frame, *rest)
            self.law = law

        return commit_sent

    plant("commit_sent", make)


@fault("news")
def step_without_news(plant):
    def make(right):
        def commit_sent(self, end, *rest):
            right(self, end, *rest)
            end.has_news = True

        return commit_sent

    plant("commit_sent", make)


@fault("step")
def scale_ignored_by_the_sender(plant):
    """The frame states the scaled weight, and the sender itself moves by the whole one."""

    def make(right):
        def commit_sent(self, end, frame, *rest):
            right(self, end, frame._replace(weight=frame.weight / self.scale), *rest)
            last = end.pending[-1]
            end.pending[-1] = last._replace(frame=frame)

        return commit_sent

    plant("commit_sent", make)


@fault("weight")
def scale_counts_own_frames_only(plant):
    def make(right):
        def commit_received(self, *rest):
            load = self.load
            right(self, *rest)
            self.load = load

        return commit_received

    plant("commit_received", make)


@fault("learning")
def elapsed_without_pending_frames(plant):
    def make(right):
        def send(self, neighbour, end, *rest):
            pending, end.pending = end.pending, []
            effect = right(self, neighbour, end, *rest)
            end.pending = pending + end.pending
            return effect

        return send

    plant("_send", make)


@fault("learning")
def local_steps_without_a_limit(plant):
    def make(right):
        def send(self, *rest):
            law, self.law = self.law, self.law._replace(most_steps=10**6)
            effect = right(self, *rest)
            self.law = law
            return effect

        return send

    plant("_send", make)


# Pacing


@fault("owes")
def owed_acknowledgement_forgotten_when_the_device_falls_silent(plant):
    """This was a fault of the core once."""

    def make(right):
        def fall_silent(self):
            right(self)
            return []

        return fall_silent

    plant("fall_silent", make)


@fault("owes")
def owed_acknowledgement_never_sent(plant):
    def make(right):
        def send_each(self, *rest):
            effects = right(self, *rest)
            return [effect for effect in effects if not isinstance(effect.message, Acknowledgement)]

        return send_each

    plant("_send_each", make)


@fault("about")
def about_not_sent_again_after_it_changed(plant):
    def make(right):
        def send(self, neighbour, end, *rest):
            about, self.about = self.about, end.about_told or self.about
            effect = right(self, neighbour, end, *rest)
            self.about = about
            return effect

        return send

    plant("_send", make)


@fault("about")
def about_not_told_to_those_left_out(plant):
    """This was a fault of the core once."""

    def make(right):
        def may_serve(self, neighbour, *rest):
            return neighbour not in self.quiet and right(self, neighbour, *rest)

        return may_serve

    plant("_may_serve", make)


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
def link_left_out_without_a_better_pair(plant):
    """One better link is enough."""

    def make(right):
        def quiet_links(own, mine, others):
            found = right(own, mine, others)
            best = max((about.rate for about in others.values()), default=0.0)
            return found | {j for j, about in others.items() if about.is_slow and about.rate < best}

        return quiet_links

    plant("quiet_links", make, half_steps)


@fault("choice")
def ties_left_out_on_all_sides(plant):
    """Of equal links none is better: with ">=" all three of a triangle would go."""

    def make(right):
        def rank(i, rate_i, j, rate_j):
            return *right(i, rate_i, j, rate_j)[:2], 0, 0

        return rank

    plant("_rank", make, uplink)


@fault("quiet")
def frames_to_those_left_out(plant):
    def make(right):
        def may_serve(self, neighbour, end, uplink):
            return end.is_new or uplink.is_due(neighbour)

        return may_serve

    plant("_may_serve", make)


@fault("told")
def frames_that_tell_nothing_of_those_before(plant):
    def make(right):
        def encode(self, *rest):
            pull, self.pull = self.pull, None
            made = right(self, *rest)
            self.pull = pull
            return made

        return encode

    plant("_encode", make)


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name, plant):
    plant_it, laws, settings = FAULTS[name]
    plant_it(plant)
    schedule, broken = first_that_breaks_a_law(**settings)
    print(f"{name}: found by schedule {schedule}: {broken}")  # noqa: T201 - `pytest -rP` shows it
    assert broken.law in laws


def test_no_fault_is_found_where_none_is():
    for schedule in range(100):
        hostile.run(schedule)


def first_that_breaks_a_law(**settings):
    for schedule in range(SCHEDULES):
        try:
            hostile.run(schedule, **settings)
        except Broken as broken:
            return schedule, broken
    return pytest.fail(f"no law was broken in {SCHEDULES} schedules")
