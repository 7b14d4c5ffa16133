"""The fuzz can fail: each planted fault breaks a law within 1,000 schedules."""

from __future__ import annotations

from dataclasses import replace

import hostile
import pytest
from hostile_schedules import Faults, assert_found, replaces

from efhc.core import device as core
from efhc.core.device import Decision, Link, Reaction, Step
from efhc.core.protocol import Apply, Commit, Keep, Refuse, Send


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


fault = Faults()


# The eight of the protocol


@fault("sum")
@replaces("on_body")
def apply_on_answer(right, self, neighbour, link, message):
    """Who holds both models makes the step, whatever is decided."""
    doubted = link.exchange is not None and link.exchange.in_doubt
    right(self, neighbour, link, message)
    if not doubted and link.exchange is not None and link.exchange.in_doubt:
        self.take_step(neighbour, link.exchange)
        self.end(neighbour, link, "committed")


@fault("sum", "hull", "shares")
@replaces("take_step")
def beta_from_the_degree_of_today(right, self, neighbour, exchange):
    beta = min(exchange.share, 1 / (1 + self.device.degree))
    self.device.steps.append(Step(neighbour, beta, exchange.sent, exchange.received))


@fault("sum")
@replaces("commit_if_agreed")
def no_ready(right, self, neighbour, link, exchange):
    """The decider commits as soon as it holds both models."""
    exchange.ready = True
    right(self, neighbour, link, exchange)


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
@replaces("commit_if_agreed")
def record_of_the_decider_forgotten(right, self, neighbour, link, exchange):
    right(self, neighbour, link, exchange)
    self.device.unacknowledged.pop(exchange.token, None)


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
@replaces("answer_from_record")
def unknown_taken_for_committed(right, self, neighbour, message):
    self.effects.append(Send(neighbour, Commit(message.of, message.token)))


@fault("rest")
@replaces("begin")
def owed_offer_dropped(right, self, event):
    """A device that fires while the link is busy forgets that it owes an exchange."""
    right(self, event)
    for link in self.device.links.values():
        if link.exchange is not None:
            link.pending_offer = 0


# And more


@fault("rest")
@replaces("on_offer")
def owed_offer_dropped_when_refusing(right, self, neighbour, link, message):
    right(self, neighbour, link, message)
    if self.effects and isinstance(self.effects[-1], Send) and isinstance(self.effects[-1].message, Refuse):
        link.pending_offer = 0


@fault("hull")
def model_offered_instead_of_what_is_free(plant):
    """w_i in the place of u_i."""
    plant("offered_model", lambda right: lambda self: self.device.model)


@fault("hull", "shares", "metropolis")
@replaces("reserve_shares")
def nothing_set_aside(right, self):
    self.device.offers, self.device.set_aside, self.device.free = None, [], 1.0


@fault("superseded")
@replaces("reserve_shares")
def offered_model_of_an_earlier_iteration(right, self):
    offers = self.device.offers
    right(self)
    self.device.offers = offers


@fault("superseded")
@replaces("end")
def finished_device_offers_before_it_applies(right, self, neighbour, link, outcome):
    right(self, neighbour, link, outcome)
    self.make_pending_offers()


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
@replaces("link_down")
def doubt_dropped_at_a_cut(right, self, event):
    link = self.device.links.get(event.neighbour, Link(up=False))
    if link.up and link.exchange is not None and link.exchange.in_doubt:
        self.end(event.neighbour, link, "withdrawn")
    right(self, event)


@fault("sum", "link", "hull")
def tokens_come_twice(plant):
    """A restarted device counts from 1 again in its old session."""
    restarted = hostile.restarted
    plant.driver.setattr(hostile, "restarted", lambda kept, session: restarted(kept, 0))


@fault("leave")
@replaces("offer_if_free")
def leaving_device_offers_what_it_owes(right, self, neighbour, link):
    leaving, self.device.leaving = self.device.leaving, False
    right(self, neighbour, link)
    self.device.leaving = leaving


@pytest.mark.parametrize("name", fault)
def test_a_planted_fault_is_found(name, plant):
    assert_found(fault[name], plant, hostile)
