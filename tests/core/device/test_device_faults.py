"""The fuzz can fail: each planted fault breaks a law within 1,000 schedules."""

from __future__ import annotations

from dataclasses import replace

import hostile
import pytest
from witness import Broken

from efhc.core import device as core
from efhc.core.device import Reaction
from efhc.core.device_state import Decision, Link, Step
from efhc.core.protocol import Apply, Commit, Keep, Refuse, Send

SCHEDULES = 1000


@pytest.fixture
def plant(monkeypatch):
    """Replaces a method of the core: `plant(name, make)`, where make(the right method) is the wrong one."""

    def replace_method(name, make):
        right = getattr(Reaction, name)
        wrong = make(right)
        monkeypatch.setattr(Reaction, name, wrong)
        for table in (core._REACTIONS, core._ANSWERS):
            for key in [key for key, method in table.items() if method is right]:
                monkeypatch.setitem(table, key, wrong)

    replace_method.driver = monkeypatch
    return replace_method


FAULTS = {}


def fault(*laws):
    """A planted fault, and the laws of which it may break one."""

    def register(function):
        FAULTS[function.__name__] = function, laws
        return function

    return register


# The eight of the protocol


@fault("sum")
def apply_on_answer(plant):
    """Who holds both models makes the step, whatever is decided."""

    def make(right):
        def on_body(self, neighbour, link, message):
            doubted = link.exchange is not None and link.exchange.in_doubt
            right(self, neighbour, link, message)
            if not doubted and link.exchange is not None and link.exchange.in_doubt:
                self.take_step(neighbour, link.exchange)
                self.end(neighbour, link, "committed")

        return on_body

    plant("on_body", make)


@fault("sum", "hull", "shares")
def beta_from_the_degree_of_today(plant):
    def make(right):
        def take_step(self, neighbour, exchange):
            beta = min(exchange.share, 1 / (1 + self.device.degree))
            self.device.steps.append(Step(neighbour, beta, exchange.sent, exchange.received))

        return take_step

    plant("take_step", make)


@fault("sum")
def no_ready(plant):
    """The decider commits as soon as it holds both models."""

    def make(right):
        def commit_if_agreed(self, neighbour, link, exchange):
            exchange.ready = True
            right(self, neighbour, link, exchange)

        return commit_if_agreed

    plant("commit_if_agreed", make)


@fault("sum", "once")
def duplicates_applied(plant):
    past = {}

    def make(right):
        def on_commit(self, neighbour, link, message):
            exchange = link.exchange
            again = past.get((id(self.device), message.of))
            if exchange is not None and exchange.token == message.of:
                past[id(self.device), message.of] = exchange
            elif again is not None:
                self.take_step(neighbour, again)
                self.effects += [Apply()] * self.device.finished
            right(self, neighbour, link, message)

        return on_commit

    plant("on_commit", make)


@fault("sum")
def record_of_the_decider_forgotten(plant):
    def make(right):
        def commit_if_agreed(self, neighbour, link, exchange):
            right(self, neighbour, link, exchange)
            self.device.unacknowledged.pop(exchange.token, None)

        return commit_if_agreed

    plant("commit_if_agreed", make)


@fault("sum", "hull")
def late_answer_to_a_withdrawn_exchange_applied(plant):
    withdrawn = {}

    def make_end(right):
        def end(self, neighbour, link, outcome):
            if outcome == "withdrawn" and link.exchange.decides and link.exchange.received is not None:
                withdrawn[id(self.device), link.exchange.token] = link.exchange
            right(self, neighbour, link, outcome)

        return end

    def make_on_ready(right):
        def on_ready(self, neighbour, link, message):
            exchange = withdrawn.pop((id(self.device), message.of), None)
            if exchange is not None and exchange.partner == message.token:
                self.device.unacknowledged[exchange.token] = Decision(neighbour, exchange.partner)
                self.take_step(neighbour, exchange)
                self.effects += (Keep("commit"), Send(neighbour, Commit(exchange.token, exchange.partner)))
            else:
                right(self, neighbour, link, message)

        return on_ready

    plant("end", make_end)
    plant("on_ready", make_on_ready)


@fault("sum")
def unknown_taken_for_committed(plant):
    def make(right):
        def answer_from_record(self, neighbour, message):
            self.effects.append(Send(neighbour, Commit(message.of, message.token)))

        return answer_from_record

    plant("answer_from_record", make)


@fault("rest")
def owed_offer_dropped(plant):
    """A device that fires while the link is busy forgets that it owes an exchange."""

    def make(right):
        def begin(self, event):
            right(self, event)
            for link in self.device.links.values():
                if link.exchange is not None:
                    link.owes = 0

        return begin

    plant("begin", make)


# And more


@fault("rest")
def owed_offer_dropped_when_refusing(plant):
    def make(right):
        def on_offer(self, neighbour, link, message):
            right(self, neighbour, link, message)
            if self.effects and isinstance(self.effects[-1], Send) and isinstance(self.effects[-1].message, Refuse):
                link.owes = 0

        return on_offer

    plant("on_offer", make)


@fault("hull")
def model_offered_instead_of_what_is_free(plant):
    """w_i in the place of u_i."""
    plant("offered_model", lambda right: lambda self: self.device.model)


@fault("hull", "shares", "metropolis")
def nothing_set_aside(plant):
    def make(right):
        def reckon(self):
            self.device.offers, self.device.set_aside, self.device.free = None, [], 1.0

        return reckon

    plant("reckon", make)


@fault("superseded")
def offered_model_of_an_earlier_iteration(plant):
    def make(right):
        def reckon(self):
            offers = self.device.offers
            right(self)
            self.device.offers = offers

        return reckon

    plant("reckon", make)


@fault("superseded")
def finished_device_offers_before_it_applies(plant):
    def make(right):
        def end(self, neighbour, link, outcome):
            right(self, neighbour, link, outcome)
            self.offer_all_owed()

        return end

    plant("end", make)


@fault("sum", "hull")
def kept_after_it_was_said(plant):
    """`Keep` is carried out after the messages that rest on it."""
    react = hostile.react

    def wrong(*arguments):
        return sorted(react(*arguments), key=lambda effect: isinstance(effect, Keep))

    plant.driver.setattr(hostile, "react", wrong)


@fault("sum")
def steps_not_kept(plant):
    durable = hostile.durable
    plant.driver.setattr(hostile, "durable", lambda device: replace(durable(device), steps=[]))


@fault("sum")
def doubts_not_kept(plant):
    durable = hostile.durable
    plant.driver.setattr(hostile, "durable", lambda device: replace(durable(device), links={}))


@fault("sum")
def doubt_dropped_at_a_cut(plant):
    def make(right):
        def link_down(self, event):
            link = self.device.links.get(event.neighbour, Link(up=False))
            if link.up and link.exchange is not None and link.exchange.in_doubt:
                self.end(event.neighbour, link, "withdrawn")
            right(self, event)

        return link_down

    plant("link_down", make)


@fault("sum", "link", "hull")
def tokens_come_twice(plant):
    """A restarted device counts from 1 again in its old session."""
    restarted = hostile.restarted
    plant.driver.setattr(hostile, "restarted", lambda kept, session: restarted(kept, 0))


@fault("leave")
def leaving_device_offers_what_it_owes(plant):
    def make(right):
        def offer_if_free(self, neighbour, link):
            leaving, self.device.leaving = self.device.leaving, False
            right(self, neighbour, link)
            self.device.leaving = leaving

        return offer_if_free

    plant("offer_if_free", make)


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name, plant):
    plant_it, laws = FAULTS[name]
    plant_it(plant)
    schedule, broken = first_that_breaks_a_law()
    print(f"{name}: found by schedule {schedule}: {broken}")  # noqa: T201 - `pytest -rP` shows it
    assert broken.law in laws


def first_that_breaks_a_law():
    for schedule in range(SCHEDULES):
        try:
            hostile.run(schedule)
        except Broken as broken:
            return schedule, broken
    return pytest.fail(f"no law was broken in {SCHEDULES} schedules")
